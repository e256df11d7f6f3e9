"""OPT and Galactica: learned positions from row 2 on; the 350M has norms behind the residual and narrow embeddings."""

from __future__ import annotations

from trtbuild.architectures.config_reader import ConfigReader
from trtbuild.architectures.reading import read_activation, read_heads
from trtbuild.architectures.recipe import Recipe, Role
from trtbuild.architectures.spec import (
    Attention,
    DecoderSpec,
    GateLayout,
    Layer,
    LearnedPositions,
    Mlp,
    Norm,
    NormKind,
    NormPlace,
)

POSITION_OFFSET = 2
"""fairseq's positions begin behind the padding's."""


def read_opt(config: ConfigReader) -> DecoderSpec:
    config.pass_over("dropout", "activation_dropout", "layerdrop", "init_std")
    heads = read_heads(config, kv_heads=None)
    hidden, bias = config.integer("hidden_size"), config.flag("enable_bias", True)
    affine, before = config.flag("layer_norm_elementwise_affine", True), config.flag("do_layer_norm_before", True)
    width = config.integer("word_embed_proj_dim", hidden)
    positions = config.integer("max_position_embeddings")
    mlp = Mlp(config.integer("ffn_dim"), read_activation(config, "activation_function", "relu"), GateLayout.NONE, bias)
    return DecoderSpec(
        model_type=config.text("model_type"),
        hidden=hidden,
        vocab_size=config.integer("vocab_size"),
        max_positions=positions,
        layers=(Layer(mlp),) * config.integer("num_hidden_layers"),
        attention=Attention(
            heads=heads.heads,
            kv_heads=heads.heads,
            head_dim=heads.head_dim,
            scale=heads.scale,
            qkv_bias=bias,
            output_bias=bias,
        ),
        norm=Norm(NormKind.LAYER, 1e-5, weight=affine, bias=affine),
        norm_place=NormPlace.BEFORE if before else NormPlace.AFTER_RESIDUAL,
        tied_embeddings=config.flag("tie_word_embeddings", True),
        learned_positions=LearnedPositions(positions, POSITION_OFFSET),
        embedding_width=None if width == hidden else width,
        final_norm=before and not config.flag("_remove_final_layer_norm", False),
    )


RECIPES = (
    Recipe(
        ("opt",),
        read_opt,
        {
            Role.EMBEDDING: "embed_tokens",
            Role.POSITIONS: "embed_positions",
            Role.PROJECT_IN: "project_in",
            Role.ATTENTION_NORM: "layers.{}.self_attn_layer_norm",
            Role.Q: "layers.{}.self_attn.q_proj",
            Role.K: "layers.{}.self_attn.k_proj",
            Role.V: "layers.{}.self_attn.v_proj",
            Role.OUTPUT: "layers.{}.self_attn.out_proj",
            Role.MLP_NORM: "layers.{}.final_layer_norm",
            Role.UP: "layers.{}.fc1",
            Role.DOWN: "layers.{}.fc2",
            Role.FINAL_NORM: "final_layer_norm",
            Role.PROJECT_OUT: "project_out",
            Role.HEAD: "lm_head",
        },
        prefixes=("model.decoder.", "decoder.", ""),
    ),
)
