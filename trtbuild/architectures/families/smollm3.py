"""SmolLM3: every fourth layer has no positions."""

from __future__ import annotations

from dataclasses import replace

from trtbuild.architectures.config_reader import ConfigReader
from trtbuild.architectures.families.llama import NAMES, llama_spec
from trtbuild.architectures.reading import SLIDING, read_layer_types
from trtbuild.architectures.recipe import Recipe
from trtbuild.architectures.spec import DecoderSpec


def read_smollm3(config: ConfigReader) -> DecoderSpec:
    config.pass_over("max_window_layers")  # copied from Qwen's files; transformers reads it nowhere
    count, bias = config.integer("num_hidden_layers"), config.flag("attention_bias", False)
    rotated = _rotated(config, count)
    windows = _windows(config, rotated)
    mlp_bias = config.flag("mlp_bias", False)
    spec = llama_spec(config, qkv_bias=bias, output_bias=bias, mlp_bias=mlp_bias, windows=windows, tied=True)
    layers = zip(spec.layers, rotated, strict=True)
    return replace(spec, layers=tuple(layer if turned else replace(layer, rope=None) for layer, turned in layers))


def _rotated(config: ConfigReader, layers: int) -> tuple[bool, ...]:
    """`no_rope_layers` has a 1 for each layer *with* RoPE; without it every `no_rope_layer_interval`th has none."""
    interval, listed = config.integer("no_rope_layer_interval", 4), config.integers("no_rope_layers")
    if listed is None and interval < 1:
        raise config.refuse(f"'no_rope_layer_interval' is {interval}, not a positive number", "Correct the file.")
    if listed is None:
        return tuple((layer + 1) % interval != 0 for layer in range(layers))
    if len(listed) != layers or not set(listed) <= {0, 1}:
        raise config.refuse(f"'no_rope_layers' must have a 0 or a 1 for each of {layers} layers", "Correct the file.")
    return tuple(flag == 1 for flag in listed)


def _windows(config: ConfigReader, rotated: tuple[bool, ...]) -> tuple[int | None, ...]:
    """Where `layer_types` does not say, the window is that of the layers without RoPE."""
    kinds, window = read_layer_types(config, len(rotated)), config.optional("sliding_window", int)
    if not config.flag("use_sliding_window", False) or window is None:
        if kinds is not None and SLIDING in kinds:
            raise config.refuse(
                "'layer_types' has sliding layers, and 'use_sliding_window' is false or there is no 'sliding_window'",
                "Correct the file: they must agree.",
            )
        return (None,) * len(rotated)
    if kinds is None:
        return tuple(None if turned else window for turned in rotated)
    return tuple(window if kind == SLIDING else None for kind in kinds)


RECIPES = (Recipe(("smollm3",), read_smollm3, NAMES),)
