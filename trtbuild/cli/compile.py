"""`trtbuild compile`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Optional

import typer

from trtbuild.cli import arguments as a
from trtbuild.cli.console import output, print_json, print_warning, progress, size_text, stage_table
from trtbuild.engine.request import HardwareCompatibility
from trtbuild.options import AttentionForm, Backend


def compile_command(
    model: a.ModelArgument,
    out: a.OutOption,
    precision: a.PrecisionOption = None,
    profiles: a.ProfilesOption = "chat",
    slots: a.SlotsOption = None,
    capacity: a.CapacityOption = None,
    backend: a.BackendOption = Backend.AUTO,
    target: a.TargetOption = None,
    name: Annotated[Optional[str], typer.Option(help="The model's name in Triton.")] = None,
    cpu_fallback: Annotated[
        bool, typer.Option(help="Also place the graph that ONNX Runtime serves where there is no GPU.")
    ] = True,
    slo: Annotated[
        Optional[list[str]],
        typer.Option(
            metavar="LIMITS",
            help="What the scheduler aims at, like ttft=1s,itl=100ms, or 1:ttft=300ms for priority 1. May be repeated.",
        ),
    ] = None,
    activations: a.ActivationsOption = None,
    block_size: a.BlockOption = None,
    int4_layers: a.LayersOption = "attention,mlp",
    optimization_level: a.LevelOption = None,
    workspace_mib: a.WorkspaceOption = None,
    version_compatible: a.VersionCompatibleOption = False,
    hardware_compatibility: a.HardwareOption = HardwareCompatibility.NONE,
    weight_streaming: a.StreamingOption = False,
    timing_cache: a.TimingOption = None,
    revision: a.RevisionOption = None,
    ignore_config: a.IgnoreOption = None,
    copy_weights: a.CopyOption = False,
    audit: a.AuditOption = None,
    attention: a.AttentionOption = AttentionForm.NATIVE,
    page_size: a.PageOption = None,
    plugin_library: a.PluginOption = None,
    force: a.ForceOption = False,
    cache: a.CacheOption = None,
    json: a.JsonOption = False,
) -> None:
    """Compile a model: ONNX, a TensorRT engine, and a Triton model repository that serves it.

    ```
    trtbuild compile ./SmolLM2-135M-Instruct --precision int4 --out smollm2
    trtbuild compile smollm2.gguf --backend rtx --target sm_86,sm_89 --out smollm2
    trtbuild compile Qwen/Qwen3-8B --profiles long-context --slots 4 --out qwen3
    trtbuild compile ./SmolLM2-135M-Instruct --slo ttft=2s,itl=150ms --slo 1:ttft=500ms --out smollm2
    trtbuild compile ./SmolLM2-135M-Instruct --attention plugin --backend tensorrt --out paged
    trtbuild compile ./SmolLM2-135M-Instruct --attention plugin --backend onnx --out paged
    ```
    """
    from trtbuild.options import CompileOptions
    from trtbuild.pipeline import compile
    from trtbuild.slo import parse_slo

    options = CompileOptions(
        export=a.export_options(
            precision,
            activations,
            block_size,
            int4_layers,
            revision,
            ignore_config,
            copy_weights,
            cache,
            audit,
            attention,
            page_size,
        ),
        engine=a.engine_options(
            backend,
            target,
            optimization_level,
            workspace_mib,
            version_compatible,
            hardware_compatibility,
            weight_streaming,
            timing_cache,
            plugin_library or (),
        ),
        profiles=profiles,
        slots=slots,
        capacity=capacity,
        name=name,
        cpu_fallback=cpu_fallback,
        slo=parse_slo(slo or ()),
        force=force,
    )
    with progress(quiet=json) as shown:
        result = compile(model, out, options, progress=shown)
    engine = result.engine
    if json:
        print_json(
            {
                "folder": result.folder,
                "model_repository": result.repository,
                "model_name": result.model_name,
                "engine": None
                if engine is None
                else {
                    "file": engine.file,
                    "flavour": engine.flavour.value,
                    "version": engine.version,
                    "targets": engine.targets,
                    "bytes": engine.bytes,
                    "realised": asdict(engine.realised),
                },
                "missing_builder": result.missing_builder,
                "kv_cache_bytes": result.kv_cache_bytes,
                "notes": result.notes,
                "stages": [asdict(stage) for stage in result.stages],
            }
        )
    else:
        output.print(stage_table(result.stages))
        for note in result.notes:
            print_warning(note)
        output.print(f"The KV cache takes {size_text(result.kv_cache_bytes)} of device memory.")
        output.print(f"{result.folder} holds the model {result.model_name!r}; next: trtbuild serve {result.folder}")
    if result.missing_builder is not None:
        print_warning(f"There is no engine, only ONNX. {result.missing_builder}")
        if backend is not Backend.AUTO:
            raise typer.Exit(1)
