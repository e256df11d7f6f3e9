"""The names of the decoder graph's inputs and outputs: trtbuild/graph/contract.py, repeated (a test holds them equal).

Shapes and types are described there.
"""

from __future__ import annotations

from typing import NamedTuple

INPUT_IDS = "input_ids"
POSITION_IDS = "position_ids"
CACHE_POSITIONS = "cache_positions"
LOGITS_POSITIONS = "logits_positions"
SEQUENCE_LENGTHS = "sequence_lengths"
LOGITS = "logits"
BLOCK_TABLE = "block_table"
CU_SEQLENS = "cu_seqlens"
PAST_LENGTHS = "past_lengths"


def past_key(layer: int) -> str:
    return f"past_key.{layer}"


def past_value(layer: int) -> str:
    return f"past_value.{layer}"


def present_key(layer: int) -> str:
    return f"present_key.{layer}"


def present_value(layer: int) -> str:
    return f"present_value.{layer}"


def kv_pages(layer: int) -> str:
    return f"kv_pages.{layer}"


def kv_pages_out(layer: int) -> str:
    return f"kv_pages_out.{layer}"


class CacheTensor(NamedTuple):
    past: str
    present: str
    width: int


def cache_tensors(layers: int, key_dim: int, value_dim: int) -> list[CacheTensor]:
    tensors = []
    for layer in range(layers):
        tensors.append(CacheTensor(past_key(layer), present_key(layer), key_dim))
        if value_dim:
            tensors.append(CacheTensor(past_value(layer), present_value(layer), value_dim))
    return tensors
