"""OLMo 1 (norms without weights), 2 (norms behind each part, and on all of q and k) and 3 (windows)."""

from __future__ import annotations

from dataclasses import replace

from trtbuild.architectures.config_reader import ConfigReader
from trtbuild.architectures.families.llama import NAMES, change_attention, llama_spec
from trtbuild.architectures.reading import FULL, SLIDING, read_heads, read_layer_types, read_windows
from trtbuild.architectures.recipe import Recipe, Role
from trtbuild.architectures.rope import read_rope
from trtbuild.architectures.rope_spec import Rope
from trtbuild.architectures.spec import DecoderSpec, Norm, NormKind, NormPlace, QkNorm, QkNormSpan


def read_olmo(config: ConfigReader) -> DecoderSpec:
    bias = config.flag("attention_bias", False)
    norm = Norm(NormKind.LAYER, 1e-5, weight=False)
    return change_attention(
        llama_spec(config, qkv_bias=bias, output_bias=bias, norm=norm), clip=config.number("clip_qkv")
    )


def read_olmo2(config: ConfigReader) -> DecoderSpec:
    return _spec(config, None, None)


def read_olmo3(config: ConfigReader) -> DecoderSpec:
    """RoPE's scaling is on the layers without a window only."""
    layers = config.integer("num_hidden_layers")
    kinds = tuple(SLIDING if (index + 1) % 4 else FULL for index in range(layers))
    kinds = read_layer_types(config, layers) or kinds
    head_dim = read_heads(config).head_dim
    if config.mapping("rope_parameters") is not None:
        ropes = {kind: read_rope(config, head_dim, layer_type=kind) for kind in (FULL, SLIDING)}
    else:
        full = read_rope(config, head_dim)
        ropes = {FULL: full, SLIDING: replace(full, scaling=None)}
    spec = _spec(config, ropes[FULL], read_windows(config, layers, kinds))
    return replace(
        spec, layers=tuple(replace(layer, rope=ropes[kind]) for layer, kind in zip(spec.layers, kinds, strict=True))
    )


def _spec(config: ConfigReader, rope: Rope | None, windows: tuple[int | None, ...] | None) -> DecoderSpec:
    bias = config.flag("attention_bias", False)
    spec = llama_spec(config, qkv_bias=bias, output_bias=bias, rope=rope, windows=windows)
    spec = change_attention(spec, qk_norm=QkNorm(spec.norm, QkNormSpan.WIDTH))
    return replace(spec, norm_place=NormPlace.AFTER)


AFTER_NAMES = {
    **NAMES,
    Role.ATTENTION_POST_NORM: "layers.{}.post_attention_layernorm",
    Role.MLP_POST_NORM: "layers.{}.post_feedforward_layernorm",
}

RECIPES = (
    Recipe(("olmo",), read_olmo, NAMES),
    Recipe(("olmo2",), read_olmo2, AFTER_NAMES),
    Recipe(("olmo3",), read_olmo3, AFTER_NAMES),
)
