"""Checkpoints that come in INT4: AutoAWQ's, GPTQ's and compressed-tensors' packing, brought into TensorRT's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trtbuild.checkpoint.base import QUANTIZATION, Checkpoint, TensorRef
from trtbuild.dtypes import DType
from trtbuild.errors import InputError
from trtbuild.quantize.packed import awq, compressed, gptq
from trtbuild.quantize.packed.matrix import Scheme, Unpacked


@dataclass(frozen=True, slots=True)
class Format:
    """One packing."""

    read: Callable[[Mapping[str, Any], str], Scheme]
    """The scheme that the config describes; InputError for one that cannot be mapped."""
    suffixes: tuple[str, ...]
    """What a quantised module's tensors are called, the packed values first."""
    unpack: Callable[[Mapping[str, TensorRef], Scheme, str], Unpacked]
    shape: Callable[[Mapping[str, TensorRef]], tuple[int, int]]
    """[out, in] of a module."""


FORMATS = {
    "awq": Format(awq.read, awq.SUFFIXES, awq.unpack, awq.shape),
    "gptq": Format(gptq.read, gptq.SUFFIXES, gptq.unpack, gptq.shape),
    "compressed-tensors": Format(compressed.read, compressed.SUFFIXES, compressed.unpack, compressed.shape),
}


@dataclass(frozen=True, slots=True)
class PackedCheckpoint:
    """A checkpoint in INT4, taken apart."""

    plain: Checkpoint
    """As an unquantised one would be: stand-ins, whose bytes are not there, for the matrices in INT4."""
    method: str
    scheme: Scheme
    modules: Mapping[str, Mapping[str, TensorRef]]
    """By the weight's name, a quantised module's tensors by suffix."""

    def unpack(self, weight: str) -> Unpacked:
        """One module's values, scales and zero-points. Raises InputError if its tensors contradict each other."""
        return FORMATS[self.method].unpack(self.modules[weight], self.scheme, weight)

    @property
    def scale_type(self) -> DType:
        """F32, F16 or BF16, as the scales are stored."""
        module = next(iter(self.modules.values()))
        return next(module[name].dtype for name in ("scales", "weight_scale") if name in module)


def take_apart(checkpoint: Checkpoint) -> PackedCheckpoint | None:
    """The checkpoint in INT4, or None for one that does not say that it is quantised.

    Whether a module is quantised is decided by its tensors, one at a time: configs leave out, or name wrongly, what was
    left alone. Raises InputError for a format, bit width or group that TensorRT's INT4 cannot hold.
    """
    config = checkpoint.config.get(QUANTIZATION)
    if config is None:
        return None
    where = f"{checkpoint.name}/config.json: {QUANTIZATION}"
    method = config.get("quant_method") if isinstance(config, Mapping) else None
    chosen = FORMATS.get(str(method))
    if chosen is None:
        raise InputError(
            f"{where}: the checkpoint is already quantised ({method or 'by an unnamed method'}). "
            f"Known are {', '.join(FORMATS)}; else take the unquantised one (--precision int4 quantises it)."
        )
    scheme = chosen.read(config, where)
    tensors, modules = dict(checkpoint.tensors), {}
    first = chosen.suffixes[0]
    for name in checkpoint.tensors:
        stem, _, suffix = name.rpartition(".")
        if suffix != first:
            continue
        own = {each: tensors.pop(f"{stem}.{each}") for each in chosen.suffixes if f"{stem}.{each}" in tensors}
        weight = f"{stem}.weight"
        modules[weight] = own
        tensors[weight] = TensorRef(weight, DType.F16, chosen.shape(own), own[first].file, 0, 0)
    if not modules:
        raise InputError(
            f"{where} says {method}, and no tensor ends in .{first}. Config and weights are not one model's."
        )
    return PackedCheckpoint(checkpoint.unquantised(tensors), str(method), scheme, modules)
