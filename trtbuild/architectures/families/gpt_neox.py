"""GPT-NeoX, Pythia, Dolly, RedPajama: parallel attention and MLP, each behind its norm; RoPE on part of a head."""

from __future__ import annotations

from dataclasses import replace

from trtbuild.architectures.config_reader import ConfigReader
from trtbuild.architectures.families.llama import change_attention, llama_spec
from trtbuild.architectures.reading import read_activation, read_heads, read_layer_norm
from trtbuild.architectures.recipe import Recipe, Role
from trtbuild.architectures.rope import read_rope
from trtbuild.architectures.spec import DecoderSpec, GateLayout, Mlp, QkvLayout, Wiring


def read_gpt_neox(config: ConfigReader) -> DecoderSpec:
    config.pass_over("classifier_dropout", "hidden_dropout")
    base, share = config.number("rotary_emb_base"), config.number("rotary_pct")
    rope = read_rope(
        config,
        read_heads(config, kv_heads=None).head_dim,
        default_theta=10_000.0 if base is None else base,
        default_partial=0.25 if share is None else share,
    )
    bias = config.flag("attention_bias", True)
    spec = llama_spec(
        config,
        qkv_bias=bias,
        output_bias=bias,
        norm=read_layer_norm(config, "layer_norm_eps", 1e-5),
        rope=rope,
        mlp=Mlp(
            config.integer("intermediate_size"), read_activation(config, default="gelu"), GateLayout.NONE, bias=True
        ),
    )
    wiring = Wiring.PARALLEL if config.flag("use_parallel_residual", True) else Wiring.SEQUENTIAL
    return replace(change_attention(spec, layout=QkvLayout.GROUPS), wiring=wiring)


RECIPES = (
    Recipe(
        ("gpt_neox",),
        read_gpt_neox,
        {
            Role.EMBEDDING: "embed_in",
            Role.ATTENTION_NORM: "layers.{}.input_layernorm",
            Role.QKV: "layers.{}.attention.query_key_value",
            Role.OUTPUT: "layers.{}.attention.dense",
            Role.MLP_NORM: "layers.{}.post_attention_layernorm",
            Role.UP: "layers.{}.mlp.dense_h_to_4h",
            Role.DOWN: "layers.{}.mlp.dense_4h_to_h",
            Role.FINAL_NORM: "final_layer_norm",
            Role.HEAD: "embed_out",
        },
        prefixes=("gpt_neox.", ""),
    ),
)
