"""Ministral (a sliding window on some layers), Ministral 3 and Devstral 2 (queries that grow with their position)."""

from __future__ import annotations

from trtbuild.architectures.config_reader import ConfigReader
from trtbuild.architectures.families.llama import NAMES, change_attention, llama_spec
from trtbuild.architectures.reading import FULL, SLIDING, read_heads, read_windows
from trtbuild.architectures.recipe import Recipe
from trtbuild.architectures.rope import read_rope, rope_parameters
from trtbuild.architectures.spec import DecoderSpec, PositionScale

GROWTH = frozenset({"llama_4_scaling_beta", "max_position_embeddings"})
"""What Ministral 3's rope_parameters have besides RoPE's own; of the second, transformers makes nothing."""


def read_ministral(config: ConfigReader) -> DecoderSpec:
    layers = config.integer("num_hidden_layers")
    slides = config.optional("sliding_window", int) is not None or not config.has("sliding_window")
    windows = read_windows(config, layers, (SLIDING if slides else FULL,) * layers)
    return llama_spec(config, windows=windows)


def read_ministral3(config: ConfigReader) -> DecoderSpec:
    window = config.optional("sliding_window", int)
    rope = read_rope(config, read_heads(config).head_dim, extra=GROWTH)
    parameters = rope_parameters(config)
    beta, original = parameters.get("llama_4_scaling_beta"), parameters.get("original_max_position_embeddings")
    if not isinstance(beta, int | float) or not isinstance(original, int) or original < 1:
        raise config.refuse(
            "rope_parameters must have 'llama_4_scaling_beta' and 'original_max_position_embeddings', by which queries "
            f"grow with their position; they are {beta!r} and {original!r}",
            "Take the config.json that belongs to these weights.",
        )
    spec = llama_spec(config, rope=rope, windows=(window,) * config.integer("num_hidden_layers"))
    return change_attention(spec, position_scale=PositionScale(float(beta), original) if beta else None)


RECIPES = (
    Recipe(("ministral",), read_ministral, NAMES),
    Recipe(("ministral3",), read_ministral3, NAMES),
)
