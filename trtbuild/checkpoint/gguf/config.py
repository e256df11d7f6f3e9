"""GGUF metadata -> config.json in transformers 5's form. What cannot be said there exactly is refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trtbuild.checkpoint.gguf.keys import Keys
from trtbuild.checkpoint.gguf.reader import GgufFile
from trtbuild.checkpoint.gguf.rope import read_rope
from trtbuild.errors import InputError


@dataclass(frozen=True, slots=True)
class Architecture:
    """How llama.cpp stores one of its architectures."""

    model_type: str
    class_name: str
    permuted: bool
    """q and k have their rows in the order of interleaved RoPE pairs."""
    qkv_bias: bool
    """Biases on q, k and v belong to it, and config.json does not mention them."""


ARCHITECTURES = {
    "llama": Architecture("llama", "LlamaForCausalLM", permuted=True, qkv_bias=False),
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM", permuted=False, qkv_bias=True),
    "qwen3": Architecture("qwen3", "Qwen3ForCausalLM", permuted=False, qkv_bias=False),
}

_TOKEN_KEYS = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding", "eot": "eot", "eom": "eom"}
"""transformers' short name of a special token -> the GGUF key's, tokenizer.ggml.*_token_id."""
_CONFIG_TOKENS = ("bos", "eos", "pad")


def architecture_of(file: GgufFile) -> tuple[str, Architecture]:
    """The file's architecture. Raises InputError for an unknown one, and for a file that is not a whole model."""
    metadata = file.metadata
    kind = metadata.get("general.type", "model")
    if kind != "model":
        raise InputError(f"{file.path} holds a GGUF {kind!r:.80} (general.type), not a model.")
    parts = metadata.get("split.count", 1)
    if parts not in (0, 1):
        raise InputError(
            f"{file.path} is one of {parts!r:.20} parts. "
            "Join them first: llama-gguf-split --merge FIRST_PART WHOLE.gguf"
        )
    name = metadata.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise InputError(
            f"{file.path} has the architecture {name!r:.80}. Known in a GGUF are {', '.join(sorted(ARCHITECTURES))} "
            "(llama includes Mistral and SmolLM); take the model's safetensors checkpoint instead."
        )
    return name, ARCHITECTURES[name]


def read_config(file: GgufFile, rope_factors: Sequence[float] | None) -> dict[str, Any]:
    """config.json for the file; `rope_factors` are the values of its `rope_freqs.weight`, if it has one.

    Raises InputError for a missing or malformed key, and for one that changes the arithmetic in an unknown way.
    """
    name, architecture = architecture_of(file)
    keys = Keys(file, name)
    heads = keys.integer("attention.head_count")
    hidden = keys.integer("embedding_length")
    head_dim = keys.integer("attention.key_length", hidden // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if keys.integer(key, head_dim) != head_dim:
            raise keys.refuse(key, f"differs from the {head_dim} of a head's keys, and {name} has no such form")
    context = keys.integer("context_length")
    window = keys.integer("attention.sliding_window", 0, minimum=0)
    if window and name != "llama":
        raise keys.refuse("attention.sliding_window", f"is not part of {name} as trtbuild knows it")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise InputError(f"{file.path} has no token_embd.weight. Download it again.")
    config: dict[str, Any] = {
        "architectures": ["MistralForCausalLM" if window else architecture.class_name],
        "model_type": "mistral" if window else architecture.model_type,
        "hidden_size": hidden,
        "intermediate_size": keys.integer("feed_forward_length"),
        "num_hidden_layers": keys.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.integer("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": context,
        "rms_norm_eps": keys.real("attention.layer_norm_rms_epsilon"),
        "rope_parameters": read_rope(keys, head_dim, context, rope_factors),
        "vocab_size": embedding.shape[0],
        "tie_word_embeddings": "output.weight" not in file.tensors,
    }
    if window:
        config["sliding_window"] = window
    config |= _biases(file, architecture)
    config |= {f"{token}_token_id": number for token, number in special_ids(file).items() if token in _CONFIG_TOKENS}
    keys.check_all_read()
    return config


def special_ids(file: GgufFile) -> dict[str, int]:
    """The ids of the special tokens that the file names: bos, eos, unk, pad, and eot and eom, which end a turn too.

    Raises InputError for one outside the vocabulary.
    """
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    size = len(tokens) if isinstance(tokens, list) else 0
    ids = {}
    for token, key in _TOKEN_KEYS.items():
        number = file.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if number is None:
            continue
        if type(number) is not int or not 0 <= number < size:
            raise InputError(
                f"{file.path}: tokenizer.ggml.{key}_token_id is {number!r}, and the vocabulary has {size} tokens. "
                "Download or convert the file again."
            )
        ids[token] = number
    return ids


def _biases(file: GgufFile, architecture: Architecture) -> dict[str, bool]:
    """`attention_bias` and `mlp_bias`, from which biases are there: all of a block's projections have one, or none."""
    present = {match[1] for name in file.tensors if (match := re.fullmatch(r"blk\.\d+\.(\w+)\.bias", name))}
    qkv, output = {"attn_q", "attn_k", "attn_v"}, {"attn_output"}
    mlp = {"ffn_gate", "ffn_up", "ffn_down"}
    if architecture.qkv_bias:
        allowed: dict[frozenset[str], dict[str, bool]] = {frozenset(qkv): {}}
    else:
        allowed = {
            frozenset(): {"attention_bias": False},
            frozenset(qkv | output): {"attention_bias": True},
        }
        if architecture.model_type == "llama":
            allowed = {
                keys | extra: values | {"mlp_bias": bool(extra)}
                for keys, values in allowed.items()
                for extra in (frozenset(), frozenset(mlp))
            }
    flags = allowed.get(frozenset(present))
    if flags is None:
        raise InputError(
            f"{file.path} has biases on {', '.join(sorted(present)) or 'nothing'}, "
            f"which {architecture.class_name} cannot express. Take the model's safetensors checkpoint instead."
        )
    return flags
