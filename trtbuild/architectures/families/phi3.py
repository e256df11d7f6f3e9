"""Phi-3, Phi-3.5 and Phi-4: fused projections, LongRoPE for long contexts; Phi-4-mini rotates part of each head."""

from __future__ import annotations

from trtbuild.architectures.config_reader import ConfigReader
from trtbuild.architectures.families.llama import NAMES, change_attention, llama_spec
from trtbuild.architectures.reading import read_activation, read_heads
from trtbuild.architectures.recipe import Recipe, Role
from trtbuild.architectures.rope import read_rope
from trtbuild.architectures.rope_spec import LongRopeScaling, Rope
from trtbuild.architectures.spec import DecoderSpec, GateLayout, Mlp, QkvLayout


def read_phi3(config: ConfigReader) -> DecoderSpec:
    config.pass_over("embd_pdrop", "resid_pdrop")
    for switch in ("full_attn_mod", "interpolate_factor"):  # in Phi-4-mini's files; transformers reads neither
        if config.integer(switch, 1) != 1:
            raise config.refuse(f"{switch!r} is not 1, as in every published file", "This model is not supported.")
    mlp = Mlp(config.integer("intermediate_size"), read_activation(config), GateLayout.BLOCKS)
    window = config.optional("sliding_window", int)
    windows = (window,) * config.integer("num_hidden_layers")
    return change_attention(llama_spec(config, rope=_rope(config), mlp=mlp, windows=windows), layout=QkvLayout.BLOCKS)


def _rope(config: ConfigReader) -> Rope:
    rope = read_rope(config, read_heads(config).head_dim, default_theta=10_000.0)
    original = config.optional("original_max_position_embeddings", int)
    if rope.scaling is None:
        return rope
    if not isinstance(rope.scaling, LongRopeScaling):
        raise config.refuse("RoPE is scaled, and not by 'longrope', the only way that Phi-3 has", "Correct the file.")
    if original is None:
        raise config.refuse(
            "'original_max_position_embeddings', beyond which the long factors count, is missing",
            "Take the config.json that belongs to these weights.",
        )
    return rope


RECIPES = (
    Recipe(
        ("phi3",),
        read_phi3,
        {**NAMES, Role.QKV: "layers.{}.self_attn.qkv_proj", Role.GATE_UP: "layers.{}.mlp.gate_up_proj"},
    ),
)
