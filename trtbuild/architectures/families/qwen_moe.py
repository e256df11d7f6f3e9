"""Qwen1.5-MoE and Qwen2-MoE (a shared expert behind a gate), Qwen3-MoE."""

from __future__ import annotations

from dataclasses import replace

from trtbuild.architectures.config_reader import ConfigReader
from trtbuild.architectures.families.llama import NAMES, llama_spec
from trtbuild.architectures.reading import SLIDING, read_activation, read_layer_types
from trtbuild.architectures.recipe import Recipe, Role
from trtbuild.architectures.spec import DecoderSpec, Experts, Mlp, Router, RouterScore


def read_qwen2_moe(config: ConfigReader) -> DecoderSpec:
    spec = llama_spec(config, qkv_bias=config.flag("qkv_bias", True), windows=_qwen2_moe_windows(config))
    shared = Mlp(config.integer("shared_expert_intermediate_size"), read_activation(config))
    return _with_experts(config, spec, shared)


def read_qwen3_moe(config: ConfigReader) -> DecoderSpec:
    layers, bias = config.integer("num_hidden_layers"), config.flag("attention_bias", False)
    window = config.optional("sliding_window", int) if config.flag("use_sliding_window", False) else None
    config.pass_over("sliding_window", "max_window_layers")
    spec = llama_spec(config, qkv_bias=bias, output_bias=bias, qk_norm=True, windows=(window,) * layers)
    return _with_experts(config, spec, None)


def _with_experts(config: ConfigReader, spec: DecoderSpec, shared: Mlp | None) -> DecoderSpec:
    """Experts in every `decoder_sparse_step`th layer but those of `mlp_only_layers`."""
    config.pass_over("router_aux_loss_coef", "output_router_logits")
    router = Router(
        RouterScore.SOFTMAX, config.integer("num_experts_per_tok"), normalise=config.flag("norm_topk_prob", False)
    )
    mlp = Mlp(config.integer("moe_intermediate_size"), read_activation(config))
    # transformers 5 writes Qwen3-MoE's `num_experts` under another name.
    count = config.optional("num_local_experts", int) or config.integer("num_experts")
    experts = Experts(count, mlp, router, shared, shared_gate=shared is not None)
    dense = config.integers("mlp_only_layers") or ()
    step = config.integer("decoder_sparse_step", 1)
    layers = tuple(
        replace(layer, mlp=layer.mlp if index in dense or (index + 1) % step else experts)
        for index, layer in enumerate(spec.layers)
    )
    return replace(spec, layers=layers)


def _qwen2_moe_windows(config: ConfigReader) -> tuple[int | None, ...]:
    """Without `layer_types`, every other one of the first `max_window_layers` has the window, as transformers does."""
    layers = config.integer("num_hidden_layers")
    window, first = config.optional("sliding_window", int), config.integer("max_window_layers", 28)
    kinds = read_layer_types(config, layers)
    if not config.flag("use_sliding_window", False):
        return (None,) * layers
    if kinds is None:
        return tuple(window if index % 2 == 0 and index < first else None for index in range(layers))
    return tuple(window if kind == SLIDING else None for kind in kinds)


EXPERTS = {
    Role.ROUTER: "layers.{}.mlp.gate",
    Role.EXPERT_GATE: "layers.{}.mlp.experts.{}.gate_proj",
    Role.EXPERT_UP: "layers.{}.mlp.experts.{}.up_proj",
    Role.EXPERT_DOWN: "layers.{}.mlp.experts.{}.down_proj",
}
SHARED = {
    Role.SHARED_ROUTER: "layers.{}.mlp.shared_expert_gate",
    Role.SHARED_GATE: "layers.{}.mlp.shared_expert.gate_proj",
    Role.SHARED_UP: "layers.{}.mlp.shared_expert.up_proj",
    Role.SHARED_DOWN: "layers.{}.mlp.shared_expert.down_proj",
}

RECIPES = (
    Recipe(("qwen2_moe",), read_qwen2_moe, {**NAMES, **EXPERTS, **SHARED}),
    Recipe(("qwen3_moe",), read_qwen3_moe, {**NAMES, **EXPERTS}),
)
