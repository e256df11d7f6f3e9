"""Command R, R+, R7B and Aya: Cohere 1 and 2."""

from __future__ import annotations

from dataclasses import replace

from trtbuild.architectures.config_reader import ConfigReader
from trtbuild.architectures.families.llama import NAMES, change_attention, llama_spec
from trtbuild.architectures.reading import FULL, SLIDING, read_heads, read_layer_norm, read_windows
from trtbuild.architectures.recipe import Recipe, Role
from trtbuild.architectures.rope import read_rope
from trtbuild.architectures.spec import DecoderSpec, QkNorm, QkNormSpan, Wiring


def read_cohere(config: ConfigReader) -> DecoderSpec:
    spec = _spec(config, (None,) * config.integer("num_hidden_layers"))
    if config.flag("use_qk_norm", False):
        spec = change_attention(spec, qk_norm=QkNorm(spec.norm, QkNormSpan.EACH_HEAD))
    return spec


def read_cohere2(config: ConfigReader) -> DecoderSpec:
    """Layers with a window have RoPE, those without have no positions at all."""
    layers, pattern = config.integer("num_hidden_layers"), config.integer("sliding_window_pattern", 4)
    config.pass_over("order_of_interleaved_layers", "position_embedding_type", "rotary_pct", "cache_implementation")
    if config.flag("use_qk_norm", False):
        raise config.refuse("'use_qk_norm' is true", "transformers has no such norm in this family.")
    kinds = tuple(SLIDING if (index + 1) % pattern else FULL for index in range(layers))
    spec = _spec(config, read_windows(config, layers, kinds))
    return replace(
        spec, layers=tuple(replace(layer, rope=layer.rope if layer.window else None) for layer in spec.layers)
    )


def _spec(config: ConfigReader, windows: tuple[int | None, ...]) -> DecoderSpec:
    for always in ("use_parallel_block", "use_gated_activation"):
        if not config.flag(always, True):
            raise config.refuse(f"{always!r} is false", "No published model of the family has it so.")
    config.pass_over("use_parallel_embedding", "use_embedding_sharing", "layer_switch", "model_max_length")
    bias = config.flag("attention_bias", False)
    norm = read_layer_norm(config, "layer_norm_eps", 1e-5, bias=False)
    rope = read_rope(config, read_heads(config).head_dim, interleaved=True, default_theta=500_000.0)
    spec = llama_spec(config, qkv_bias=bias, output_bias=bias, windows=windows, norm=norm, rope=rope, tied=True)
    return replace(spec, wiring=Wiring.PARALLEL_ONE_NORM, logits_scale=config.real("logit_scale", 0.0625))


COHERE_NAMES: dict[Role, str] = {role: name for role, name in NAMES.items() if role is not Role.MLP_NORM}

RECIPES = (Recipe(("cohere",), read_cohere, COHERE_NAMES), Recipe(("cohere2",), read_cohere2, COHERE_NAMES))
