"""Building an engine: everything that can be checked beforehand, then the builder in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from trtbuild.engine.child import run_worker
from trtbuild.engine.flavour import adapter_for
from trtbuild.engine.gpu import devices
from trtbuild.engine.inspect import inspect_plan
from trtbuild.engine.job import Job, ProfileShapes, Shape
from trtbuild.engine.preflight import GraphFacts, examine, read_model
from trtbuild.engine.profiles import Profile, Range
from trtbuild.engine.ragged import RaggedProfile, ragged_profiles
from trtbuild.engine.request import BuildOptions, EngineRequest, EngineResult, Flavour, Realised
from trtbuild.engine.shape_check import infer
from trtbuild.engine.targets import refuse_unknown
from trtbuild.errors import InputError, TrtbuildError
from trtbuild.files import atomic_file
from trtbuild.graph import contract
from trtbuild.progress import Progress, Silent

_BAR = 1000


@dataclass(frozen=True, slots=True)
class _Probe:
    version: str | None
    targets: tuple[str, ...]
    reason: str


def available(flavour: Flavour) -> str | None:
    """The installed version of a flavour if it can build here, else None; `why_unavailable` says why."""
    return _probe(flavour).version


def why_unavailable(flavour: Flavour) -> str:
    """Why a flavour cannot build here and what to install; empty if it can."""
    return _probe(flavour).reason


def check_options(flavour: Flavour, targets: tuple[str, ...], options: BuildOptions) -> None:
    """Raise InputError for what this flavour cannot honour on this machine; cheap, for before any slow stage."""
    adapter = adapter_for(flavour)
    if options.optimization_level is not None and not 0 <= options.optimization_level <= 5:
        raise InputError(f"The optimisation level is 0 to 5, not {options.optimization_level}.")
    if options.workspace_bytes is not None and options.workspace_bytes < 1:
        raise InputError(f"The workspace is a number of bytes above 0, not {options.workspace_bytes}.")
    adapter.refuse(options, targets, devices() if adapter.needs_gpu else ())
    probe = _probe(flavour)
    if probe.version is None:
        raise InputError(probe.reason)
    if probe.targets:
        refuse_unknown(targets, probe.targets, f"{adapter.name} {probe.version}")


def build_engine(request: EngineRequest, destination: Path, progress: Progress | None = None) -> EngineResult:
    """Build a plan and put it at `destination`, whole or not at all. One stage of `progress`, its caller's.

    Raises InputError for what can be told beforehand (options, targets, an absent GPU, plugins, shapes that disagree
    at some profile's min, opt or max, FP32 attention that TensorRT-RTX has no kernel for), and BuildError when the
    builder refuses, drops an input, unpacks INT4, runs out of memory, is killed, or the disk is full.
    """
    progress = progress or Silent()
    adapter = adapter_for(request.flavour)
    start = time.monotonic()
    check_options(request.flavour, request.targets, request.options)
    facts, notes, shapes = check_graph(request)
    with atomic_file(destination) as temporary:
        job = Job(
            onnx_file=request.onnx_file.absolute(),
            destination=temporary.absolute(),
            flavour=request.flavour,
            targets=request.targets,
            options=request.options,
            profiles=shapes,
            facts=facts,
        )
        outcome = run_worker(
            {"build": job.to_json()},
            adapter.name,
            lambda fraction, note: progress.update(int(_BAR * fraction), _BAR, note),
        )
    progress.update(_BAR, _BAR)
    built = outcome.event
    return EngineResult(
        file=destination,
        bytes=built["bytes"],
        seconds=time.monotonic() - start,
        peak_rss_bytes=outcome.peak_rss_bytes,
        version=built["version"],
        flavour=request.flavour,
        targets=request.targets or _targets_of(request.flavour, destination),
        realised=Realised(**built["realised"]),
        messages=(*notes, *built["warnings"]),
    )


@cache
def _probe(flavour: Flavour) -> _Probe:
    """Import the module in a process of its own: only that tells whether its libraries load."""
    adapter = adapter_for(flavour)
    try:
        event = run_worker({"probe": flavour.value}, adapter.name).event
    except TrtbuildError as error:
        return _Probe(None, (), str(error))
    return _Probe(event["version"], tuple(event["targets"]), "")


def check_graph(request: EngineRequest) -> tuple[GraphFacts, tuple[str, ...], tuple[ProfileShapes, ...]]:
    """What the graph holds, what could not be checked of it, and its input shapes at each profile's three points.

    Raises InputError for plugins that the flavour has not, and for shapes that disagree.
    """
    adapter = adapter_for(request.flavour)
    model = read_model(request.onnx_file)
    facts = examine(model)
    adapter.refuse_plugins(facts.plugins)
    unknown: tuple[str, ...] = ()
    shapes = []
    for name, points in _input_shapes(request):
        for point, inputs in points.items():
            inferred = infer(model, inputs, f"{request.onnx_file.name}, profile '{name}' at {point}")
            unknown = unknown or inferred.unknown
        shapes.append(ProfileShapes(name, _by_input(points)))
    notes = (
        (f"The shapes of {len(unknown)} nodes are known only when they run and were not checked: '{unknown[0]}' …",)
        if unknown
        else ()
    )
    return facts, notes, tuple(shapes)


def _input_shapes(request: EngineRequest) -> list[tuple[str, dict[str, dict[str, Shape]]]]:
    """Each profile's name, and its inputs' shapes by point."""
    profiles, page_size = request.profiles, request.page_size
    if page_size is None:
        made = [(each.name, partial(_static_shapes, request, each)) for each in profiles.profiles]
    else:
        made = [(each.name, partial(_paged_shapes, request, page_size, each)) for each in ragged_profiles(profiles)]
    return [(name, {point: shapes(point) for point in Range._fields}) for name, shapes in made]


def _static_shapes(request: EngineRequest, profile: Profile, point: str) -> dict[str, Shape]:
    return contract.input_shapes(
        batch=getattr(profile.batch, point),
        tokens=getattr(profile.tokens, point),
        kv=getattr(profile.kv, point),
        logits=getattr(profile.logits, point),
        layers=request.layers,
        kv_heads=request.kv_heads,
        capacity=request.profiles.capacity,
        key_dim=request.key_dim,
        value_dim=request.value_dim,
        sequence_lengths=request.sequence_lengths,
    )


def _paged_shapes(request: EngineRequest, page_size: int, profile: RaggedProfile, point: str) -> dict[str, Shape]:
    """The pool of pages may be any that is no larger than a static cache."""
    return contract.paged_input_shapes(
        batch=getattr(profile.batch, point),
        tokens=getattr(profile.tokens, point),
        kv=getattr(profile.kv, point),
        logits=getattr(profile.logits, point),
        layers=request.layers,
        kv_heads=request.kv_heads,
        head_dim=request.key_dim,
        page_size=page_size,
        pages=1 if point == "min" else request.profiles.pages(page_size),
        position_ids=request.position_ids,
        sequence_lengths=request.sequence_lengths,
    )


def _by_input(points: Mapping[str, dict[str, Shape]]) -> dict[str, tuple[Shape, Shape, Shape]]:
    least, likely, most = (points[point] for point in Range._fields)
    return {name: (least[name], likely[name], most[name]) for name in least}


def _targets_of(flavour: Flavour, plan: Path) -> tuple[str, ...]:
    """What a plan built with no target named is for: the GPU at hand, or what TensorRT-RTX wrote into its header."""
    return (devices()[0].target,) if adapter_for(flavour).needs_gpu else inspect_plan(plan).targets
