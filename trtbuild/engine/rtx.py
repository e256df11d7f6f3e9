"""TensorRT-RTX 1.7: builds without a GPU, for named compute capabilities."""

from __future__ import annotations

from typing import Any

from trtbuild.engine.gpu import Gpu
from trtbuild.engine.job import Job
from trtbuild.engine.preflight import PluginNode
from trtbuild.engine.request import BuildOptions, HardwareCompatibility
from trtbuild.engine.targets import refuse_unknown
from trtbuild.errors import InputError


class RtxAdapter:
    """`tensorrt_rtx`. Seen with 1.7.1 on a machine without a GPU."""

    name = "TensorRT-RTX"
    versions = ((1, 7), (2, 0))
    versions_reason = "1.7 is the first that builds on a machine without a GPU"
    install = "pip install 'trtbuild[rtx]'"
    needs_gpu = False

    def offered_targets(self, trt: Any) -> tuple[str, ...]:
        return tuple(f"sm_{name[2:]}" for name in trt.ComputeCapability.__members__ if name.startswith("SM"))

    def refuse(self, options: BuildOptions, targets: tuple[str, ...], gpus: tuple[Gpu, ...]) -> None:
        if options.version_compatible:
            raise InputError(
                "TensorRT-RTX builds no version-compatible plans: it has no lean runtime to put into them. "
                "Build with the version that will run the plan."
            )
        if options.hardware_compatibility is not HardwareCompatibility.NONE:
            raise InputError(
                "TensorRT-RTX has no hardware compatibility levels ('unsupported', it says). Name every compute "
                "capability instead: --target sm_86,sm_89."
            )
        if options.timing_cache is not None:
            raise InputError(
                "TensorRT-RTX times no kernels while it builds, and touching its timing cache makes it look for a GPU. "
                "Leave the timing cache out."
            )
        if options.plugin_libraries:
            raise InputError(f"TensorRT-RTX has no plugins; {options.plugin_libraries[0]} cannot be used with it.")

    def refuse_plugins(self, plugins: tuple[PluginNode, ...]) -> None:
        # Seen: a node that TensorRT-RTX resolves to a plugin is refused by its parser or ends its process.
        if plugins:
            first = plugins[0]
            more = f" (and {len(plugins) - 1} more nodes)" if len(plugins) > 1 else ""
            raise InputError(
                f"Node '{first.node}' is a '{first.name}'{more}, which needs a plugin, and TensorRT-RTX has none. "
                "Export with --attention native, or build with --backend tensorrt."
            )

    def network_flags(self, trt: Any) -> int:
        return 0  # every network is strongly typed

    def load_plugins(self, trt: Any, logger: Any, builder: Any, parser: Any, job: Job) -> None:
        pass  # there are none

    def parse(self, parser: Any, job: Job) -> bool:
        return bool(parser.parse_from_file(str(job.onnx_file)))

    def configure(self, trt: Any, config: Any, job: Job) -> None:
        refuse_unknown(job.targets, self.offered_targets(trt), f"{self.name} {trt.__version__}")
        # With none named, TensorRT-RTX builds for everything it offers from compute capability 8.0 on.
        if job.targets:
            config.num_compute_capabilities = len(job.targets)
            for index, target in enumerate(job.targets):
                config.set_compute_capability(getattr(trt.ComputeCapability, f"SM{target[3:]}"), index)

    def finish(self, trt: Any, config: Any, job: Job) -> tuple[str, ...]:
        return ()
