"""GPT-J: parallel attention and MLP on one norm, interleaved RoPE on part of a head, a bias on the head."""

from __future__ import annotations

from trtbuild.architectures.config_reader import ConfigReader
from trtbuild.architectures.reading import read_activation, read_either, read_layer_norm, read_width_and_heads
from trtbuild.architectures.recipe import Recipe, Role
from trtbuild.architectures.rope_spec import Rope
from trtbuild.architectures.spec import Attention, DecoderSpec, GateLayout, Layer, Mlp, Wiring

UNREAD = (
    "attn_pdrop", "embd_pdrop", "resid_pdrop", "rotary", "scale_attn_weights", "summary_activation",
    "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj", "gradient_checkpointing",
)  # fmt: skip


def read_gptj(config: ConfigReader) -> DecoderSpec:
    config.pass_over(*UNREAD)
    hidden, heads = read_width_and_heads(config, ("n_embd", "hidden_size"), ("n_head", "num_attention_heads"))
    head_dim = hidden // heads
    rotated = config.integer("rotary_dim", head_dim if config.has("rotary_dim") else 64)
    if rotated % 2 or not 0 < rotated <= head_dim:
        raise config.refuse(f"'rotary_dim' is {rotated} of a head's {head_dim}", "It must be an even number of them.")
    mlp = Mlp(
        config.optional("n_inner", int) or 4 * hidden,
        read_activation(config, "activation_function", "gelu_new"),
        GateLayout.NONE,
        bias=True,
    )
    rope = Rope(10_000.0, rotated, interleaved=True)
    return DecoderSpec(
        model_type=config.text("model_type"),
        hidden=hidden,
        vocab_size=config.integer("vocab_size"),
        max_positions=read_either(config, "n_positions", "max_position_embeddings"),
        layers=(Layer(mlp, rope),) * read_either(config, "n_layer", "num_hidden_layers"),
        attention=Attention(heads=heads, kv_heads=heads, head_dim=head_dim, scale=head_dim**-0.5),
        norm=read_layer_norm(config, "layer_norm_epsilon", 1e-5),
        wiring=Wiring.PARALLEL_ONE_NORM,
        tied_embeddings=config.flag("tie_word_embeddings", False),
        head_bias=True,
    )


RECIPES = (
    Recipe(
        ("gptj",),
        read_gptj,
        {
            Role.EMBEDDING: "wte",
            Role.ATTENTION_NORM: "h.{}.ln_1",
            Role.Q: "h.{}.attn.q_proj",
            Role.K: "h.{}.attn.k_proj",
            Role.V: "h.{}.attn.v_proj",
            Role.OUTPUT: "h.{}.attn.out_proj",
            Role.UP: "h.{}.mlp.fc_in",
            Role.DOWN: "h.{}.mlp.fc_out",
            Role.FINAL_NORM: "ln_f",
            Role.HEAD: "lm_head",
        },
        prefixes=("transformer.", ""),
    ),
)
