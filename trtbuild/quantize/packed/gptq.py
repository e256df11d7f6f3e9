"""GPTQ's packing (https://github.com/AutoGPTQ/AutoGPTQ): eight inputs to a word, zero-points less one in version 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

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

SUFFIXES = ("qweight", "qzeros", "scales", "g_idx")


def read(config: Mapping[str, Any], where: str) -> Scheme:
    checkpoint = config.get("checkpoint_format", "gptq")
    if checkpoint not in ("gptq", "gptq_v2"):
        raise InputError(f"{where}: GPTQ's {checkpoint} form is not known; gptq and gptq_v2 are.")
    scheme = scheme_of(config.get("bits"), config.get("group_size"), config.get("sym", True), where)
    return Scheme(scheme.group, scheme.symmetric, version_2=checkpoint == "gptq_v2")


def shape(module: Mapping[str, TensorRef]) -> tuple[int, int]:
    packed, rows = module["qweight"].shape
    return rows, 8 * packed


def unpack(module: Mapping[str, TensorRef], scheme: Scheme, what: str) -> Unpacked:
    """qweight i32 [in / 8, out], qzeros i32 [groups, out / 8], scales [groups, out], g_idx i32 [in]."""
    values = nibbles(words(needed(module, "qweight", what), what), 0)
    scales = floats(needed(module, "scales", what), what)
    zeros = nibbles(words(needed(module, "qzeros", what), what), 1)
    if zeros.shape != scales.shape:
        raise InputError(f"{what}: qzeros for {list(zeros.shape)} and scales {list(scales.shape)} do not agree.")
    groups = None
    if "g_idx" in module:
        groups = indices(module["g_idx"])
        if groups.shape != (len(values),) or groups.min() < 0 or groups.max() >= len(scales):
            raise InputError(
                f"{what}: g_idx does not name one of {len(scales)} groups for each of {len(values)} inputs."
            )
    return assemble(values, zero_points(zeros, scheme), scales, groups, what)


def zero_points(stored: NDArray[np.uint8], scheme: Scheme) -> NDArray[np.uint8]:
    """Version 1 stores each less one, 0 as 15; version 2 as it is.

    Files of either version carry either's name. A symmetric checkpoint's zero-points are all 8, which tells.
    """
    if scheme.symmetric and (stored == stored.flat[0]).all() and stored.flat[0] in (7, 8):
        return np.full_like(stored, 8)
    return stored if scheme.version_2 else (stored + np.uint8(1)) & np.uint8(15)
