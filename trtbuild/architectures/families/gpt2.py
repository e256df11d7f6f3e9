"""GPT-2, DistilGPT-2, DialoGPT: learned positions, projections stored as [in, out]."""

from __future__ import annotations

from trtbuild.architectures.config_reader import ConfigReader
from trtbuild.architectures.reading import read_activation, read_either, read_layer_norm, read_width_and_heads
from trtbuild.architectures.recipe import Recipe, Role
from trtbuild.architectures.spec import Attention, DecoderSpec, GateLayout, Layer, LearnedPositions, Mlp, QkvLayout

UNREAD = (
    "attn_pdrop", "embd_pdrop", "resid_pdrop", "n_ctx", "summary_activation", "summary_first_dropout",
    "summary_proj_to_labels", "summary_type", "summary_use_proj", "reorder_and_upcast_attn", "gradient_checkpointing",
)  # fmt: skip


def read_gpt2(config: ConfigReader) -> DecoderSpec:
    config.pass_over(*UNREAD)
    for field in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        if config.flag(field, False):
            raise config.refuse(f"{field!r} is true", "Such a GPT-2 is not supported.")
    hidden, heads = read_width_and_heads(config, ("n_embd", "hidden_size"), ("n_head", "num_attention_heads"))
    positions = read_either(config, "n_positions", "max_position_embeddings")
    mlp = Mlp(
        config.optional("n_inner", int) or 4 * hidden,
        read_activation(config, "activation_function", "gelu_new"),
        GateLayout.NONE,
        bias=True,
    )
    return DecoderSpec(
        model_type=config.text("model_type"),
        hidden=hidden,
        vocab_size=config.integer("vocab_size"),
        max_positions=positions,
        layers=(Layer(mlp),) * read_either(config, "n_layer", "num_hidden_layers"),
        attention=Attention(
            heads=heads,
            kv_heads=heads,
            head_dim=hidden // heads,
            scale=(hidden // heads) ** -0.5 if config.flag("scale_attn_weights", True) else 1.0,
            layout=QkvLayout.BLOCKS,
            qkv_bias=True,
            output_bias=True,
        ),
        norm=read_layer_norm(config, "layer_norm_epsilon", 1e-5),
        tied_embeddings=config.flag("tie_word_embeddings", True),
        learned_positions=LearnedPositions(positions),
    )


RECIPES = (
    Recipe(
        ("gpt2",),
        read_gpt2,
        {
            Role.EMBEDDING: "wte",
            Role.POSITIONS: "wpe",
            Role.ATTENTION_NORM: "h.{}.ln_1",
            Role.QKV: "h.{}.attn.c_attn",
            Role.OUTPUT: "h.{}.attn.c_proj",
            Role.MLP_NORM: "h.{}.ln_2",
            Role.UP: "h.{}.mlp.c_fc",
            Role.DOWN: "h.{}.mlp.c_proj",
            Role.FINAL_NORM: "ln_f",
            Role.HEAD: "lm_head",
        },
        prefixes=("transformer.", ""),
        transposed=frozenset({Role.QKV, Role.OUTPUT, Role.UP, Role.DOWN}),
    ),
)
