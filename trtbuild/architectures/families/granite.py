"""Granite 3: Llama with a multiplier on the embeddings, the scores, the residual branches and the logits."""

from __future__ import annotations

from dataclasses import replace

from trtbuild.architectures.config_reader import ConfigReader
from trtbuild.architectures.families.llama import NAMES, change_attention, llama_spec
from trtbuild.architectures.recipe import Recipe
from trtbuild.architectures.spec import DecoderSpec


def read_granite(config: ConfigReader) -> DecoderSpec:
    bias = config.flag("attention_bias", False)
    spec = llama_spec(config, qkv_bias=bias, output_bias=bias, mlp_bias=config.flag("mlp_bias", False))
    return replace(
        change_attention(spec, scale=config.real("attention_multiplier", 1.0)),
        embedding_scale=config.real("embedding_multiplier", 1.0),
        residual_scale=config.real("residual_multiplier", 1.0),
        logits_scale=1.0 / config.real("logits_scaling", 1.0),
    )


RECIPES = (Recipe(("granite",), read_granite, NAMES),)
