"""BLOOM and BLOOMZ: ALiBi, a norm on the embeddings, q, k and v in one matrix by head."""

from __future__ import annotations

from trtbuild.architectures.alibi import alibi_slopes
from trtbuild.architectures.config_reader import ConfigReader
from trtbuild.architectures.reading import read_either, read_layer_norm, read_width_and_heads
from trtbuild.architectures.recipe import Recipe, Role
from trtbuild.architectures.spec import Activation, Attention, DecoderSpec, GateLayout, Layer, Mlp, QkvLayout

MEGATRON = (
    "attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion", "skip_bias_add", "skip_bias_add_qkv",
    "offset_alibi", "slow_but_exact",
)  # fmt: skip
"""What the training code was told; transformers' forward pass is the same whatever they say."""


def read_bloom(config: ConfigReader) -> DecoderSpec:
    if config.flag("apply_residual_connection_post_layernorm", False):
        raise config.refuse("'apply_residual_connection_post_layernorm' is true", "No published BLOOM has it so.")
    config.pass_over(*MEGATRON)
    hidden, heads = read_width_and_heads(config, ("n_embed", "hidden_size"), ("n_head", "num_attention_heads"))
    width = config.optional("n_inner", int) or 4 * hidden
    mlp, layers = (
        Mlp(width, Activation.GELU_TANH, GateLayout.NONE, bias=True),
        read_either(config, "n_layer", "num_hidden_layers"),
    )
    return DecoderSpec(
        model_type=config.text("model_type"),
        hidden=hidden,
        vocab_size=config.integer("vocab_size"),
        max_positions=config.integer("seq_length", 2048),
        layers=(Layer(mlp),) * layers,
        attention=Attention(
            heads=heads,
            kv_heads=heads,
            head_dim=hidden // heads,
            scale=(hidden // heads) ** -0.5,
            layout=QkvLayout.GROUPS,
            qkv_bias=True,
            output_bias=True,
            alibi=alibi_slopes(heads),
        ),
        norm=read_layer_norm(config, "layer_norm_epsilon", 1e-5),
        tied_embeddings=config.flag("tie_word_embeddings", True),
        embedding_norm=True,
    )


RECIPES = (
    Recipe(
        ("bloom",),
        read_bloom,
        {
            Role.EMBEDDING: "word_embeddings",
            Role.EMBEDDING_NORM: "word_embeddings_layernorm",
            Role.ATTENTION_NORM: "h.{}.input_layernorm",
            Role.QKV: "h.{}.self_attention.query_key_value",
            Role.OUTPUT: "h.{}.self_attention.dense",
            Role.MLP_NORM: "h.{}.post_attention_layernorm",
            Role.UP: "h.{}.mlp.dense_h_to_4h",
            Role.DOWN: "h.{}.mlp.dense_4h_to_h",
            Role.FINAL_NORM: "ln_f",
            Role.HEAD: "lm_head",
        },
        prefixes=("transformer.", ""),
    ),
)
