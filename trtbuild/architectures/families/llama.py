"""The Llama family: Llama 2 to 3.2, SmolLM, Mistral, Qwen2, Qwen2.5, Qwen3."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trtbuild.architectures.config_reader import ConfigReader
from trtbuild.architectures.reading import read_activation, read_heads, read_layer_types, read_rms_norm
from trtbuild.architectures.recipe import Recipe, Role
from trtbuild.architectures.rope import extended_positions, read_rope
from trtbuild.architectures.rope_spec import Rope
from trtbuild.architectures.spec import Attention, DecoderSpec, Layer, Mlp, Norm, QkNorm

NAMES = {
    Role.EMBEDDING: "embed_tokens",
    Role.ATTENTION_NORM: "layers.{}.input_layernorm",
    Role.Q: "layers.{}.self_attn.q_proj",
    Role.K: "layers.{}.self_attn.k_proj",
    Role.V: "layers.{}.self_attn.v_proj",
    Role.Q_NORM: "layers.{}.self_attn.q_norm",
    Role.K_NORM: "layers.{}.self_attn.k_norm",
    Role.OUTPUT: "layers.{}.self_attn.o_proj",
    Role.MLP_NORM: "layers.{}.post_attention_layernorm",
    Role.GATE: "layers.{}.mlp.gate_proj",
    Role.UP: "layers.{}.mlp.up_proj",
    Role.DOWN: "layers.{}.mlp.down_proj",
    Role.FINAL_NORM: "norm",
    Role.HEAD: "lm_head",
}


def read_llama(config: ConfigReader) -> DecoderSpec:
    bias = config.flag("attention_bias", False)
    return llama_spec(config, qkv_bias=bias, output_bias=bias, mlp_bias=config.flag("mlp_bias", False))


def read_mistral(config: ConfigReader) -> DecoderSpec:
    window = config.optional("sliding_window", int) if config.has("sliding_window") else 4096
    return llama_spec(config, windows=(window,) * config.integer("num_hidden_layers"))


def read_qwen2(config: ConfigReader) -> DecoderSpec:
    return llama_spec(config, qkv_bias=True, windows=qwen_windows(config))


def read_qwen3(config: ConfigReader) -> DecoderSpec:
    bias = config.flag("attention_bias", False)
    return llama_spec(config, qkv_bias=bias, output_bias=bias, qk_norm=True, windows=qwen_windows(config))


def qwen_windows(config: ConfigReader) -> tuple[int | None, ...]:
    """`use_sliding_window` turns the window on; `layer_types`, or else `max_window_layers`, says for which layers."""
    layers = config.integer("num_hidden_layers")
    window = config.optional("sliding_window", int)
    first = config.optional("max_window_layers", int)
    kinds = read_layer_types(config, layers)
    if not config.flag("use_sliding_window", False) or window is None:
        return (None,) * layers
    if kinds is None:
        if first is None:
            raise config.refuse(
                "use_sliding_window is true and neither 'layer_types' nor 'max_window_layers' says for which layers",
                "Correct the file.",
            )
        return tuple(window if layer >= first else None for layer in range(layers))
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def llama_spec(
    config: ConfigReader,
    *,
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
    windows: tuple[int | None, ...] | None = None,
    norm: Norm | None = None,
    rope: Rope | None = None,
    mlp: Mlp | None = None,
    tied: bool = False,
    head_dim: int | None = None,
) -> DecoderSpec:
    """The family's common shape; `dataclasses.replace` turns it into that of its relatives.

    `norm`, `rope` and `mlp` are those of relatives that read them otherwise; `tied` and `head_dim` are what
    `tie_word_embeddings` and `head_dim` mean where they are not said.
    """
    layers, heads = config.integer("num_hidden_layers"), read_heads(config, head_dim=head_dim)
    norm = norm or read_rms_norm(config)
    rope = rope or read_rope(config, heads.head_dim)
    mlp = mlp or Mlp(config.integer("intermediate_size"), read_activation(config), bias=mlp_bias)
    return DecoderSpec(
        model_type=config.text("model_type"),
        hidden=config.integer("hidden_size"),
        vocab_size=config.integer("vocab_size"),
        max_positions=extended_positions(config.integer("max_position_embeddings"), rope),
        layers=tuple(Layer(mlp, rope, window) for window in windows or (None,) * layers),
        attention=Attention(
            heads=heads.heads,
            kv_heads=heads.kv_heads,
            head_dim=heads.head_dim,
            scale=heads.scale,
            qkv_bias=qkv_bias,
            output_bias=output_bias,
            qk_norm=QkNorm(norm) if qk_norm else None,
        ),
        norm=norm,
        tied_embeddings=config.flag("tie_word_embeddings", tied),
    )


def change_attention(spec: DecoderSpec, **changes: Any) -> DecoderSpec:
    """The spec with fields of its grouped attention replaced."""
    assert isinstance(spec.attention, Attention)
    return replace(spec, attention=replace(spec.attention, **changes))


RECIPES = (
    Recipe(("llama",), read_llama, NAMES),
    Recipe(("mistral",), read_mistral, NAMES),
    Recipe(("qwen2",), read_qwen2, NAMES),
    Recipe(("qwen3",), read_qwen3, NAMES),
)
