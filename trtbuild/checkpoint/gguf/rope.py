"""RoPE from a GGUF's keys and its table of frequency factors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from trtbuild.checkpoint.gguf.keys import Keys
from trtbuild.errors import InputError


def read_rope(keys: Keys, head_dim: int, context: int, factors: Sequence[float] | None) -> dict[str, Any]:
    """`rope_parameters`. llama.cpp's default base is 10000, and a factor without a type is a linear one."""
    theta = keys.real("rope.freq_base", 10_000.0)
    kind = keys.text("rope.scaling.type", "linear")
    factor = keys.real("rope.scaling.factor", keys.real("rope.scale_linear", 1.0))
    if kind not in ("none", "linear"):
        raise keys.refuse("rope.scaling.type", "is not one that can be carried over exactly")
    linear = kind == "linear" and factor != 1.0
    if factors is None or all(value == 1.0 for value in factors):
        if linear:
            return {"rope_type": "linear", "rope_theta": theta, "factor": factor}
        return {"rope_type": "default", "rope_theta": theta}
    originals = (8192, keys.integer("rope.scaling.original_context_length", 8192), context)
    if not linear and all(0 < value < math.inf for value in factors):
        for original in originals:
            if _close(llama3_factors(theta, head_dim, max(factors), original), factors):
                return {
                    "rope_type": "llama3",
                    "rope_theta": theta,
                    "factor": round(max(factors), 6),
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": original,
                }
    raise InputError(
        f"{keys.path}: rope_freqs.weight is not the scaling of Llama 3.1 (low 1, high 4), the only one of which its "
        "values tell the parameters. Take the model's safetensors checkpoint instead."
    )


def llama3_factors(theta: float, head_dim: int, factor: float, original: int) -> list[float]:
    """What llama.cpp's converter writes into rope_freqs.weight for Llama 3.1: by how much each frequency is divided.

    Low and high frequency factors are 1 and 4, as in every Llama published so far.
    """
    low, high = 1.0, 4.0
    result = []
    for pair in range(head_dim // 2):
        turns = original * theta ** (-2 * pair / head_dim) / (2 * math.pi)
        smooth = min(max((turns - low) / (high - low), 0.0), 1.0)
        result.append(1.0 / ((1.0 - smooth) / factor + smooth))
    return result


def _close(expected: Sequence[float], actual: Sequence[float]) -> bool:
    """Equal within the rounding of the F32 arithmetic that wrote them."""
    return len(expected) == len(actual) and all(
        abs(one - other) <= 1e-4 * one for one, other in zip(expected, actual, strict=True)
    )
