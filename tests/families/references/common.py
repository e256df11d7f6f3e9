"""What the references share: files in and out, and the arithmetic that no decoder does differently. Float32, NumPy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

Array: TypeAlias = NDArray[np.float32]


def with_overrides(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """`config` with fields replaced or added; None takes a field out, a field of JSON null cannot be asked for."""
    merged = {**config, **overrides}
    return {name: value for name, value in merged.items() if value is not None}


def write_checkpoint(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Array]) -> None:
    """Write config.json, two shards and their index; the weights in the dtype that the config's `torch_dtype` names."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    dtype = getattr(torch, config["torch_dtype"])
    names = list(tensors)
    shards = {
        "model-00001-of-00002.safetensors": names[: len(names) // 2],
        "model-00002-of-00002.safetensors": names[len(names) // 2 :],
    }
    size = 0
    for file, members in shards.items():
        shard = {name: torch.from_numpy(tensors[name]).to(dtype).contiguous() for name in members}
        size += sum(tensor.nbytes for tensor in shard.values())
        save_file(shard, folder / file, metadata={"format": "pt"})
    index = {
        "metadata": {"total_size": size},
        "weight_map": {name: file for file, members in shards.items() for name in members},
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


def read_checkpoint(folder: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """config.json, and every tensor of every shard as float32."""
    config = json.loads((folder / "config.json").read_text())
    tensors: dict[str, Array] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= {name: tensor.to(torch.float32).numpy() for name, tensor in load_file(file).items()}
    return config, tensors


def rms_norm(x: Array, weight: Array, epsilon: float) -> Array:
    """x [..., hidden] over its root mean square, times weight [hidden] (Zhang and Sennrich 2019, epsilon inside)."""
    normed: Array = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(epsilon))
    return normed * weight


def gated_mlp(x: Array, gate: Array, up: Array, down: Array) -> Array:
    """SwiGLU: down(silu(gate(x)) * up(x)), weights [out, in]."""
    gated = x @ gate.T
    inner: Array = gated / (1 + np.exp(-gated)) * (x @ up.T)
    return inner @ down.T


def inverse_frequencies(theta: float, head_dim: int) -> Array:
    return np.float32(1) / np.power(theta, np.arange(0, head_dim, 2) / head_dim).astype(np.float32)


def rotate(x: Array, frequencies: Array, positions: Array) -> Array:
    """RoPE on x [batch, heads, n, head_dim], element i paired with element i + head_dim / 2.

    Args:
        frequencies: [head_dim / 2], radians a position.
        positions: [n], maybe fractional.
    """
    angles = positions[:, None] * frequencies
    cos, sin = np.cos(angles), np.sin(angles)
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def attend(q: Array, k: Array, v: Array, slopes: Array | None = None) -> Array:
    """Causal attention. q, k, v and the result are [batch, heads, n, head_dim].

    `slopes` [heads] adds ALiBi, -slope * (query's position - key's), to the scores that 1/sqrt(head_dim) has already
    scaled; the bias itself is not scaled (Press et al. 2022).
    """
    n, head_dim = q.shape[-2:]
    scores = np.einsum("bhqd,bhkd->bhqk", q, k) / np.float32(np.sqrt(head_dim))
    distance = np.arange(n)[:, None] - np.arange(n)[None, :]
    if slopes is not None:
        scores = scores - slopes[:, None, None] * distance.astype(np.float32)
    scores = np.where(distance >= 0, scores, np.float32(-np.inf))
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    attended: Array = np.einsum("bhqk,bhkd->bhqd", weights / weights.sum(axis=-1, keepdims=True), v)
    return attended


def split_heads(x: Array, heads: int) -> Array:
    """[batch, n, heads * head_dim] to [batch, heads, n, head_dim]."""
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def merge_heads(x: Array) -> Array:
    """[batch, heads, n, head_dim] to [batch, n, heads * head_dim]."""
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)
