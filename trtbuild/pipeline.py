"""`trtbuild compile`: the stages from a checkpoint to a Triton repository, in order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from trtbuild.building import ENGINE_FILES, build_stage, choose_builder, kv_bytes, read_profiles
from trtbuild.emitting import check_tokenizer, emit
from trtbuild.engine.request import EngineResult, Flavour
from trtbuild.exporting import (
    MODEL_FILE,
    check_capacity,
    check_pages,
    quantise,
    read_weights,
    refuse_overwriting,
    write_graph,
)
from trtbuild.files import atomic_folder, refuse_existing, write_json
from trtbuild.graph.facts import read_facts
from trtbuild.hashing import Hasher
from trtbuild.manifest import manifest, timings
from trtbuild.options import CompileOptions
from trtbuild.plugin.keeping import with_plugin
from trtbuild.progress import Progress, Silent
from trtbuild.serving.config import LEVELS
from trtbuild.slo import check_aims
from trtbuild.stages import Stage, Stages
from trtbuild.store import Store
from trtbuild.triton.repository import model_name, refuse_bad_name


@dataclass(frozen=True, slots=True)
class CompileResult:
    """An output folder and what making it took."""

    folder: Path
    repository: Path
    model_name: str
    engine: EngineResult | None
    missing_builder: str | None
    """Why there is no engine although one was wanted, and what to install."""
    kv_cache_bytes: int
    notes: tuple[str, ...]
    stages: tuple[Stage, ...]


def compile(
    model: str | Path, out: Path, options: CompileOptions | None = None, *, progress: Progress | None = None
) -> CompileResult:
    """Compile `model` into `out`: ONNX, the engine, and a Triton model repository that serves it.

    Raises InputError for wrong input, most of it before any slow stage, and BuildError where a stage fails. `out`
    appears whole or not at all. Where the builder that `options` wants is not installed, everything else is still made
    and the result's `missing_builder` says what to install.
    """
    options = options or CompileOptions()
    stages, store, hasher = Stages(progress or Silent()), Store(options.export.cache), Hasher()
    refuse_existing(out, replace=options.force)
    profiles = read_profiles(options.profiles, options.slots, options.capacity)
    choice = choose_builder(options.engine, options.export.attention)
    check_aims(options.slo, LEVELS)
    if options.name is not None:
        refuse_bad_name(options.name)
    with stages.stage("checkpoint"):
        weights = read_weights(model, options.export, stages.progress)
        check_tokenizer(weights.checkpoint)
        name = options.name or model_name(weights.checkpoint.name)
    refuse_overwriting(weights.checkpoint, out)
    page_size = check_pages(weights.binding, options.export)
    check_capacity(weights.binding, profiles.capacity, paged=page_size is not None)
    if choice.flavour is Flavour.TENSORRT and page_size is not None:
        options = replace(options, engine=with_plugin(options.engine, stages, store))
    with stages.stage("hash") as stage:
        files = (*weights.checkpoint.weight_files, *weights.checkpoint.tokenizer_files)
        hashes = hasher.files(files, stages.progress.update)
        stage.note = f"{len(files)} files"
    with atomic_folder(out, replace=options.force) as folder:
        onnx_folder = folder / "onnx"
        onnx_folder.mkdir()
        weights = quantise(weights, options.export, onnx_folder, stages)
        graph_file = onnx_folder / MODEL_FILE
        with stages.stage("graph") as stage:
            nodes = write_graph(
                weights,
                graph_file,
                profiles.capacity,
                page_size=page_size,
                copy_weights=options.export.copy_weights,
            )
            stage.output_bytes, stage.note = graph_file.stat().st_size, f"{nodes} nodes"
        engine = None
        if choice.flavour is not None:
            plan = onnx_folder / ENGINE_FILES[choice.flavour]
            engine = build_stage(graph_file, profiles, choice.flavour, options.engine, plan, stages, store, hasher)
        with stages.stage("repository") as stage:
            engine = emit(folder, name, weights, profiles, engine, options, page_size)
            stage.note = f"model {name!r}"
        with stages.stage("manifest"):
            write_json(folder / "build.json", manifest(weights, hashes, options, profiles, engine, folder, hasher))
        write_json(folder / "timings.json", timings(stages.done, engine))
        cache_bytes = kv_bytes(profiles, read_facts(graph_file))
        relative = None if engine is None else engine.file.relative_to(folder)
    return CompileResult(
        folder=out,
        repository=out / "model_repository",
        model_name=name,
        engine=None if engine is None or relative is None else replace(engine, file=out / relative),
        missing_builder=choice.missing,
        kv_cache_bytes=cache_bytes,
        notes=() if engine is None else engine.messages,
        stages=tuple(stages.done),
    )
