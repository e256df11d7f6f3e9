"""Phi-1, Phi-1.5 and Phi-2: attention and MLP side by side after one LayerNorm, biases everywhere, the head's too."""

from __future__ import annotations

from dataclasses import replace

from trtbuild.architectures.config_reader import ConfigReader
from trtbuild.architectures.families.llama import NAMES, change_attention, llama_spec
from trtbuild.architectures.reading import read_activation, read_heads, read_layer_norm
from trtbuild.architectures.recipe import Recipe, Role
from trtbuild.architectures.rope import read_rope
from trtbuild.architectures.spec import DecoderSpec, GateLayout, Mlp, QkNorm, Wiring


def read_phi(config: ConfigReader) -> DecoderSpec:
    config.pass_over("embd_pdrop", "resid_pdrop")
    norm, activation = read_layer_norm(config, "layer_norm_eps", 1e-5), read_activation(config, default="gelu_new")
    rope = read_rope(config, read_heads(config).head_dim, default_partial=0.5, default_theta=10_000.0)
    mlp = Mlp(config.integer("intermediate_size"), activation, GateLayout.NONE, bias=True)
    spec = llama_spec(config, qkv_bias=True, output_bias=True, norm=norm, rope=rope, mlp=mlp)
    if config.flag("qk_layernorm", False):
        spec = change_attention(spec, qk_norm=QkNorm(norm))
    return replace(spec, wiring=Wiring.PARALLEL_ONE_NORM, head_bias=True)


RECIPES = (
    Recipe(
        ("phi",),
        read_phi,
        {
            **NAMES,
            Role.Q_NORM: "layers.{}.self_attn.q_layernorm",
            Role.K_NORM: "layers.{}.self_attn.k_layernorm",
            Role.OUTPUT: "layers.{}.self_attn.dense",
            Role.UP: "layers.{}.mlp.fc1",
            Role.DOWN: "layers.{}.mlp.fc2",
            Role.FINAL_NORM: "final_layernorm",
        },
    ),
)
