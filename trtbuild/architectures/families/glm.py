"""GLM-4 9B (`glm`), and GLM-4-0414 and Z1 (`glm4`), which have norms behind each part too."""

from __future__ import annotations

from dataclasses import replace

from trtbuild.architectures.config_reader import ConfigReader
from trtbuild.architectures.families.llama import NAMES, llama_spec
from trtbuild.architectures.reading import read_activation, read_heads
from trtbuild.architectures.recipe import Recipe, Role
from trtbuild.architectures.rope import read_rope, rope_parameters
from trtbuild.architectures.spec import DecoderSpec, GateLayout, Mlp, NormPlace


def read_glm(config: ConfigReader) -> DecoderSpec:
    said = config.has("partial_rotary_factor") or "partial_rotary_factor" in rope_parameters(config)
    rope = read_rope(
        config, read_heads(config).head_dim, interleaved=True, partial=None if said else 0.5, default_theta=10_000.0
    )
    mlp = Mlp(config.integer("intermediate_size"), read_activation(config), GateLayout.BLOCKS)
    return llama_spec(config, qkv_bias=config.flag("attention_bias", True), rope=rope, mlp=mlp)


def read_glm4(config: ConfigReader) -> DecoderSpec:
    return replace(read_glm(config), norm_place=NormPlace.AROUND)


GLM_NAMES = {**NAMES, Role.GATE_UP: "layers.{}.mlp.gate_up_proj"}

RECIPES = (
    Recipe(("glm",), read_glm, GLM_NAMES),
    Recipe(
        ("glm4",),
        read_glm4,
        {
            **GLM_NAMES,
            Role.ATTENTION_POST_NORM: "layers.{}.post_self_attn_layernorm",
            Role.MLP_POST_NORM: "layers.{}.post_mlp_layernorm",
        },
    ),
)
