"""Small GGUF files, written by the `gguf` package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

HIDDEN, MLP, HEADS, KV_HEADS, VOCAB = 64, 96, 4, 2, 260


def bytes_alphabet() -> list[str]:
    """GPT-2's character for each byte, in the order of its vocabulary (openai/gpt-2, encoder.py)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + number) for number in range(len(others))]


TOKENS = [*bytes_alphabet(), "he", "Ġhe", "<|end|>", "<tool>"]
TYPES = [1] * 258 + [3, 4]
MERGES = ["h e", "Ġ he"]
TOKENIZER: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": TYPES,
    "tokenizer.ggml.merges": MERGES,
    "tokenizer.ggml.eos_token_id": 258,
}


def metadata(architecture: str = "llama", **changes: Any) -> dict[str, Any]:
    """A small model's keys; a change of None leaves a key out. Write dots of a key as double underscores."""
    keys: dict[str, Any] = {
        "general.type": "model",
        f"{architecture}.block_count": 1,
        f"{architecture}.context_length": 128,
        f"{architecture}.embedding_length": HIDDEN,
        f"{architecture}.feed_forward_length": MLP,
        f"{architecture}.attention.head_count": HEADS,
        f"{architecture}.attention.head_count_kv": KV_HEADS,
        f"{architecture}.attention.layer_norm_rms_epsilon": 0.5,
        f"{architecture}.rope.freq_base": 500000.0,
        **TOKENIZER,
    }
    keys |= {name.replace("__", "."): value for name, value in changes.items()}
    return {key: value for key, value in keys.items() if value is not None}


def weights(seed: int = 0) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    """A one-layer Llama's tensors under their GGUF names."""
    generator = np.random.default_rng(seed)
    kv = HIDDEN // HEADS * KV_HEADS
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd": (VOCAB, HIDDEN),
        "blk.0.attn_norm": (HIDDEN,),
        "blk.0.attn_q": (HIDDEN, HIDDEN),
        "blk.0.attn_k": (kv, HIDDEN),
        "blk.0.attn_v": (kv, HIDDEN),
        "blk.0.attn_output": (HIDDEN, HIDDEN),
        "blk.0.ffn_norm": (HIDDEN,),
        "blk.0.ffn_gate": (MLP, HIDDEN),
        "blk.0.ffn_up": (MLP, HIDDEN),
        "blk.0.ffn_down": (HIDDEN, MLP),
        "output_norm": (HIDDEN,),
    }
    return {f"{name}.weight": generator.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def write_gguf(
    path: Path,
    keys: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Any] | None = None,
    *,
    architecture: str = "llama",
    kinds: Mapping[str, Kind] | None = None,
) -> Path:
    """Write `tensors` (F32 unless `kinds` says otherwise, by name) and `keys` to `path`."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (metadata(architecture) if keys is None else keys).items():
        add_key(writer, key, value)
    for name, values in (weights() if tensors is None else tensors).items():
        kind = (kinds or {}).get(name, Kind.F32)
        data = gguf.quantize(values, kind)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_key(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, Sequence):
        writer.add_array(key, value)
    else:
        raise TypeError(f"{key}: {value!r}")
