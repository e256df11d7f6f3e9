"""The plugin's library for an engine: the one that the user gave, or our own, compiled once for each kind of GPU."""

from __future__ import annotations

from dataclasses import replace

from trtbuild.engine.request import HardwareCompatibility
from trtbuild.hashing import Hasher
from trtbuild.options import EngineOptions
from trtbuild.plugin.build import build_plugin, own_targets
from trtbuild.plugin.info import PLUGIN_LIBRARY
from trtbuild.plugin.sources import find_sources
from trtbuild.plugin.toolchain import find_toolchain
from trtbuild.stages import Stages
from trtbuild.store import Store, key_of


def with_plugin(options: EngineOptions, stages: Stages, store: Store) -> EngineOptions:
    """`options` with a library of the attention plugin: as they are if they name any, else with one for this machine's
    GPUs, or for all if the plan is to run on all, which is compiled unless it was before.

    Raises InputError where it is to be compiled and a tool is missing, BuildError where it does not compile.
    """
    if options.builder.plugin_libraries:
        return options
    sources, tools = find_sources(), find_toolchain()
    everywhere = options.builder.hardware_compatibility is HardwareCompatibility.AMPERE_PLUS
    targets = tools.nvcc.targets if everywhere else own_targets()
    files = sorted({file for root in (sources.root, sources.kernels) for file in root.rglob("*") if file.is_file()})
    key = key_of(sources=Hasher().files(tuple(files)), targets=targets, nvcc=tools.nvcc.version, headers=tools.headers)
    library = store.place("plugin", key) / "built" / PLUGIN_LIBRARY
    if not library.is_file():
        with store.keep("plugin", key) as place:
            build_plugin(place / "built", targets, stages=stages, sources=sources, toolchain=tools)
    return replace(options, builder=replace(options.builder, plugin_libraries=(library,)))
