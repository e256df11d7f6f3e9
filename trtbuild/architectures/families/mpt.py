"""MPT: ALiBi with slopes of its own order, no biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtbuild.architectures.config_reader import ConfigReader, is_inert
from trtbuild.architectures.reading import read_either, read_width_and_heads
from trtbuild.architectures.recipe import Recipe, Role
from trtbuild.architectures.spec import (
    Activation,
    Attention,
    DecoderSpec,
    GateLayout,
    Layer,
    Mlp,
    Norm,
    NormKind,
    QkvLayout,
)

KNOWN = {
    "alibi", "alibi_bias_max", "attn_impl", "attn_pdrop", "attn_type", "attn_uses_sequence_id", "clip_qkv",
    "prefix_lm", "qk_ln", "softmax_scale",
}  # fmt: skip


def mpt_slopes(heads: int, largest: float) -> tuple[float, ...]:
    """2^(-largest i / n) for i = 1 … n, n the power of two at or above `heads`; of more than are needed, every other
    one from the second on comes first."""
    above = 1 << (heads - 1).bit_length()
    slopes = [2.0 ** (-largest * (index + 1) / above) for index in range(above)]
    return tuple(slopes if above == heads else (slopes[1::2] + slopes[::2])[:heads])


def read_mpt(config: ConfigReader) -> DecoderSpec:
    attention = _attention_config(config)
    config.pass_over(
        "emb_pdrop",
        "resid_pdrop",
        "embedding_fraction",
        "init_config",
        "init_device",
        "learned_pos_emb",
        "tokenizer_name",
        "verbose",
    )
    if not config.flag("no_bias", True):
        raise config.refuse("'no_bias' is false", "Only MPTs without biases are known.")
    if config.has("logit_scale") and config.optional("logit_scale", object) is not None:
        raise config.refuse("'logit_scale' is set", "No published MPT has it.")
    norm_type = config.text("norm_type", "low_precision_layernorm")
    if norm_type not in ("layernorm", "low_precision_layernorm"):
        raise config.refuse(f"norm_type {norm_type!r} is not known", "Known are layernorm, low_precision_layernorm.")
    hidden, heads = read_width_and_heads(config, ("d_model", "hidden_size"), ("n_heads", "num_attention_heads"))
    mlp = Mlp(config.integer("expansion_ratio", 4) * hidden, Activation.GELU, GateLayout.NONE)
    return DecoderSpec(
        model_type=config.text("model_type"),
        hidden=hidden,
        vocab_size=config.integer("vocab_size"),
        max_positions=config.integer("max_seq_len", 2048),
        layers=(Layer(mlp),) * read_either(config, "n_layers", "num_hidden_layers"),
        attention=Attention(
            heads=heads,
            kv_heads=heads,
            head_dim=hidden // heads,
            scale=attention.get("softmax_scale") or (hidden // heads) ** -0.5,
            layout=QkvLayout.BLOCKS,
            alibi=mpt_slopes(heads, float(attention.get("alibi_bias_max", 8))),
            clip=attention.get("clip_qkv") or None,
        ),
        norm=Norm(NormKind.LAYER, config.real("layer_norm_epsilon", 1e-5)),
        tied_embeddings=config.flag("tie_word_embeddings", True),
    )


def _attention_config(config: ConfigReader) -> Mapping[str, Any]:
    """`attn_config`, with nothing in it that would change the arithmetic and is not known."""
    given = config.mapping("attn_config") or {}
    for name, only in (("attn_type", "multihead_attention"), ("prefix_lm", False), ("qk_ln", False), ("alibi", True)):
        if given.get(name, only) != only:
            raise config.refuse(f"attn_config's {name!r} is {given[name]!r}", f"Only {only!r} is known.")
    unknown = sorted(name for name in given if name not in KNOWN and not is_inert(name) and given[name])
    if unknown:
        raise config.refuse(
            f"attn_config has {unknown[0]!r} = {given[unknown[0]]!r}, which is not known",
            "This MPT is not supported yet.",
        )
    return given


RECIPES = (
    Recipe(
        ("mpt",),
        read_mpt,
        {
            Role.EMBEDDING: "wte",
            Role.ATTENTION_NORM: "blocks.{}.norm_1",
            Role.QKV: "blocks.{}.attn.Wqkv",
            Role.OUTPUT: "blocks.{}.attn.out_proj",
            Role.MLP_NORM: "blocks.{}.norm_2",
            Role.UP: "blocks.{}.ffn.up_proj",
            Role.DOWN: "blocks.{}.ffn.down_proj",
            Role.FINAL_NORM: "norm_f",
            Role.HEAD: "lm_head",
        },
        prefixes=("transformer.", ""),
    ),
)
