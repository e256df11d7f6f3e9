"""The names of the decoder graph's inputs and outputs: trtbuild/graph/contract.py, repeated (a test holds them equal).

Shapes and types are described there.
"""

from __future__ import annotations

INPUT_IDS = "input_ids"
POSITION_IDS = "position_ids"
CACHE_POSITIONS = "cache_positions"
LOGITS_POSITIONS = "logits_positions"
LOGITS = "logits"


def past_key(layer: int) -> str:
    return f"past_key.{layer}"


def past_value(layer: int) -> str:
    return f"past_value.{layer}"


def present_key(layer: int) -> str:
    return f"present_key.{layer}"


def present_value(layer: int) -> str:
    return f"present_value.{layer}"


def cache_pairs(layers: int) -> list[tuple[str, str]]:
    """(past, present) of every tensor of the cache: the keys and values of each layer."""
    pairs = []
    for layer in range(layers):
        pairs.append((past_key(layer), present_key(layer)))
        pairs.append((past_value(layer), present_value(layer)))
    return pairs
