"""A recipe: how one family's config.json becomes a DecoderSpec, and which of its tensors plays which role."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from trtbuild.architectures.config_reader import ConfigReader
from trtbuild.architectures.spec import DecoderSpec


class Role(Enum):
    """A part of the decoder that has weights of its own. `value` is its path in the graph, `{}` the layer."""

    EMBEDDING = "embed_tokens"
    ATTENTION_NORM = "layers.{}/input_layernorm"
    Q = "layers.{}/attn/q_proj"
    K = "layers.{}/attn/k_proj"
    V = "layers.{}/attn/v_proj"
    Q_NORM = "layers.{}/attn/q_norm"
    K_NORM = "layers.{}/attn/k_norm"
    OUTPUT = "layers.{}/attn/o_proj"
    MLP_NORM = "layers.{}/post_attention_layernorm"
    GATE = "layers.{}/mlp/gate_proj"
    UP = "layers.{}/mlp/up_proj"
    DOWN = "layers.{}/mlp/down_proj"
    FINAL_NORM = "norm"
    HEAD = "lm_head"

    def path(self, layer: int | None = None) -> str:
        return self.value.format(layer)


@dataclass(frozen=True, slots=True)
class Recipe:
    """One family. `names` maps a role to its tensors' name without `.weight` or `.bias`; `{}` stands for the layer."""

    model_types: tuple[str, ...]
    read: Callable[[ConfigReader], DecoderSpec]
    names: dict[Role, str]

    def tensor(self, role: Role, kind: str, layer: int | None = None) -> str:
        """The checkpoint's name of a role's "weight" or "bias"."""
        return f"{self.names[role].format(layer)}.{kind}"
