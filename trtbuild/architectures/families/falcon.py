"""Falcon RW (ALiBi), 7B (one key/value head, parallel), 40B and 180B (groups, two norms), Falcon 2 11B (one norm)."""

from __future__ import annotations

from collections.abc import Mapping

from trtbuild.architectures.alibi import alibi_slopes
from trtbuild.architectures.config_reader import ConfigReader
from trtbuild.architectures.reading import read_activation, read_either, read_layer_norm, read_width_and_heads
from trtbuild.architectures.recipe import Recipe, Role
from trtbuild.architectures.rope import read_rope
from trtbuild.architectures.spec import Attention, DecoderSpec, GateLayout, Layer, Mlp, QkvLayout, Wiring


def read_falcon(config: ConfigReader) -> DecoderSpec:
    if config.flag("apply_residual_connection_post_layernorm", False):
        raise config.refuse("'apply_residual_connection_post_layernorm' is true", "No published Falcon has it so.")
    hidden, heads = read_width_and_heads(config, ("hidden_size", "n_embed"), ("num_attention_heads", "n_head"))
    head_dim, bias, alibi = hidden // heads, config.flag("bias", False), config.flag("alibi", False)
    scale = head_dim**-0.5
    rope = None if alibi else read_rope(config, head_dim, default_theta=10_000.0)
    if alibi:
        config.pass_over("rope_theta", "rope_scaling", "rope_parameters")
    mlp = Mlp(
        config.optional("ffn_hidden_size", int) or 4 * hidden,
        read_activation(config, "activation", "gelu"),
        GateLayout.NONE,
        bias,
    )
    return DecoderSpec(
        model_type=config.text("model_type"),
        hidden=hidden,
        vocab_size=config.integer("vocab_size"),
        max_positions=config.integer("max_position_embeddings", 2048),
        layers=(Layer(mlp, rope),) * read_either(config, "num_hidden_layers", "n_layer"),
        attention=Attention(
            heads=heads,
            kv_heads=_kv_heads(config, heads),
            head_dim=head_dim,
            scale=scale,
            layout=QkvLayout.GROUPS,
            qkv_bias=bias,
            output_bias=bias,
            # Falcon scales what BLOOM adds to scaled scores.
            alibi=tuple(slope * scale for slope in alibi_slopes(heads)) if alibi else None,
        ),
        norm=read_layer_norm(config, "layer_norm_epsilon", 1e-5),
        wiring=_wiring(config),
        tied_embeddings=config.flag("tie_word_embeddings", True),
    )


def _kv_heads(config: ConfigReader, heads: int) -> int:
    groups = read_either(config, "num_kv_heads", "n_head_kv", default=heads)
    otherwise = 1 if config.flag("multi_query", True) else heads
    found = groups if config.flag("new_decoder_architecture", False) else otherwise
    derived = config.integer("num_key_value_heads", found)  # transformers 5.25 and later write what follows
    if derived != found:
        raise config.refuse(
            f"the field 'num_key_value_heads' is {derived}, and {found} follows from the other fields",
            "One of them was changed by hand: undo that.",
        )
    return found


def _wiring(config: ConfigReader) -> Wiring:
    new, parallel = config.flag("new_decoder_architecture", False), config.flag("parallel_attn", True)
    norms = config.integer("num_ln_in_parallel_attn", 2 if new else 1)
    if new and not parallel:
        raise config.refuse("'new_decoder_architecture' without 'parallel_attn'", "No published Falcon has it so.")
    if not parallel:
        return Wiring.SEQUENTIAL
    return Wiring.PARALLEL if new and norms == 2 else Wiring.PARALLEL_ONE_NORM


def two_norms(spec: DecoderSpec) -> Mapping[Role, str]:
    """Where two norms stand side by side they are called otherwise."""
    if spec.wiring is not Wiring.PARALLEL:
        return {}
    return {Role.ATTENTION_NORM: "h.{}.ln_attn", Role.MLP_NORM: "h.{}.ln_mlp"}


RECIPES = (
    Recipe(
        ("falcon",),
        read_falcon,
        {
            Role.EMBEDDING: "word_embeddings",
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
        renamed=two_norms,
    ),
)
