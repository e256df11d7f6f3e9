"""From graph and engine to the Triton repository: the CPU's graph, what serving must know, and the writer's input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trtbuild.dtypes import DType
from trtbuild.engine.profiles import ProfileSet
from trtbuild.engine.request import EngineResult
from trtbuild.errors import BuildError
from trtbuild.exporting import Weights, write_graph
from trtbuild.files import link_or_copy
from trtbuild.graph.attention import AttentionForm
from trtbuild.options import CompileOptions
from trtbuild.serving.config import Backend, Cache, Profile, ServingConfig

CPU_GRAPH = "model.onnx"
SERVING_TYPES = {DType.F32: "float32", DType.F16: "float16", DType.BF16: "bfloat16"}


def serving_config(
    name: str, weights: Weights, profiles: ProfileSet, engine: EngineResult | None, cpu: bool
) -> ServingConfig:
    """serving.json's content: the cache's dimensions, the profiles in the plan's order, and the ways to run the model."""
    spec, checkpoint = weights.binding.spec, weights.checkpoint
    backends = []
    if engine is not None:
        backends.append(
            Backend(
                kind=engine.flavour.value,
                file=engine.file.name,
                dtype=SERVING_TYPES[weights.dtype],
                version=engine.version,
                targets=engine.targets,
            )
        )
    if cpu:
        backends.append(Backend(kind="onnxruntime", file=CPU_GRAPH, dtype="float32"))
    return ServingConfig(
        model_name=name,
        vocab_size=spec.vocab_size,
        cache=Cache(
            layers=spec.layers,
            slots=profiles.slots,
            kv_heads=spec.attention.kv_heads,
            capacity=profiles.capacity,
            head_dim=spec.attention.head_dim,
        ),
        prefill_chunk=profiles.prefill_chunk,
        bos_token_id=_token_ids(checkpoint.generation_config, checkpoint.config, "bos_token_id")[:1],
        eos_token_ids=_token_ids(checkpoint.generation_config, checkpoint.config, "eos_token_id"),
        profiles=tuple(
            Profile(profile.name, tuple(profile.batch), tuple(profile.tokens), tuple(profile.kv))
            for profile in profiles.profiles
        ),
        backends=tuple(backends),
    )


def _token_ids(generation: Mapping[str, Any], config: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """generation_config.json's word counts before config.json's, as in transformers; one number or a list of them."""
    value = generation.get(name)
    value = config.get(name) if value is None else value
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (value,)
