"""InternLM2 and InternLM2.5. The hub keeps their code beside the weights; none of it is run."""

from __future__ import annotations

from trtbuild.architectures.config_reader import ConfigReader
from trtbuild.architectures.families.llama import NAMES, change_attention, llama_spec
from trtbuild.architectures.recipe import Recipe, Role
from trtbuild.architectures.spec import DecoderSpec, QkvLayout


def read_internlm2(config: ConfigReader) -> DecoderSpec:
    bias = config.flag("bias", True)
    return change_attention(llama_spec(config, qkv_bias=bias, output_bias=bias), layout=QkvLayout.GROUPS)


RECIPES = (
    Recipe(
        ("internlm2",),
        read_internlm2,
        {
            Role.EMBEDDING: "tok_embeddings",
            Role.ATTENTION_NORM: "layers.{}.attention_norm",
            Role.QKV: "layers.{}.attention.wqkv",
            Role.OUTPUT: "layers.{}.attention.wo",
            Role.MLP_NORM: "layers.{}.ffn_norm",
            Role.GATE: "layers.{}.feed_forward.w1",
            Role.UP: "layers.{}.feed_forward.w3",
            Role.DOWN: "layers.{}.feed_forward.w2",
            Role.FINAL_NORM: NAMES[Role.FINAL_NORM],
            Role.HEAD: "output",
        },
    ),
)
