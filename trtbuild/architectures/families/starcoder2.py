"""StarCoder2: LayerNorm, biases, an MLP without a gate."""

from __future__ import annotations

from trtbuild.architectures.config_reader import ConfigReader
from trtbuild.architectures.families.llama import NAMES, llama_spec
from trtbuild.architectures.reading import read_activation, read_layer_norm
from trtbuild.architectures.recipe import Recipe, Role
from trtbuild.architectures.spec import DecoderSpec, GateLayout, Mlp


def read_starcoder2(config: ConfigReader) -> DecoderSpec:
    bias = config.flag("use_bias", True)
    config.pass_over(
        "residual_dropout",
        "embedding_dropout",
        "mlp_type",
        "norm_type",
        "layer_norm_epsilon",
        "scale_attn_weights",
        "attention_softmax_in_fp32",
        "scale_attention_softmax_in_fp32",
    )
    mlp = Mlp(
        config.integer("intermediate_size"), read_activation(config, default="gelu_pytorch_tanh"), GateLayout.NONE, bias
    )
    window = config.optional("sliding_window", int)
    return llama_spec(
        config,
        qkv_bias=bias,
        output_bias=bias,
        windows=(window,) * config.integer("num_hidden_layers"),
        norm=read_layer_norm(config, "norm_epsilon", 1e-5),
        mlp=mlp,
        tied=True,
    )


RECIPES = (
    Recipe(
        ("starcoder2",),
        read_starcoder2,
        {**NAMES, Role.UP: "layers.{}.mlp.c_fc", Role.DOWN: "layers.{}.mlp.c_proj"},
    ),
)
