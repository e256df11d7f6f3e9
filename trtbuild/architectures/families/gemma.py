"""Gemma 1, 2 and 3 (text): scaled embeddings, norms that store their weight less one, and from 2 on norms around."""

from __future__ import annotations

from dataclasses import replace

from trtbuild.architectures.config_reader import ConfigReader
from trtbuild.architectures.families.llama import NAMES, change_attention, llama_spec
from trtbuild.architectures.reading import (
    FULL,
    SLIDING,
    read_activation,
    read_heads,
    read_layer_types,
    read_rms_norm,
    read_windows,
)
from trtbuild.architectures.recipe import Recipe, Role
from trtbuild.architectures.rope import read_rope
from trtbuild.architectures.rope_spec import Rope
from trtbuild.architectures.spec import Activation, DecoderSpec, Mlp, NormPlace, QkNorm


def read_gemma(config: ConfigReader) -> DecoderSpec:
    """`hidden_act` "gelu" is what the first files say and means the tanh form, as `hidden_activation` says later."""
    given = read_activation(config, "hidden_activation" if config.optional("hidden_activation", str) else "hidden_act")
    config.pass_over("hidden_act")
    activation = Activation.GELU_TANH if given is Activation.GELU else given
    return _spec(config, activation, rope=read_rope(config, read_heads(config, head_dim=256).head_dim))


def read_gemma2(config: ConfigReader) -> DecoderSpec:
    layers = config.integer("num_hidden_layers")
    config.pass_over("hidden_act")
    windows = read_windows(config, layers, tuple(FULL if index % 2 else SLIDING for index in range(layers)))
    activation = read_activation(config, "hidden_activation", "gelu_pytorch_tanh")
    rope = read_rope(config, read_heads(config, head_dim=256).head_dim)
    spec = change_attention(
        _spec(config, activation, rope, windows),
        scale=float(config.integer("query_pre_attn_scalar", 256)) ** -0.5,
        soft_cap=config.number("attn_logit_softcapping"),
    )
    return replace(spec, norm_place=NormPlace.AROUND, logits_soft_cap=config.number("final_logit_softcapping"))


def read_gemma3(config: ConfigReader) -> DecoderSpec:
    layers, pattern = config.integer("num_hidden_layers"), config.integer("sliding_window_pattern", 6)
    kinds = tuple(SLIDING if (index + 1) % pattern else FULL for index in range(layers))
    kinds = read_layer_types(config, layers) or kinds
    if config.number("attn_logit_softcapping") is not None:
        raise config.refuse(
            "'attn_logit_softcapping' is set", "No published Gemma 3 has it, and transformers skips it."
        )
    activation = read_activation(config, "hidden_activation", "gelu_pytorch_tanh")
    ropes = _gemma3_ropes(config, read_heads(config, head_dim=256).head_dim)
    spec = _spec(config, activation, ropes[FULL], read_windows(config, layers, kinds))
    spec = change_attention(
        spec, scale=float(config.integer("query_pre_attn_scalar", 256)) ** -0.5, qk_norm=QkNorm(spec.norm)
    )
    return replace(
        spec,
        layers=tuple(replace(layer, rope=ropes[kind]) for layer, kind in zip(spec.layers, kinds, strict=True)),
        norm_place=NormPlace.AROUND,
        logits_soft_cap=config.number("final_logit_softcapping"),
    )


def _gemma3_ropes(config: ConfigReader, head_dim: int) -> dict[str, Rope]:
    """By type of layer; scaling is on the global ones only."""
    local = config.number("rope_local_base_freq")
    if config.mapping("rope_parameters") is not None:
        return {kind: read_rope(config, head_dim, layer_type=kind) for kind in (FULL, SLIDING)}
    return {FULL: read_rope(config, head_dim), SLIDING: Rope(10_000.0 if local is None else local, head_dim)}


def _spec(
    config: ConfigReader, activation: Activation, rope: Rope, windows: tuple[int | None, ...] | None = None
) -> DecoderSpec:
    config.pass_over("cache_implementation", "_sliding_window_pattern")
    if config.optional("use_bidirectional_attention", bool):
        raise config.refuse("'use_bidirectional_attention' is true", "That is an encoder, not a decoder.")
    bias = config.flag("attention_bias", False)
    spec = llama_spec(
        config,
        qkv_bias=bias,
        output_bias=bias,
        windows=windows,
        norm=replace(read_rms_norm(config), unit_offset=True),
        rope=rope,
        mlp=Mlp(config.integer("intermediate_size"), activation),
        tied=True,
        head_dim=256,
    )
    return replace(spec, embedding_scale=float(spec.hidden) ** 0.5)


AROUND_NAMES = {
    **NAMES,
    Role.ATTENTION_POST_NORM: "layers.{}.post_attention_layernorm",
    Role.MLP_NORM: "layers.{}.pre_feedforward_layernorm",
    Role.MLP_POST_NORM: "layers.{}.post_feedforward_layernorm",
}

RECIPES = (
    Recipe(("gemma",), read_gemma, NAMES),
    Recipe(("gemma2",), read_gemma2, AROUND_NAMES),
    Recipe(("gemma3_text",), read_gemma3, AROUND_NAMES),
)
