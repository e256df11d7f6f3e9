"""The kernels on a GPU: the library that nvcc built, through ctypes, with torch's memory."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np

from tests.plugins.cases import DTYPES, Array, Attention, Problem, declared


class Cuda:
    """Runs problems of `tests.plugins.cases` on device 0 with the C API of a built library."""

    def __init__(self, library: Path) -> None:
        import torch

        self.torch = torch
        self.multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
        self.library = declared(ctypes.CDLL(str(library)))

    def workspace(self, fields: Attention) -> Any:
        """Bytes on the device, poisoned; `fields` points to them."""
        room = max(16, self.library.trtbuild_attention_workspace(fields))
        memory = self.torch.full((room,), 0xFF, dtype=self.torch.uint8, device="cuda")
        fields.workspace = memory.data_ptr()
        return memory

    def run(self, fields: Attention, step: str = "attention_run") -> None:
        """Launch on torch's stream. Raises RuntimeError with CUDA's error number."""
        stream = self.torch.cuda.current_stream().cuda_stream
        error = getattr(self.library, f"trtbuild_{step}")(fields, stream)
        if error:
            raise RuntimeError(f"trtbuild_{step} gave CUDA error {error}")

    def __call__(self, given: Problem) -> tuple[Array, Array]:
        """The outputs and the pages after one step."""
        torch, fields = self.torch, given.fields
        found = self.library.trtbuild_attention_check(fields)
        assert found is None, found
        on_device = {
            name: torch.from_numpy(array.reshape(-1).view(np.uint8).copy()).cuda()
            for name, array in given.arrays.items()
        }
        for name, memory in on_device.items():
            setattr(fields, name, memory.data_ptr())
        kept = self.workspace(fields)
        self.run(fields)
        torch.cuda.synchronize()
        del kept
        dtype = DTYPES[given.case.dtype][1]
        output, pages = (
            on_device[name].cpu().numpy().view(dtype).reshape(given.arrays[name].shape)
            for name in ("output", "kv_pages")
        )
        return output, pages
