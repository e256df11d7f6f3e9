"""From graph and engine to the Triton repository: the CPU's graph, what serving must know, and the files."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trtbuild.architectures.spec import DecoderSpec
from trtbuild.checkpoint import Checkpoint
from trtbuild.dtypes import DType
from trtbuild.engine.profiles import ProfileSet
from trtbuild.engine.ragged import ragged_profiles
from trtbuild.engine.request import EngineResult
from trtbuild.errors import InputError
from trtbuild.exporting import MODEL_FILE, Weights, write_graph
from trtbuild.graph.lengths import length_rules
from trtbuild.options import CompileOptions
from trtbuild.serving.config import ITL_OBJECTIVE, LEVELS, Backend, Cache, Profile, ServingConfig
from trtbuild.slo import Slo, with_aims
from trtbuild.triton.repository import RepositorySpec, version_folder, write_repository

SERVING_TYPES = {DType.F32: "float32", DType.F16: "float16", DType.BF16: "bfloat16"}


def check_tokenizer(checkpoint: Checkpoint) -> None:
    """Raise InputError unless the checkpoint has the files without which no text can be served."""
    there = {file.name for file in checkpoint.tokenizer_files}
    for needed in ("tokenizer.json", "tokenizer_config.json"):
        if needed not in there:
            raise InputError(
                f"{checkpoint.source} has no {needed}, which serving text needs. Add the one that was published with "
                "the model (AutoTokenizer.from_pretrained(…).save_pretrained(…) writes both), or use `trtbuild export`."
            )


def emit(
    folder: Path,
    name: str,
    weights: Weights,
    profiles: ProfileSet,
    engine: EngineResult | None,
    options: CompileOptions,
    page_size: int | None = None,
) -> EngineResult | None:
    """Write the repository into `folder`; return the engine at its place there.

    Where there is no engine the CPU's graph is placed whatever `options` say: something must run. Raises BuildError if
    the finished repository does not pass its own check.
    """
    cpu = options.cpu_fallback or engine is None
    plugins = _carried_plugins(engine, options)
    config = serving_config(
        name,
        weights,
        profiles,
        engine,
        cpu=cpu,
        version_compatible=options.engine.builder.version_compatible,
        page_size=page_size,
        plugins=tuple(library.name for library in plugins),
        slo=options.slo,
    )
    place = version_folder(folder, name)
    place.mkdir(parents=True)
    for library in plugins:
        shutil.copyfile(library, place / library.name)  # no link: compiling it anew must not change what is served
    if cpu:
        write_graph(
            weights,
            place / MODEL_FILE,
            profiles.capacity,
            page_size=page_size,
            dtype=DType.F32,
            copy_weights=options.export.copy_weights,
        )
    if engine is not None:
        moved = place / engine.file.name
        engine.file.replace(moved)
        engine = replace(engine, file=moved)
    write_repository(folder, RepositorySpec(config, weights.checkpoint.tokenizer_files))
    return engine


def _carried_plugins(engine: EngineResult | None, options: CompileOptions) -> tuple[Path, ...]:
    """The plugins' libraries that the repository must carry: a version-compatible plan has them inside."""
    builder = options.engine.builder
    return () if engine is None or builder.version_compatible else builder.plugin_libraries


def serving_config(
    name: str,
    weights: Weights,
    profiles: ProfileSet,
    engine: EngineResult | None,
    *,
    cpu: bool,
    version_compatible: bool,
    page_size: int | None = None,
    plugins: tuple[str, ...] = (),
    slo: Slo,
) -> ServingConfig:
    """serving.json's content: the cache's dimensions, the profiles in the plan's order, the ways to run the model."""
    spec, checkpoint = weights.binding.spec, weights.checkpoint
    rules = length_rules(spec, profiles.capacity)
    backends = []
    if engine is not None:
        backends.append(
            Backend(
                kind=engine.flavour.value,
                file=engine.file.name,
                dtype=SERVING_TYPES[weights.dtype],
                version=engine.version,
                targets=engine.targets,
                version_compatible=version_compatible,
                plugins=plugins,
            )
        )
    if cpu:
        backends.append(Backend(kind="onnxruntime", file=MODEL_FILE, dtype="float32"))
    return ServingConfig(
        model_name=name,
        vocab_size=spec.vocab_size,
        cache=cache_dims(spec, profiles, page_size),
        prefill_chunk=profiles.prefill_chunk,
        eos_token_ids=_eos_token_ids(checkpoint.generation_config, checkpoint.config),
        profiles=tuple(
            Profile(profile.name, profile.batch, profile.tokens, profile.kv)
            for profile in (profiles.profiles if page_size is None else ragged_profiles(profiles))
        ),
        backends=tuple(backends),
        sequence_lengths=rules.sequence_lengths,
        recompute_past=rules.recompute_past,
        levels=with_aims(LEVELS, slo),
        itl_objective=slo.between_tokens() or ITL_OBJECTIVE,
    )


def cache_dims(spec: DecoderSpec, profiles: ProfileSet, page_size: int | None = None) -> Cache:
    """The KV cache of this decoder under these profiles: in the plugin form as many pages as its slots would take."""
    pages = {} if page_size is None else {"page_size": page_size, "pages": profiles.pages(page_size)}
    return Cache(
        layers=len(spec.layers),
        slots=profiles.slots,
        kv_heads=spec.attention.kv_heads,
        capacity=profiles.capacity,
        key_dim=spec.attention.key_dim,
        value_dim=spec.attention.value_dim,
        **pages,
    )


def _eos_token_ids(generation: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[int, ...]:
    """generation_config.json's word counts before config.json's, as in transformers; one number or a list of them."""
    value = generation.get("eos_token_id")
    value = config.get("eos_token_id") if value is None else value
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (value,)
