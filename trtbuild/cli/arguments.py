"""Arguments that several commands take, each written once."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Optional

import typer

from trtbuild.dtypes import DType
from trtbuild.engine.request import BuildOptions, HardwareCompatibility
from trtbuild.errors import InputError
from trtbuild.options import AttentionForm, Backend, EngineOptions, ExportOptions, Precision
from trtbuild.quantize.stored import Int4Layers
from trtbuild.store import default_cache


class Activations(str, Enum):
    """What an INT4 network computes in."""

    FP16 = "fp16"
    BF16 = "bf16"
    FP32 = "fp32"


ACTIVATION_TYPES = {Activations.FP16: DType.F16, Activations.BF16: DType.BF16, Activations.FP32: DType.F32}

ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="A checkpoint's folder, a .gguf file, or a hub id (org/name[@revision]).")
]
OutOption = Annotated[Path, typer.Option("--out", "-o", help="The folder to make.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace what exists at --out.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout, and no progress.")]
CacheOption = Annotated[
    Optional[Path],
    typer.Option("--cache", envvar="TRTBUILD_CACHE", help="Where results of slow stages are kept."),
]
PrecisionOption = Annotated[
    Optional[Precision],
    typer.Option("--precision", "-p", help="fp32, fp16, bf16 or int4 (weights); the weights' own type if not given."),
]
ActivationsOption = Annotated[
    Optional[Activations],
    typer.Option(help="With int4: what the network computes in; bf16 for a BF16 checkpoint, else fp16."),
]
BlockOption = Annotated[
    Optional[int],
    typer.Option("--block-size", help="With int4: 128, 64 or 32; the largest that divides each width if not given."),
]
LayersOption = Annotated[
    str, typer.Option("--int4-layers", help="With int4: which weights, of attention, mlp, head and embedding.")
]
RevisionOption = Annotated[Optional[str], typer.Option(help="The hub's branch, tag or commit.")]
IgnoreOption = Annotated[
    Optional[list[str]],
    typer.Option("--ignore-config", help="A field of config.json that you know leaves the arithmetic alone."),
]
CopyOption = Annotated[
    bool,
    typer.Option("--copy-weights", help="Copy weight files instead of linking them (for tools that refuse links)."),
]
BackendOption = Annotated[
    Backend,
    typer.Option(help="tensorrt (on its GPU), rtx (no GPU needed), onnx (no engine), or the best of these there is."),
]
TargetOption = Annotated[
    Optional[str],
    typer.Option("--target", "-t", help="GPUs to build for, such as sm_86,sm_89 (rtx: all from sm_80 if not given)."),
]
LevelOption = Annotated[
    Optional[int],
    typer.Option("--optimization-level", help="0 (fastest build) to 5 (fastest engine)."),
]
WorkspaceOption = Annotated[
    Optional[int],
    typer.Option("--workspace-mib", help="The most device memory for a layer's scratch space, in MiB."),
]
VersionCompatibleOption = Annotated[
    bool, typer.Option("--version-compatible", help="tensorrt: run on later releases of the same major version too.")
]
HardwareOption = Annotated[
    HardwareCompatibility, typer.Option("--hardware-compatibility", help="tensorrt: on which other GPUs it must run.")
]
StreamingOption = Annotated[
    bool, typer.Option("--weight-streaming", help="Weights may stay in host memory and be streamed.")
]
TimingOption = Annotated[
    Optional[Path],
    typer.Option("--timing-cache", help="tensorrt: a folder of timing caches, one a version and device."),
]
ProfilesOption = Annotated[
    str, typer.Option("--profiles", help="chat, long-context, batch-scoring, or a YAML file of shape profiles.")
]
RecipeOption = Annotated[str, typer.Option(help="Which text and how much of it: default, quick, or a YAML file.")]
DataOption = Annotated[
    Optional[list[str]],
    typer.Option(
        help="Text (documents between lines of ---), JSONL or Parquet, in place of the recipe's, or such a file of a "
        "hub data set: hub:org/name/path. May be repeated."
    ),
]
SamplesOption = Annotated[Optional[int], typer.Option(min=1, help="Sequences, in place of the recipe's number.")]
LengthOption = Annotated[Optional[int], typer.Option(min=16, help="Tokens of each, in place of the recipe's.")]
SeedOption = Annotated[Optional[int], typer.Option(help="Of which samples are taken, in place of the recipe's.")]
AuditOption = Annotated[
    Optional[Path],
    typer.Option("--audit", help="With FP16: what `trtbuild audit` wrote; parts that FP16 cannot hold stay in FP32."),
]
AttentionOption = Annotated[
    AttentionForm,
    typer.Option(
        "--attention",
        help="native (ONNX operators, static cache: for every runtime) or plugin (ragged tokens, paged cache: for "
        "TensorRT with trtbuild's plugin; TensorRT-RTX has none).",
    ),
]
PageOption = Annotated[
    Optional[int],
    typer.Option("--page-size", help="With --attention plugin: positions of a page of the cache, 16, 32, 64 or 128."),
]
PluginOption = Annotated[
    Optional[list[Path]],
    typer.Option(
        "--plugin-library",
        exists=True,
        dir_okay=False,
        help="For TensorRT: a library of plugins, such as `trtbuild plugin build` makes; may be repeated.",
    ),
]
SlotsOption = Annotated[Optional[int], typer.Option(help="Sequences served at once.")]
CapacityOption = Annotated[Optional[int], typer.Option(help="Positions of each sequence's KV cache.")]


def export_options(
    precision: Precision | None,
    activations: Activations | None,
    block_size: int | None,
    int4_layers: str,
    revision: str | None,
    ignore_config: list[str] | None,
    copy_weights: bool,
    cache: Path | None,
    audit: Path | None = None,
    attention: AttentionForm = AttentionForm.NATIVE,
    page_size: int | None = None,
) -> ExportOptions:
    return ExportOptions(
        precision=precision,
        activations=None if activations is None else ACTIVATION_TYPES[activations],
        block_size=block_size,
        int4_layers=parse_layers(int4_layers),
        revision=revision,
        ignore_config=tuple(ignore_config or ()),
        copy_weights=copy_weights,
        cache=cache or default_cache(),
        audit=audit,
        attention=attention,
        page_size=page_size,
    )


def engine_options(
    backend: Backend,
    target: str | None,
    optimization_level: int | None,
    workspace_mib: int | None,
    version_compatible: bool,
    hardware_compatibility: HardwareCompatibility,
    weight_streaming: bool,
    timing_cache: Path | None,
    plugin_libraries: Sequence[Path] = (),
) -> EngineOptions:
    from trtbuild.engine.targets import parse_targets

    return EngineOptions(
        backend=backend,
        targets=() if target is None else parse_targets(target),
        builder=BuildOptions(
            optimization_level=optimization_level,
            workspace_bytes=None if workspace_mib is None else workspace_mib << 20,
            version_compatible=version_compatible,
            hardware_compatibility=hardware_compatibility,
            weight_streaming=weight_streaming,
            timing_cache=timing_cache,
            plugin_libraries=tuple(plugin_libraries),
        ),
    )


def parse_layers(text: str) -> frozenset[Int4Layers]:
    """'attention,mlp' to the groups; InputError for any other word."""
    groups = []
    known = ", ".join(group.value for group in Int4Layers)
    for word in filter(None, (part.strip() for part in text.split(","))):
        try:
            groups.append(Int4Layers(word))
        except ValueError:
            raise InputError(f"--int4-layers: {word!r} is none of {known}.") from None
    if not groups:
        raise InputError(f"--int4-layers names no group; give some of {known}, or another --precision.")
    return frozenset(groups)
