"""TensorRT's and pycuda's calls that the runner makes, over host memory and ONNX Runtime.

The machine that runs these tests has no GPU. What can go wrong in the runner without one is what it tells TensorRT:
shapes outside the profile, addresses that do not fit the slots, stale bindings, a context that is not current. This
stand-in holds it to those rules and computes with the real graph.
"""

from __future__ import annotations

import ctypes
import enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime as ort

from trtbuild.serving.config import Profile


class Memory:
    """Device memory: 256-byte aligned, filled with NaN bytes as fresh memory may be."""

    def __init__(self, size: int) -> None:
        self.buffer = np.full(size + 256, 0xFF, np.uint8)
        self.address = -(-self.buffer.ctypes.data // 256) * 256
        self.freed = False

    def __int__(self) -> int:
        return self.address

    def free(self) -> None:
        assert not self.freed
        self.freed = True


class Cuda:
    """pycuda.driver with one GPU of a given compute capability."""

    class Error(Exception):
        pass

    class MemoryError(Error):
        pass

    def __init__(self, capability: tuple[int, int] = (8, 9), memory: int = 1 << 30) -> None:
        self.capability, self.left, self.depth, self.memories = capability, memory, 0, []
        self.Context = SimpleNamespace(pop=self._pop)

    def _pop(self) -> None:
        self.depth -= 1
        assert self.depth >= 0

    def _push(self) -> None:
        self.depth += 1

    def init(self) -> None:
        pass

    def Device(self, number: int) -> Any:
        if number != 0:
            raise self.Error("invalid device ordinal")
        context = SimpleNamespace(push=self._push, detach=lambda: None)
        return SimpleNamespace(
            compute_capability=lambda: self.capability,
            name=lambda: "stand-in",
            retain_primary_context=lambda: context,
        )

    def Stream(self) -> Any:
        return SimpleNamespace(handle=77, synchronize=lambda: None)

    def mem_alloc(self, size: int) -> Memory:
        assert self.depth == 1
        self.left -= size
        if self.left < 0:
            raise self.MemoryError("out of memory")
        self.memories.append(Memory(size))
        return self.memories[-1]

    def pagelocked_empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        assert self.depth == 1
        return np.empty(shape, dtype)

    def memset_d8_async(self, target: int, value: int, size: int, stream: Any) -> None:
        assert self.depth == 1
        ctypes.memset(target, value, size)

    def memcpy_dtod_async(self, target: int, source: int, size: int, stream: Any) -> None:
        assert self.depth == 1
        ctypes.memmove(target, source, size)

    def memcpy_htod_async(self, target: int, source: np.ndarray, stream: Any) -> None:
        assert self.depth == 1 and source.flags.c_contiguous
        ctypes.memmove(target, source.ctypes.data, source.nbytes)

    def memcpy_dtoh_async(self, target: np.ndarray, source: int, stream: Any) -> None:
        assert self.depth == 1 and target.flags.c_contiguous
        ctypes.memmove(target.ctypes.data, source, target.nbytes)


class Severity(enum.Enum):
    INTERNAL_ERROR = 0
    ERROR = 1
    WARNING = 2


class TensorRT:
    """The module `tensorrt`: deserialises the path of an ONNX graph as if it were a plan with `profiles`, which needs
    the plugins of the library `plugin`."""

    __version__ = "10.16.1.11"
    DataType = SimpleNamespace(FLOAT="FLOAT", HALF="HALF", BF16="BF16")
    ExecutionContextAllocationStrategy = SimpleNamespace(ON_PROFILE_CHANGE=1)

    class ILogger:
        Severity = Severity

    def __init__(self, profiles: tuple[Profile, ...], plugin: str | None = None) -> None:
        self.profiles, self.plugin = profiles, plugin

    def Runtime(self, logger: Any) -> Any:
        loaded = []

        def load_library(path: str) -> object:
            if not Path(path).is_file():
                logger.log(Severity.ERROR, "cannot open shared object file")
                return None
            loaded.append(Path(path).name)
            return path

        def deserialize(plan: Any) -> Any:
            path = bytes(plan).decode()
            if not Path(path).is_file():
                logger.log(Severity.ERROR, "magic tag does not match")
                return None
            if self.plugin is not None and self.plugin not in loaded:
                logger.log(Severity.ERROR, "Cannot find plugin: RopeAlibiAttention, version: 1, namespace:trtbuild.")
                return None
            return Engine(path, self.profiles)

        registry = SimpleNamespace(load_library=load_library)
        return SimpleNamespace(deserialize_cuda_engine=deserialize, get_plugin_registry=lambda: registry)


class Engine:
    streamable_weights_size = 0

    def __init__(self, path: str, profiles: tuple[Profile, ...]) -> None:
        options = ort.SessionOptions()
        options.log_severity_level = 3
        self.session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.profiles = profiles
        self.tensors = [*self.session.get_inputs(), *self.session.get_outputs()]
        self.num_io_tensors = len(self.tensors)
        self.num_optimization_profiles = len(profiles)

    def get_tensor_name(self, index: int) -> str:
        return str(self.tensors[index].name)

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        shape = next(t.shape for t in self.tensors if t.name == name)
        return tuple(-1 if isinstance(size, str) else size for size in shape)

    def get_tensor_dtype(self, name: str) -> str:
        types = {"tensor(float)": "FLOAT", "tensor(int64)": "INT64", "tensor(int32)": "INT32"}
        return types[next(t.type for t in self.tensors if t.name == name)]

    def create_execution_context(self, strategy: int) -> ExecutionContext:
        return ExecutionContext(self)


class ExecutionContext:
    def __init__(self, engine: Engine) -> None:
        self.engine, self.shapes, self.addresses, self.profile = engine, {}, {}, None
        self.shapes_set = 0

    def set_optimization_profile_async(self, index: int, stream: int) -> bool:
        self.profile = self.engine.profiles[index]
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self.shapes[name] = shape
        self.shapes_set += 1
        return True

    def set_tensor_address(self, name: str, address: int) -> bool:
        assert address % 256 == 0
        self.addresses[name] = address
        return True

    def execute_async_v3(self, stream: int) -> bool:
        if not self._in_profile():
            return False
        binding = self.engine.session.io_binding()
        types = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32}
        for tensor in self.engine.session.get_inputs():
            shape, address = self.shapes[tensor.name], self.addresses[tensor.name]
            binding.bind_input(tensor.name, "cpu", 0, types[tensor.type], shape, address)
        for tensor in self.engine.session.get_outputs():
            if tensor.name == "logits":
                shape = (*self.shapes["logits_positions"], tensor.shape[-1])
            else:
                past = tensor.name.replace("present", "past").replace("_out", "")
                shape = self.shapes[past]
                assert self.addresses[tensor.name] == self.addresses[past]
            binding.bind_output(tensor.name, "cpu", 0, np.float32, shape, self.addresses[tensor.name])
        self.engine.session.run_with_iobinding(binding)
        return True

    def _in_profile(self) -> bool:
        """All shapes are of one request that the profile covers."""
        shapes, sizes = self.shapes, (self.shapes["input_ids"])
        if "block_table" not in shapes:
            batch, tokens = sizes
            (kv,) = shapes["cache_positions"]
            assert all(shape[0] == batch for name, shape in shapes.items() if name != "cache_positions")
            return bool(self.profile.covers(batch, tokens, kv))
        (tokens,), (batch, width) = sizes, shapes["block_table"]
        assert shapes["cu_seqlens"] == (batch + 1,) and shapes["past_lengths"] == (batch,)
        assert shapes.get("position_ids", sizes) == sizes
        page = shapes["kv_pages.0"][3]
        least, _, most = (-(-kv // page) for kv in self.profile.kv)
        return bool(self.profile.covers(batch, tokens, self.profile.kv[0]) and least <= width <= most)
