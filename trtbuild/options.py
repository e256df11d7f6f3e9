"""What a user can ask of `export`, `build` and `compile`, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from trtbuild.dtypes import DType
from trtbuild.engine.request import BuildOptions
from trtbuild.quantize.stored import DEFAULT_LAYERS, Int4Layers
from trtbuild.slo import Slo
from trtbuild.store import default_cache


class Precision(Enum):
    """How the weights are stored and what the network computes in."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT4 = "int4"
    """INT4 weights; activations as `ExportOptions.activations` says."""


class Method(Enum):
    """How weights are rounded to INT4."""

    RTN = "rtn"
    """To nearest, each block's largest magnitude at 7."""
    RTN_CLIP = "rtn-clip"
    """To nearest, with the scale that leaves each block the least squared error."""
    AWQ = "awq"
    """Scaled input channels, then scales of the least error weighted by the activations."""
    GPTQ = "gptq"
    AWQ_GPTQ = "awq+gptq"

    @property
    def scales_channels(self) -> bool:
        return self in (Method.AWQ, Method.AWQ_GPTQ)


class Device(Enum):
    """What the arithmetic of fitting runs on."""

    CPU = "cpu"
    CUDA = "cuda"


class AttentionForm(Enum):
    """How attention is written, and with it the KV cache."""

    NATIVE = "native"
    """ONNX's own operators over a static cache: every runtime has them."""
    PLUGIN = "plugin"
    """trtbuild::RopeAlibiAttention over a paged cache, for ragged tokens: TensorRT takes it as a plugin, and ONNX
    Runtime by the definition that the model carries."""


class Backend(Enum):
    """Which builder makes the engine."""

    AUTO = "auto"
    """tensorrt where it is installed and there is a GPU, else rtx where it is installed, else onnx."""
    TENSORRT = "tensorrt"
    RTX = "rtx"
    ONNX = "onnx"
    """No engine: ONNX Runtime serves the graph."""


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """From a checkpoint to ONNX."""

    precision: Precision | None = None
    """None takes the type that the weights are stored in."""
    activations: DType | None = None
    """INT4 only: what the network computes in; None takes BF16 for a BF16 checkpoint and F16 for any other."""
    block_size: int | None = None
    """INT4 only: None takes the largest of 128, 64 and 32 that divides each width."""
    int4_layers: frozenset[Int4Layers] = DEFAULT_LAYERS
    revision: str | None = None
    ignore_config: tuple[str, ...] = ()
    audit: Path | None = None
    """What `audit` wrote: parts that FP16 cannot hold are kept in FP32."""
    copy_weights: bool = False
    attention: AttentionForm = AttentionForm.NATIVE
    page_size: int | None = None
    """Plugin form only: positions of a page of the KV cache; None takes 64."""
    cache: Path = field(default_factory=default_cache)


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """From ONNX to an engine."""

    backend: Backend = Backend.AUTO
    targets: tuple[str, ...] = ()
    builder: BuildOptions = field(default_factory=BuildOptions)


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """From a checkpoint to a Triton repository."""

    export: ExportOptions = field(default_factory=ExportOptions)
    engine: EngineOptions = field(default_factory=EngineOptions)
    profiles: str = "chat"
    """A built-in set's name or a YAML file's path."""
    slots: int | None = None
    capacity: int | None = None
    name: str | None = None
    """The model's name in Triton; None derives it from the checkpoint's."""
    cpu_fallback: bool = True
    """Also place the FP32 graph that ONNX Runtime serves where there is no GPU."""
    slo: Slo = field(default_factory=Slo)
    """What the scheduler aims at: the time to the first token by priority, and between tokens."""
    force: bool = False
    """Replace an output folder that exists."""
