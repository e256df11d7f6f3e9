"""A tiny Llama with random weights, its tokenizer and a version folder around them, made without torch."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.graph.harness import write_graph
from trtbuild.serving.config import Backend, Cache, ServingConfig
from trtbuild.serving.runners.onnxruntime import OnnxRuntimeRunner

SLOTS, CAPACITY, CHUNK, VOCAB = 4, 64, 8, 320
LAYERS, HEADS, KV_HEADS, HEAD_DIM, WIDTH, INNER = 2, 4, 2, 16, 64, 128

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role not in ('user', 'assistant') %}"
    "{{ raise_exception('no role ' + m.role) }}{% endif %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def config(**changes: Any) -> ServingConfig:
    """serving.json of the tiny model."""
    values: dict[str, Any] = {
        "model_name": "tiny",
        "vocab_size": VOCAB,
        "cache": Cache(LAYERS, SLOTS, KV_HEADS, CAPACITY, HEAD_DIM, HEAD_DIM),
        "prefill_chunk": CHUNK,
        "eos_token_ids": (),
        "profiles": (),
        "backends": (Backend("onnxruntime", "model.onnx", "float32"),),
    }
    return ServingConfig(**{**values, **changes})


def write_checkpoint(folder: Path) -> None:
    """config.json and model.safetensors; weights as large as a trained model's, so that the tokens vary."""
    from safetensors.numpy import save_file

    generator = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> Any:
        return (generator.standard_normal((rows, columns)) * 1.5 / columns**0.5).astype(np.float32)

    tensors = {
        "model.embed_tokens.weight": generator.standard_normal((VOCAB, WIDTH)).astype(np.float32),
        "model.norm.weight": np.ones(WIDTH, np.float32),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{name}.weight"] = np.ones(WIDTH, np.float32)
        for name, rows, columns in (
            ("self_attn.q_proj", HEADS * HEAD_DIM, WIDTH),
            ("self_attn.k_proj", KV_HEADS * HEAD_DIM, WIDTH),
            ("self_attn.v_proj", KV_HEADS * HEAD_DIM, WIDTH),
            ("self_attn.o_proj", WIDTH, HEADS * HEAD_DIM),
            ("mlp.gate_proj", INNER, WIDTH),
            ("mlp.up_proj", INNER, WIDTH),
            ("mlp.down_proj", WIDTH, INNER),
        ):
            tensors[f"{prefix}{name}.weight"] = matrix(rows, columns)
    save_file(tensors, folder / "model.safetensors")
    settings = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCAB, "hidden_size": WIDTH,
        "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "max_position_embeddings": CAPACITY,
        "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": True, "rope_theta": 10000.0,
        "rope_scaling": None, "torch_dtype": "float32",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(settings))


def byte_level_tokenizer() -> Any:
    """GPT-2's kind, its merges learned from a little text, with two special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=["<bos>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    text = [
        "the quick brown fox jumps over the lazy dog",
        "Größe und Länge — naïve café",
        "今日は 😀😀 👩‍👩‍👧",
    ]
    tokenizer.train_from_iterator(text * 4, trainer)
    return tokenizer


def sentencepiece_tokenizer() -> Any:
    """Llama 2's kind: "▁" for a space, one more in front of a text, bytes for what has no piece."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", *"abcdefghijklmnopqrstuvwxyzABCé,.", "▁t", "th", "▁th", "▁the", "an", "▁an"]
    merges = [("▁", "t"), ("t", "h"), ("▁t", "h"), ("▁th", "e"), ("a", "n"), ("▁", "an")]
    tokenizer = Tokenizer(
        models.BPE({piece: i for i, piece in enumerate(pieces)}, merges, unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


@pytest.fixture(scope="session")
def version_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What serving finds beside it: the graph, serving.json, the tokenizer's files."""
    root = tmp_path_factory.mktemp("tiny")
    checkpoint = root / "checkpoint"
    checkpoint.mkdir()
    write_checkpoint(checkpoint)
    byte_level_tokenizer().save(str(checkpoint / "tokenizer.json"))
    tokenizer_config = {"bos_token": "<bos>", "eos_token": {"content": "<eos>"}, "chat_template": TEMPLATE}
    (checkpoint / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    folder = write_graph(checkpoint, capacity=CAPACITY).parent
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((checkpoint / name).read_bytes())
    (folder / "serving.json").write_text(config().to_json())
    return folder


@pytest.fixture
def open_tiny(version_folder: Path) -> Callable[..., OnnxRuntimeRunner]:
    """Open a runner with an empty cache over the tiny model."""
    return lambda **changes: OnnxRuntimeRunner(config(**changes), config().backends[0], version_folder)
