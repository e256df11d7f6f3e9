"""build.json: what an output folder was made from, so that it can be made again and told from another."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import trtbuild
from trtbuild.engine.profiles import ProfileSet
from trtbuild.engine.request import BuildOptions, EngineResult
from trtbuild.exporting import Weights
from trtbuild.hashing import Hasher
from trtbuild.options import CompileOptions
from trtbuild.stages import Stage

FORMAT = 1


def manifest(
    weights: Weights,
    input_hashes: Mapping[str, str],
    options: CompileOptions,
    profiles: ProfileSet,
    engine: EngineResult | None,
    folder: Path,
    hasher: Hasher,
) -> dict[str, Any]:
    """Inputs by content, options, versions and outputs by content; nothing in it depends on when or where."""
    spec = weights.binding.spec
    return {
        "format": FORMAT,
        "source": {"name": weights.checkpoint.source, "files": dict(sorted(input_hashes.items()))},
        "model": {
            "type": spec.model_type,
            "layers": len(spec.layers),
            "hidden": spec.hidden,
            "vocab_size": spec.vocab_size,
            "fingerprint": weights.checkpoint.fingerprint(),
        },
        "precision": {
            "weights": weights.precision.value,
            "network": weights.dtype.value,
            "int4": _int4(weights),
            "kept_in_fp32": sorted(weights.unsafe),
        },
        "profiles": asdict(profiles),
        "options": {
            "backend": options.engine.backend.value,
            "targets": list(options.engine.targets),
            "builder": _builder(options.engine.builder),
            "ignore_config": list(options.export.ignore_config),
            "cpu_fallback": options.cpu_fallback,
            "slo": list(options.slo.lines()),
        },
        "engine": None
        if engine is None
        else {
            "file": str(engine.file.relative_to(folder)),
            "flavour": engine.flavour.value,
            "version": engine.version,
            "targets": list(engine.targets),
            "bytes": engine.bytes,
            "realised": asdict(engine.realised),
        },
        "versions": {
            "trtbuild": trtbuild.__version__,
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("numpy", "onnx")},
        },
        "outputs": {
            str(file.relative_to(folder)): hasher.file(file)
            for file in sorted(folder.rglob("*"))
            if file.is_file() and file.name not in ("build.json", "timings.json")
        },
    }


def _builder(options: BuildOptions) -> dict[str, Any]:
    """Libraries by name: they lie elsewhere on another machine, and those that are carried are among the outputs."""
    libraries = [library.name for library in options.plugin_libraries]
    return {**_plain(asdict(options)), "plugin_libraries": libraries}


def _int4(weights: Weights) -> dict[str, Any] | None:
    grids = weights.grids
    if not grids:
        return None
    facts: dict[str, Any] = {
        "method": weights.method,
        "block_sizes": sorted({grid.block for grid in grids if grid.block}),
        "int8_matrices": sum(grid.bits == 8 for grid in grids),
        "matrices": len(weights.quantised),
        "embedding": weights.table is not None,
    }
    if weights.int4_options is not None:
        facts["layers"] = sorted(group.value for group in weights.int4_options.layers)
    if weights.calibrated is not None:
        facts["source"] = dict(weights.calibrated.source)
        facts["samples"] = dict(weights.calibrated.samples)
    return facts


def timings(stages: list[Stage], engine: EngineResult | None) -> dict[str, Any]:
    """What the build took; apart from build.json, so that two builds of the same inputs give the same manifest."""
    return {
        "stages": [asdict(stage) for stage in stages],
        "engine_seconds": None if engine is None else engine.seconds,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, str | int | float) or value is None:
        return value
    return getattr(value, "value", None) or str(value)
