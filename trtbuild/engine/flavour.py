"""The two flavours of TensorRT behind one interface. Every difference between them is in `rtx.py` or `native.py`."""

from __future__ import annotations

from typing import Any, Protocol

from trtbuild.engine.gpu import Gpu
from trtbuild.engine.job import Job
from trtbuild.engine.preflight import PluginNode
from trtbuild.engine.request import BuildOptions, Flavour


class Adapter(Protocol):
    """What one flavour does its own way. `trt` is its Python module, `config` an IBuilderConfig, and so on."""

    name: str
    """As in messages."""
    versions: tuple[tuple[int, int], tuple[int, int]]
    """The first version that works and the first that does not, as (major, minor)."""
    versions_reason: str
    install: str
    """What to do where it is not installed."""
    needs_gpu: bool
    """Whether building takes a GPU."""

    def offered_targets(self, trt: Any) -> tuple[str, ...]:
        """Every compute capability that can be named; empty where only the GPU at hand can be built for."""

    def refuse(self, options: BuildOptions, targets: tuple[str, ...], gpus: tuple[Gpu, ...]) -> None:
        """Raise InputError for options and targets that this flavour cannot honour, with the reason."""

    def refuse_plugins(self, plugins: tuple[PluginNode, ...]) -> None:
        """Raise InputError if the graph needs plugins and this flavour has none."""

    def network_flags(self, trt: Any) -> int:
        """create_network's argument for a strongly typed network."""

    def load_plugins(self, trt: Any, logger: Any, builder: Any, parser: Any, job: Job) -> None:
        """Before parsing: raise InputError unless each node that needs a plugin has one."""

    def parse(self, parser: Any, job: Job) -> bool:
        """Read the ONNX file into the network; False if the parser refuses it."""

    def configure(self, trt: Any, config: Any, job: Job) -> None:
        """Apply targets and the options that only this flavour has."""

    def finish(self, trt: Any, config: Any, job: Job) -> tuple[str, ...]:
        """After the plan is written; returns warnings, as nothing here is worth losing the plan for."""


def adapter_for(flavour: Flavour) -> Adapter:
    if flavour is Flavour.RTX:
        from trtbuild.engine.rtx import RtxAdapter

        return RtxAdapter()
    from trtbuild.engine.native import NativeAdapter

    return NativeAdapter()
