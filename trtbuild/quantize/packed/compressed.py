"""compressed-tensors' pack-quantized form (https://github.com/vllm-project/compressed-tensors)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trtbuild.checkpoint.base import TensorRef
from trtbuild.errors import InputError
from trtbuild.quantize.packed.matrix import (
    Scheme,
    Unpacked,
    assemble,
    floats,
    indices,
    needed,
    scheme_of,
    words,
)
from trtbuild.quantize.rounding import nibbles

SUFFIXES = ("weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx")


def read(config: Mapping[str, Any], where: str) -> Scheme:
    form = config.get("format")
    if form != "pack-quantized":
        raise InputError(f"{where}: the format {form!r} is not known; pack-quantized (INT4 weights) is.")
    groups = config.get("config_groups")
    schemes = set()
    for name, entry in (groups or {}).items():
        if entry.get("input_activations") is not None:
            raise InputError(f"{where}: {name} quantises activations too, which is not supported.")
        weights = entry.get("weights") or {}
        if weights.get("type") != "int":
            raise InputError(f"{where}: {name} has {weights.get('type')} weights; integers are known.")
        group = weights.get("group_size") if weights.get("strategy") == "group" else None
        schemes.add(scheme_of(weights.get("num_bits"), group, weights.get("symmetric", True), where))
    if len(schemes) != 1:
        raise InputError(f"{where}: {len(schemes)} different schemes of weights in 'config_groups'; one is supported.")
    return schemes.pop()


def shape(module: Mapping[str, TensorRef]) -> tuple[int, int]:
    rows, packed = module["weight_packed"].shape
    return rows, 8 * packed


def unpack(module: Mapping[str, TensorRef], scheme: Scheme, what: str) -> Unpacked:
    """weight_packed i32 [out, in / 8] of values plus 8, weight_scale [out, groups], weight_zero_point i32
    [out / 8, groups] likewise, weight_shape i64 [2], weight_g_idx i32 [in]."""
    values = nibbles(words(needed(module, "weight_packed", what), what), 1)
    if "weight_shape" in module:
        ref = module["weight_shape"]
        said = np.fromfile(ref.file, "<i8", 2, offset=ref.offset).tolist()
        if said != list(values.shape):
            raise InputError(f"{what}: weight_shape says {said}, and {list(values.shape)} are packed.")
    scales = floats(needed(module, "weight_scale", what), what)
    zeros = None
    if not scheme.symmetric:
        zeros = nibbles(words(needed(module, "weight_zero_point", what), what), 0)
        if zeros.shape != scales.shape:
            raise InputError(f"{what}: zero-points {list(zeros.shape)} and scales {list(scales.shape)} do not agree.")
        zeros = zeros.T
    groups = None
    if "weight_g_idx" in module:
        groups = indices(module["weight_g_idx"])
        groups = None if (groups < 0).any() else groups
    return assemble(np.ascontiguousarray(values.T), zeros, scales.T, groups, what)
