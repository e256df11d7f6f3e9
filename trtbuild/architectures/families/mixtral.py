"""Mixtral: Mistral with eight experts in place of the MLP."""

from __future__ import annotations

from dataclasses import replace

from trtbuild.architectures.config_reader import ConfigReader
from trtbuild.architectures.families.llama import NAMES, llama_spec
from trtbuild.architectures.recipe import Recipe, Role
from trtbuild.architectures.spec import DecoderSpec, Experts, Mlp, Router, RouterScore


def read_mixtral(config: ConfigReader) -> DecoderSpec:
    window = config.optional("sliding_window", int)
    spec = llama_spec(config, windows=(window,) * config.integer("num_hidden_layers"))
    config.pass_over("router_aux_loss_coef", "output_router_logits", "router_jitter_noise")

    def experts(mlp: Mlp) -> Experts:
        router = Router(RouterScore.SOFTMAX, config.integer("num_experts_per_tok", 2), normalise=True)
        return Experts(config.integer("num_local_experts", 8), mlp, router)

    layers = tuple(replace(layer, mlp=experts(layer.mlp)) for layer in spec.layers if isinstance(layer.mlp, Mlp))
    return replace(spec, layers=layers)


RECIPES = (
    Recipe(
        ("mixtral",),
        read_mixtral,
        {
            **NAMES,
            Role.ROUTER: "layers.{}.block_sparse_moe.gate",
            Role.EXPERT_GATE: "layers.{}.block_sparse_moe.experts.{}.w1",
            Role.EXPERT_UP: "layers.{}.block_sparse_moe.experts.{}.w3",
            Role.EXPERT_DOWN: "layers.{}.block_sparse_moe.experts.{}.w2",
        },
    ),
)
