"""AutoAWQ's GEMM packing (https://github.com/casper-hansen/AutoAWQ): eight outputs to a word, in their own order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtbuild.checkpoint.base import TensorRef
from trtbuild.errors import InputError
from trtbuild.quantize.packed.matrix import Scheme, Unpacked, assemble, floats, needed, scheme_of, words
from trtbuild.quantize.rounding import nibbles

SUFFIXES = ("qweight", "qzeros", "scales")

PLACE = (0, 4, 1, 5, 2, 6, 3, 7)
"""In which nibble of a word each of its eight outputs is."""


def read(config: Mapping[str, Any], where: str) -> Scheme:
    version = str(config.get("version", "gemm")).lower()
    if version != "gemm":
        raise InputError(f"{where}: AutoAWQ's {version} packing is not known; its GEMM packing is.")
    bits = config.get("bits", config.get("w_bit"))
    group = config.get("group_size", config.get("q_group_size"))
    return scheme_of(bits, group, not config.get("zero_point", True), where)


def shape(module: Mapping[str, TensorRef]) -> tuple[int, int]:
    width, packed = module["qweight"].shape
    return 8 * packed, width


def unpack(module: Mapping[str, TensorRef], scheme: Scheme, what: str) -> Unpacked:
    """qweight i32 [in, out / 8], qzeros i32 [groups, out / 8], scales [groups, out]."""
    values = _in_order(nibbles(words(needed(module, "qweight", what), what), 1))
    scales = floats(needed(module, "scales", what), what)
    zeros = None
    if not scheme.symmetric or "qzeros" in module:
        zeros = _in_order(nibbles(words(needed(module, "qzeros", what), what), 1))
        if zeros.shape != scales.shape:
            raise InputError(f"{what}: qzeros for {list(zeros.shape)} and scales {list(scales.shape)} do not agree.")
    return assemble(values, zeros, scales, None, what)


def _in_order(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    rows = len(packed)
    return np.ascontiguousarray(packed.reshape(rows, -1, 8)[:, :, list(PLACE)].reshape(rows, -1))
