"""Write a safetensors checkpoint of any size: sparse (it takes no disk), or with random weights.

The default is Llama 3.1 70B's shape: 141 GB in 30 files, BF16. With --config it is that of any supported model.

    python scripts/synthetic_checkpoint.py OUT
    python scripts/synthetic_checkpoint.py OUT --config config.json
    python scripts/synthetic_checkpoint.py OUT --layers 4 --hidden 256 --heads 4 --kv-heads 2 --mlp 512 --vocab 1000 \
        --shards 2 --seed 0
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from trtbuild.architectures.binding import expected_tensors
from trtbuild.architectures.config_reader import ConfigReader
from trtbuild.architectures.families import recipes
from trtbuild.checkpoint.folder import INDEX, SINGLE
from trtbuild.checkpoint.safetensors import encode_header
from trtbuild.dtypes import DType

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Llama:
    """The dimensions of a Llama; the defaults are 3.1 70B's."""

    layers: int = 80
    hidden: int = 8192
    heads: int = 64
    kv_heads: int = 8
    mlp: int = 28672
    vocab: int = 128256

    def config(self) -> dict[str, object]:
        """config.json, with Llama 3.1's RoPE scaling."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.hidden,
            "intermediate_size": self.mlp,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.hidden // self.heads,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-05,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
            "vocab_size": self.vocab,
            "tie_word_embeddings": False,
            "bos_token_id": min(128000, self.vocab - 1),
            "eos_token_id": min(128009, self.vocab - 1),
            "dtype": "bfloat16",
        }


def tensors_of(config: Mapping[str, Any]) -> list[tuple[str, Shape]]:
    """Name and shape of each tensor that a model with this config.json has, in the order of the layers."""
    recipe = recipes()[config["model_type"]]
    spec = recipe.read(ConfigReader(config, "config.json"))
    return [(name, shape) for name, (_, shape) in expected_tensors(spec, recipe.of(spec), recipe.prefixes[0]).items()]


def write_checkpoint(folder: Path, config: Mapping[str, Any], *, shards: int, seed: int | None = None) -> int:
    """Write config.json and the weights in `shards` files of about equal size; returns their bytes.

    Without a seed the files are sparse and every weight is zero; with one, norms are 1 and matrices N(0, 0.02).
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = tensors_of(config)
    total = sum(2 * math.prod(shape) for _, shape in tensors)
    groups: list[list[tuple[str, Shape]]] = [[] for _ in range(shards)]
    done = 0
    for name, shape in tensors:
        groups[min(done * shards // total, shards - 1)].append((name, shape))
        done += 2 * math.prod(shape)
    weight_map: dict[str, str] = {}
    for number, group in enumerate(groups, 1):
        file = SINGLE if shards == 1 else f"model-{number:05}-of-{shards:05}.safetensors"
        header = encode_header((name, DType.BF16, shape) for name, shape in group)
        with (folder / file).open("wb") as stream:
            stream.write(header)
            if seed is None:
                stream.truncate(len(header) + sum(2 * math.prod(shape) for _, shape in group))
            else:
                _fill(stream, group, (seed, number))
        weight_map |= {name: file for name, _ in group}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    if shards > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return total


def _fill(stream: BinaryIO, group: list[tuple[str, Shape]], seed: tuple[int, int]) -> None:
    import numpy as np

    generator = np.random.default_rng(seed)
    for _, shape in group:
        if len(shape) == 1:
            values = np.ones(shape, np.float32)
        else:
            values = generator.standard_normal(shape, np.float32) * np.float32(0.02)
        stream.write((values.view(np.uint32) >> 16).astype("<u2").data)  # BF16, rounded towards zero


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    for name in ("layers", "hidden", "heads", "kv_heads", "mlp", "vocab"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(Llama(), name))
    parser.add_argument("--shards", type=int, default=30)
    parser.add_argument("--seed", type=int, help="fill with random weights instead of leaving the files sparse")
    parser.add_argument("--config", type=Path, help="a config.json to take in place of Llama's dimensions")
    arguments = vars(parser.parse_args())
    if arguments["hidden"] % arguments["heads"] or arguments["heads"] % arguments["kv_heads"]:
        parser.error("--hidden must be a multiple of --heads, and --heads of --kv-heads")
    folder, shards, seed, file = (arguments.pop(name) for name in ("folder", "shards", "seed", "config"))
    config = json.loads(file.read_text()) if file else Llama(**arguments).config()
    total = write_checkpoint(folder, config, shards=shards, seed=seed)
    print(f"{folder}: {total / 1e9:.3g} GB in {shards} files")


if __name__ == "__main__":
    main()
