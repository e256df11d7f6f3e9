"""Writing a safetensors file whose tensors' sizes are known beforehand, in any order and from several threads."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType

from trtbuild.checkpoint.base import TensorRef
from trtbuild.dtypes import DType

ALIGNMENT = 64
"""The data begin at a multiple of this in the file; each tensor at a multiple of its element's size."""

CHUNK = 1 << 22


@dataclass(frozen=True, slots=True)
class Planned:
    """A tensor to be written."""

    name: str
    dtype: DType
    shape: tuple[int, ...]

    @property
    def length(self) -> int:
        return prod(self.shape) * self.dtype.size


class WeightsFile:
    """An open safetensors file; tensors are written at the places that the plan, in its order, gives them."""

    def __init__(
        self, file: Path, plan: Sequence[Planned], metadata: Mapping[str, str], *, resume: bool = False
    ) -> None:
        """With `resume`, what an earlier process wrote into the file, by the same plan, stays."""
        # The format allows no holes between tensors, so it is the plan's order that aligns them.
        header: dict[str, object] = {"__metadata__": dict(sorted(metadata.items()))}
        end = 0
        for tensor in plan:
            header[tensor.name] = {
                "dtype": tensor.dtype.value,
                "shape": list(tensor.shape),
                "data_offsets": [end, end + tensor.length],
            }
            end += tensor.length
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-(len(text) + 8) % ALIGNMENT)
        start = 8 + len(text)
        self.refs: dict[str, TensorRef] = {}
        for tensor in plan:
            offset = header[tensor.name]["data_offsets"][0]  # type: ignore[index]
            self.refs[tensor.name] = TensorRef(
                tensor.name, tensor.dtype, tensor.shape, file, start + offset, tensor.length
            )
        self._handle = os.open(file, os.O_WRONLY | os.O_CREAT | (0 if resume else os.O_TRUNC), 0o644)
        try:
            # Reserves the space now: a full disk shows before the work, not after it.
            os.posix_fallocate(self._handle, 0, start + end)
            _write_all(self._handle, len(text).to_bytes(8, "little") + text, 0)
        except BaseException:
            os.close(self._handle)
            raise

    def write(self, name: str, data: bytes | memoryview, skip: int = 0) -> None:
        """Write `data` at `skip` bytes into the tensor."""
        _write_all(self._handle, data, self.refs[name].offset + skip)

    def copy(self, name: str, source: TensorRef) -> None:
        """Copy the tensor's bytes from another file, a chunk at a time."""
        with source.file.open("rb") as stream:
            stream.seek(source.offset)
            for skip in range(0, source.length, CHUNK):
                self.write(name, stream.read(min(CHUNK, source.length - skip)), skip)

    def sync(self) -> None:
        """Have what was written so far on the disk."""
        os.fsync(self._handle)

    def __enter__(self) -> WeightsFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._handle)


def _write_all(handle: int, data: bytes | memoryview, offset: int) -> None:
    view = memoryview(data).cast("B")
    while view:
        written = os.pwrite(handle, view, offset)
        view, offset = view[written:], offset + written
