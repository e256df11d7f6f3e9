"""From an ONNX decoder to an engine: which builder, what to ask of it, and a plan that was built before."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trtbuild.engine.adapter import available, build_engine, check_options, why_unavailable
from trtbuild.engine.coverage import check_coverage
from trtbuild.engine.gpu import devices
from trtbuild.engine.profile_file import load_profiles
from trtbuild.engine.profiles import ProfileSet, kv_cache_bytes
from trtbuild.engine.request import EngineRequest, EngineResult, Flavour, Realised
from trtbuild.errors import BuildError, InputError
from trtbuild.files import atomic_file, link_or_copy
from trtbuild.graph.facts import DecoderFacts, read_facts
from trtbuild.hashing import Hasher
from trtbuild.options import AttentionForm, Backend, EngineOptions
from trtbuild.stages import Stages
from trtbuild.store import Store, key_of

_PLAN, _RESULT = "plan", "result.json"

ENGINE_FILES = {Flavour.TENSORRT: "model.plan", Flavour.RTX: "model.rtx.plan"}


@dataclass(frozen=True, slots=True)
class Choice:
    """Which builder makes the engine; `flavour` None is none, and `missing` says what to install if one was wanted."""

    flavour: Flavour | None
    missing: str | None = None


def choose_builder(options: EngineOptions, attention: AttentionForm = AttentionForm.NATIVE) -> Choice:
    """The builder that `options.backend` asks for, as far as this machine has it. Raises InputError for a bad target.

    `auto` takes TensorRT where it is installed and there is a GPU to build on, else TensorRT-RTX, which needs none, but
    has no plugins.
    """
    plugin = attention is AttentionForm.PLUGIN
    if plugin and options.backend is Backend.RTX:
        raise InputError(
            "TensorRT-RTX has no plugins, so it cannot build the plugin form. Use --attention native, or --backend "
            "tensorrt on a machine with a GPU."
        )
    if options.backend is Backend.ONNX:
        if options.targets:
            raise InputError("--target names GPUs to build an engine for, and --backend onnx builds none. Drop one.")
        return Choice(None)
    if options.backend is Backend.AUTO:
        wanted = [*([Flavour.TENSORRT] if devices() else []), *([] if plugin else [Flavour.RTX])]
        if not wanted:
            return Choice(
                None,
                "An engine of the plugin form is TensorRT 10's, which builds on the GPU that will run it, and none is "
                "visible here. Use --attention native for an engine of TensorRT-RTX, which builds without one.",
            )
    else:
        wanted = [Flavour.TENSORRT if options.backend is Backend.TENSORRT else Flavour.RTX]
    reasons = []
    for flavour in wanted:
        reason = why_unavailable(flavour)
        if not reason:
            check_options(flavour, options.targets, options.builder)
            return Choice(flavour)
        reasons.append(reason)
    return Choice(None, " ".join(reasons))


def read_profiles(name: str, slots: int | None, capacity: int | None) -> ProfileSet:
    """A profile set, resized where asked, that covers every shape the server uses. Raises InputError."""
    profiles = load_profiles(name)
    if slots is not None or capacity is not None:
        profiles = profiles.with_cache(slots, capacity)
    check_coverage(profiles)
    return profiles


def kv_bytes(profiles: ProfileSet, facts: DecoderFacts) -> int:
    """What the KV cache takes on the device, in bytes."""
    return kv_cache_bytes(profiles, facts.layers, facts.kv_heads, facts.key_dim, facts.value_dim, facts.dtype.size)


def read_matching_facts(onnx_file: Path, profiles: ProfileSet) -> DecoderFacts:
    """The graph's dimensions; raise InputError if its cache is not one that the profiles can be for."""
    facts = read_facts(onnx_file)
    if facts.page_size is not None:
        if facts.capacity < profiles.capacity:
            raise InputError(
                f"{onnx_file} is for sequences of up to {facts.capacity} positions and the profiles {profiles.name!r} "
                f"for {profiles.capacity}. Build with --capacity {facts.capacity} or less."
            )
    elif facts.capacity != profiles.capacity:
        raise InputError(
            f"{onnx_file} has a KV cache of {facts.capacity} positions and the profiles {profiles.name!r} are for "
            f"{profiles.capacity}. Export with --capacity {profiles.capacity}, or build with --capacity "
            f"{facts.capacity}."
        )
    return facts


def build_stage(
    onnx_file: Path,
    profiles: ProfileSet,
    flavour: Flavour,
    options: EngineOptions,
    destination: Path,
    stages: Stages,
    store: Store,
    hasher: Hasher,
) -> EngineResult:
    """Build the engine as the file `destination`, or take the one that the same inputs gave before.

    Raises InputError and BuildError.
    """
    facts = read_matching_facts(onnx_file, profiles)
    request = EngineRequest(
        onnx_file=onnx_file,
        profiles=profiles,
        layers=facts.layers,
        kv_heads=facts.kv_heads,
        key_dim=facts.key_dim,
        value_dim=facts.value_dim,
        flavour=flavour,
        targets=options.targets,
        options=options.builder,
        sequence_lengths=facts.sequence_lengths,
        position_ids=facts.position_ids,
        page_size=facts.page_size,
    )
    key = key_of(
        graph=hasher.file(onnx_file),
        weights=hasher.files(facts.weight_files),
        profiles=asdict(profiles),
        flavour=flavour.value,
        version=available(flavour),
        devices=[asdict(gpu) for gpu in devices()] if flavour is Flavour.TENSORRT else [],
        targets=options.targets,
        options=asdict(replace(options.builder, timing_cache=None, plugin_libraries=())),
        plugins=hasher.files(options.builder.plugin_libraries),
    )
    with stages.stage("engine") as stage:
        result = _kept(store, key, hasher)
        if result is None:
            with store.keep("engine", key) as place:
                result = build_engine(request, place / _PLAN, stages.progress)
                data = {**asdict(result), "file": _PLAN, "flavour": result.flavour.value}
                data["sha256"] = hasher.file(place / _PLAN)
                (place / _RESULT).write_text(json.dumps(data))
            stage.note = f"{flavour.value} {result.version}"
        else:
            stage.note = f"{flavour.value} {result.version}, built before in {result.seconds:.1f} s"
        destination.unlink(missing_ok=True)
        link_or_copy(store.place("engine", key) / _PLAN, destination)
        stage.output_bytes, stage.peak_rss_bytes = result.bytes, result.peak_rss_bytes
    return replace(result, file=destination)


def _kept(store: Store, key: str, hasher: Hasher) -> EngineResult | None:
    """What was built before, if it is still whole: outputs are links to the plan, and writing to one changes all."""
    place = store.place("engine", key)
    try:
        data = json.loads((place / _RESULT).read_text())
        whole = data.pop("sha256") == hasher.file(place / _PLAN)
        return _from_json(data) if whole else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _from_json(data: Mapping[str, Any]) -> EngineResult:
    return EngineResult(
        **{
            **data,
            "file": Path(data["file"]),
            "flavour": Flavour(data["flavour"]),
            "targets": tuple(data["targets"]),
            "messages": tuple(data["messages"]),
            "realised": Realised(**data["realised"]),
        }
    )


def build(
    onnx_file: Path,
    destination: Path,
    *,
    profiles: ProfileSet,
    options: EngineOptions,
    stages: Stages,
    store: Store,
    force: bool = False,
) -> EngineResult:
    """Build the engine of an exported decoder as the file `destination`. Raises InputError and BuildError."""
    if destination.is_dir():
        raise InputError(f"{destination} is a folder; --out names the engine's file. Choose another one.")
    if destination.exists() and not force:
        raise InputError(f"{destination} exists. Choose another --out, or give --force to replace it.")
    choice = choose_builder(options)
    if choice.flavour is None:
        raise BuildError(choice.missing or "--backend onnx builds no engine; the ONNX file is all there is.")
    with atomic_file(destination) as temporary:
        result = build_stage(onnx_file, profiles, choice.flavour, options, temporary, stages, store, Hasher())
    return replace(result, file=destination)
