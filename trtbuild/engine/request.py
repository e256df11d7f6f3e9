"""What to build and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from trtbuild.engine.profiles import ProfileSet


class Flavour(Enum):
    """Which TensorRT. `value` is the Python module's name."""

    TENSORRT = "tensorrt"
    RTX = "tensorrt_rtx"


class HardwareCompatibility(Enum):
    """On which GPUs, besides the one it was built on, a plan of TensorRT must run."""

    NONE = "none"
    AMPERE_PLUS = "ampere-plus"
    SAME_COMPUTE_CAPABILITY = "same-compute-capability"


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """The builder's options; None leaves TensorRT's default. A flavour refuses what it cannot do."""

    optimization_level: int | None = None
    """0 (fastest build) to 5."""
    workspace_bytes: int | None = None
    """The most device memory that a layer's scratch space may take."""
    version_compatible: bool = False
    """The plan runs on later TensorRT versions of the same major version, through the lean runtime."""
    hardware_compatibility: HardwareCompatibility = HardwareCompatibility.NONE
    weight_streaming: bool = False
    """Weights may stay in host memory and be streamed while running."""
    timing_cache: Path | None = None
    """The folder that holds timing caches, one file per TensorRT version and device."""
    plugin_libraries: tuple[Path, ...] = ()
    """Shared libraries that register the plugins which the graph uses."""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One engine to build from a decoder's ONNX file."""

    onnx_file: Path
    profiles: ProfileSet
    layers: int
    kv_heads: int
    key_dim: int
    value_dim: int
    """0 if the graph caches no values apart from the keys."""
    flavour: Flavour
    targets: tuple[str, ...] = ()
    """Compute capabilities as `parse_targets` returns them; empty: the flavour's default."""
    options: BuildOptions = BuildOptions()
    sequence_lengths: bool = False
    """Whether the graph has that input (graph/contract.py)."""
    position_ids: bool = True
    """Whether it has that one."""
    page_size: int | None = None
    """Positions of a page of the KV cache, in the plugin form; None: the native form."""


@dataclass(frozen=True, slots=True)
class Realised:
    """What the builder made of the graph, read back from the network and the builder's own messages."""

    int4_weights: int
    """Dequantise layers whose input is INT4."""
    matmul_types: Mapping[str, int]
    """How many matrix multiplications compute in each type ("HALF")."""
    weight_bytes: int | None
    """Weights inside the plan, as the builder reports them; None if it did not."""


@dataclass(frozen=True, slots=True)
class EngineResult:
    """A plan on disk."""

    file: Path
    bytes: int
    seconds: float
    """Checks, build and writing."""
    peak_rss_bytes: int
    """The builder process's largest resident size."""
    version: str
    flavour: Flavour
    targets: tuple[str, ...]
    realised: Realised
    messages: tuple[str, ...]
    """Warnings worth telling."""
