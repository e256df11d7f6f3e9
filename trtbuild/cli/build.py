"""`trtbuild build`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from trtbuild.cli import arguments as a
from trtbuild.cli.console import output, print_json, print_warning, progress, stage_table
from trtbuild.engine.request import HardwareCompatibility
from trtbuild.options import Backend


def build_command(
    onnx_file: Annotated[
        Path, typer.Argument(metavar="ONNX", help="The model.onnx of `trtbuild export`, or its folder.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The engine's file.")],
    profiles: a.ProfilesOption = "chat",
    slots: a.SlotsOption = None,
    capacity: a.CapacityOption = None,
    backend: a.BackendOption = Backend.AUTO,
    target: a.TargetOption = None,
    optimization_level: a.LevelOption = None,
    workspace_mib: a.WorkspaceOption = None,
    version_compatible: a.VersionCompatibleOption = False,
    hardware_compatibility: a.HardwareOption = HardwareCompatibility.NONE,
    weight_streaming: a.StreamingOption = False,
    timing_cache: a.TimingOption = None,
    plugin_library: a.PluginOption = None,
    force: a.ForceOption = False,
    cache: a.CacheOption = None,
    json: a.JsonOption = False,
) -> None:
    """Build an engine from an exported decoder.

    ```
    trtbuild build smollm2-onnx --out smollm2.plan --target sm_89
    trtbuild build smollm2-onnx --out smollm2.plan --backend tensorrt --profiles my-profiles.yaml
    trtbuild build smollm2-paged --out smollm2.plan --plugin-library plugin/libtrtbuild_plugin.so
    ```
    """
    from trtbuild.building import build, read_profiles
    from trtbuild.exporting import MODEL_FILE
    from trtbuild.progress import Silent
    from trtbuild.stages import Stages
    from trtbuild.store import Store, default_cache

    options = a.engine_options(
        backend,
        target,
        optimization_level,
        workspace_mib,
        version_compatible,
        hardware_compatibility,
        weight_streaming,
        timing_cache,
        plugin_library or (),
    )
    with progress(quiet=json) as shown:
        stages = Stages(shown or Silent())
        result = build(
            onnx_file / MODEL_FILE if onnx_file.is_dir() else onnx_file,
            out,
            profiles=read_profiles(profiles, slots, capacity),
            options=options,
            stages=stages,
            store=Store(cache or default_cache()),
            force=force,
        )
    if json:
        print_json({**asdict(result), "flavour": result.flavour.value, "stages": [asdict(s) for s in stages.done]})
        return
    output.print(stage_table(stages.done))
    for note in result.messages:
        print_warning(note)
    output.print(f"{result.file}: {result.flavour.value} {result.version}")
