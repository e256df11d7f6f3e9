"""Baichuan 1 and 2, 7B (RoPE) and 13B (ALiBi). The hub keeps their code beside the weights; none of it is run."""

from __future__ import annotations

from trtbuild.architectures.alibi import alibi_slopes
from trtbuild.architectures.config_reader import ConfigReader
from trtbuild.architectures.families.llama import NAMES
from trtbuild.architectures.reading import read_activation, read_heads, read_rms_norm
from trtbuild.architectures.recipe import Recipe, Role
from trtbuild.architectures.rope_spec import Rope
from trtbuild.architectures.spec import Attention, DecoderSpec, Layer, Mlp, QkvLayout

VOCABULARIES = {64_000: False, 125_696: True}
"""No field says whether the head is normalised, which is what sets Baichuan 2 apart; its vocabulary does."""


def read_baichuan(config: ConfigReader) -> DecoderSpec:
    """7B's code reads `max_position_embeddings` and rotates; 13B's reads only `model_max_length` and has ALiBi."""
    heads = read_heads(config, kv_heads=None)
    positions = config.optional("max_position_embeddings", int)
    rope = None if positions is None else Rope(10_000.0, heads.head_dim)
    longest = config.integer("model_max_length", positions)
    config.pass_over("gradient_checkpointing")
    mlp, layers = Mlp(config.integer("intermediate_size"), read_activation(config)), config.integer("num_hidden_layers")
    vocabulary = config.integer("vocab_size")
    # Only Baichuan 2's code has the weight of this term of the loss, and files that transformers wrote name it.
    normalised = VOCABULARIES.get(vocabulary, True if config.has("z_loss_weight") else None)
    if normalised is None:
        raise config.refuse(
            f"a vocabulary of {vocabulary} does not tell Baichuan 1 (64000) from Baichuan 2 (125696)",
            'If it is Baichuan 2, add "z_loss_weight": 0 to the file, as its own has.',
        )
    config.pass_over("z_loss_weight")
    return DecoderSpec(
        model_type=config.text("model_type"),
        hidden=config.integer("hidden_size"),
        vocab_size=vocabulary,
        max_positions=longest,
        layers=tuple(Layer(mlp, rope) for _ in range(layers)),
        attention=Attention(
            heads=heads.heads,
            kv_heads=heads.heads,
            head_dim=heads.head_dim,
            scale=heads.scale,
            layout=QkvLayout.BLOCKS,
            alibi=alibi_slopes(heads.heads) if rope is None else None,
        ),
        norm=read_rms_norm(config),
        tied_embeddings=config.flag("tie_word_embeddings", False),
        head_normalised=normalised,
    )


RECIPES = (Recipe(("baichuan",), read_baichuan, {**NAMES, Role.QKV: "layers.{}.self_attn.W_pack"}),)
