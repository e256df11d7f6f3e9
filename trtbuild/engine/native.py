"""TensorRT 10.x: builds on the GPU that will run the plan, times kernels there, and takes plugins."""

from __future__ import annotations

from typing import Any

from trtbuild.engine import timing_cache
from trtbuild.engine.gpu import Gpu, devices
from trtbuild.engine.job import Job
from trtbuild.engine.preflight import PluginNode, read_model
from trtbuild.engine.request import BuildOptions, HardwareCompatibility
from trtbuild.errors import InputError, TrtbuildError
from trtbuild.graph.operator import strip_functions


class NativeAdapter:
    """`tensorrt`. Written from the documentation of 10.16; the conformance test holds it to that version's API."""

    name = "TensorRT"
    versions = ((10, 15), (11, 0))
    versions_reason = "10.15 is the first whose parser takes the graph's operators, and 11 another API"
    install = "pip install 'trtbuild[tensorrt]'"
    needs_gpu = True

    def offered_targets(self, trt: Any) -> tuple[str, ...]:
        return ()

    def refuse(self, options: BuildOptions, targets: tuple[str, ...], gpus: tuple[Gpu, ...]) -> None:
        if not gpus:
            raise InputError(
                "TensorRT builds on the GPU that will run the plan, and no NVIDIA GPU or driver is visible here. "
                "Build on such a machine, or use --backend rtx, which builds without one."
            )
        # The CUDA runtime's current device is the first visible one.
        own = gpus[0]
        for target in targets:
            if target != own.target:
                raise InputError(
                    f"TensorRT builds for the GPU it runs on, {own.name} ({own.target}), not for {target}. Leave the "
                    "target out, choose the device with CUDA_VISIBLE_DEVICES, or use --backend rtx."
                )
        if options.hardware_compatibility is HardwareCompatibility.AMPERE_PLUS and int(own.target[3:]) < 80:
            raise InputError(
                f"Plans compatible with Ampere and later are built on such a GPU, and {own.name} is {own.target}."
            )

    def refuse_plugins(self, plugins: tuple[PluginNode, ...]) -> None:
        pass  # `load_plugins` compares them with the registry, which lives in the builder's process

    def network_flags(self, trt: Any) -> int:
        return 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)

    def load_plugins(self, trt: Any, logger: Any, builder: Any, parser: Any, job: Job) -> None:
        trt.init_libnvinfer_plugins(logger, "")
        registry = builder.get_plugin_registry()
        for library in job.options.plugin_libraries:
            if registry.load_library(str(library)) is None:
                raise InputError(
                    f"TensorRT cannot load the plugin library {library}. It must exist, find its own libraries and "
                    "export getCreators."
                )
        wanted = [plugin for plugin in job.facts.plugins if not parser.supports_operator(plugin.name)]
        if wanted:
            refuse_missing(wanted, [_identity(creator) for creator in registry.all_creators])

    def parse(self, parser: Any, job: Job) -> bool:
        if not job.facts.plugins:
            return bool(parser.parse_from_file(str(job.onnx_file)))
        # The parser prefers a function of the model's own to a plugin. The path is where the weights are looked for.
        model = read_model(job.onnx_file)
        strip_functions(model)
        return bool(parser.parse(model.SerializeToString(), str(job.onnx_file)))

    def configure(self, trt: Any, config: Any, job: Job) -> None:
        options = job.options
        if options.version_compatible:
            config.set_flag(trt.BuilderFlag.VERSION_COMPATIBLE)
        if options.hardware_compatibility is HardwareCompatibility.AMPERE_PLUS:
            config.hardware_compatibility_level = trt.HardwareCompatibilityLevel.AMPERE_PLUS
        elif options.hardware_compatibility is HardwareCompatibility.SAME_COMPUTE_CAPABILITY:
            config.hardware_compatibility_level = trt.HardwareCompatibilityLevel.SAME_COMPUTE_CAPABILITY
        if options.timing_cache is not None:
            timing_cache.attach(config, timing_cache.file_for(options.timing_cache, trt.__version__, devices()[0].name))
        if options.plugin_libraries:
            # The plugin's aliased inputs (the paged cache is written in place) act only with this.
            config.set_preview_feature(trt.PreviewFeature.ALIASED_PLUGIN_IO_10_03, True)
            if options.version_compatible:
                config.plugins_to_serialize = [str(library) for library in options.plugin_libraries]

    def finish(self, trt: Any, config: Any, job: Job) -> tuple[str, ...]:
        folder = job.options.timing_cache
        if folder is None:
            return ()
        try:
            timing_cache.store(config, timing_cache.file_for(folder, trt.__version__, devices()[0].name))
        except (OSError, TrtbuildError) as error:
            return (f"The timing cache was not kept: {error}",)
        return ()


def refuse_missing(wanted: list[PluginNode], registered: list[tuple[str, str, str]]) -> None:
    """Raise InputError for the first of `wanted` that is not `registered` as (name, version, namespace)."""
    for plugin in wanted:
        if (plugin.name, plugin.version, plugin.namespace) in registered:
            continue
        alike = ", ".join(_show(*entry) for entry in registered if entry[0] == plugin.name)
        raise InputError(
            f"Node '{plugin.node}' needs the plugin {_show(plugin.name, plugin.version, plugin.namespace)}. "
            f"Registered {f'is {alike}' if alike else f'are {len(registered)} others, none of that name'}. "
            "Give the library that has it."
        )


def _identity(creator: Any) -> tuple[str, str, str]:
    return (creator.name, creator.plugin_version, creator.plugin_namespace)


def _show(name: str, version: str, namespace: str) -> str:
    return f"'{name}' version {version} in " + (f"namespace '{namespace}'" if namespace else "no namespace")
