"""GPT-OSS: attention sinks, a window on every other layer, experts with biases and a clamped SwiGLU."""

from __future__ import annotations

from dataclasses import replace

from trtbuild.architectures.config_reader import ConfigReader
from trtbuild.architectures.families.llama import NAMES, change_attention, llama_spec
from trtbuild.architectures.reading import FULL, SLIDING, read_windows
from trtbuild.architectures.recipe import BIAS, WEIGHT, Recipe, Role
from trtbuild.architectures.spec import (
    Activation,
    DecoderSpec,
    Experts,
    GateLayout,
    Mlp,
    Router,
    RouterScore,
)


def read_gpt_oss(config: ConfigReader) -> DecoderSpec:
    layers, bias = config.integer("num_hidden_layers"), config.flag("attention_bias", True)
    windows = read_windows(config, layers, tuple(FULL if index % 2 else SLIDING for index in range(layers)))
    for field, only in (("swiglu_alpha", 1.702), ("swiglu_limit", 7.0)):
        if config.real(field, only) != only:
            raise config.refuse(f"{field!r} is {config.real(field)}", f"Only {only} is known.")
    config.pass_over("initial_context_length", "experts_per_token", "router_aux_loss_coef", "output_router_logits")
    spec = llama_spec(config, qkv_bias=bias, output_bias=bias, windows=windows)
    mlp = Mlp(config.integer("intermediate_size"), Activation.CLAMPED_SWIGLU, GateLayout.INTERLEAVED, bias=True)
    router = Router(RouterScore.SOFTMAX, config.integer("num_experts_per_tok", 4), normalise=True, bias=True)
    experts = Experts(config.integer("num_local_experts"), mlp, router)
    spec = replace(spec, layers=tuple(replace(layer, mlp=experts) for layer in spec.layers))
    return change_attention(spec, sinks=True)


RECIPES = (
    Recipe(
        ("gpt_oss",),
        read_gpt_oss,
        {**NAMES, Role.ROUTER: "layers.{}.mlp.router"},
        irregular={
            (Role.SINKS, WEIGHT): "layers.{}.self_attn.sinks",
            (Role.EXPERT_GATE_UP, WEIGHT): "layers.{}.mlp.experts.gate_up_proj",
            (Role.EXPERT_GATE_UP, BIAS): "layers.{}.mlp.experts.gate_up_proj_bias",
            (Role.EXPERT_DOWN, WEIGHT): "layers.{}.mlp.experts.down_proj",
            (Role.EXPERT_DOWN, BIAS): "layers.{}.mlp.experts.down_proj_bias",
        },
        transposed=frozenset({Role.EXPERT_GATE_UP, Role.EXPERT_DOWN}),
    ),
)
