"""A recipe: how one family's config.json becomes a DecoderSpec, and which of its tensors plays which role."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from trtbuild.architectures.config_reader import ConfigReader
from trtbuild.architectures.spec import DecoderSpec


class Role(Enum):
    """A part of the decoder that has weights of its own. `value` is its path in the graph, `{}` the layer."""

    EMBEDDING = "embed_tokens"
    POSITIONS = "embed_positions"
    EMBEDDING_NORM = "embed_norm"
    PROJECT_IN = "project_in"
    ATTENTION_NORM = "layers.{}/input_layernorm"
    QKV = "layers.{}/attn/qkv_proj"
    Q = "layers.{}/attn/q_proj"
    K = "layers.{}/attn/k_proj"
    V = "layers.{}/attn/v_proj"
    Q_NORM = "layers.{}/attn/q_norm"
    K_NORM = "layers.{}/attn/k_norm"
    SINKS = "layers.{}/attn/sinks"
    Q_DOWN = "layers.{}/attn/q_a_proj"
    Q_DOWN_NORM = "layers.{}/attn/q_a_layernorm"
    Q_UP = "layers.{}/attn/q_b_proj"
    LATENT = "layers.{}/attn/kv_a_proj"
    LATENT_NORM = "layers.{}/attn/kv_a_layernorm"
    KV_UP = "layers.{}/attn/kv_b_proj"
    OUTPUT = "layers.{}/attn/o_proj"
    ATTENTION_POST_NORM = "layers.{}/attn/post_norm"
    MLP_NORM = "layers.{}/post_attention_layernorm"
    GATE_UP = "layers.{}/mlp/gate_up_proj"
    GATE = "layers.{}/mlp/gate_proj"
    UP = "layers.{}/mlp/up_proj"
    DOWN = "layers.{}/mlp/down_proj"
    ROUTER = "layers.{}/mlp/router"
    EXPERT_GATE_UP = "layers.{}/mlp/experts/gate_up_proj"
    EXPERT_GATE = "layers.{}/mlp/experts/gate_proj"
    EXPERT_UP = "layers.{}/mlp/experts/up_proj"
    EXPERT_DOWN = "layers.{}/mlp/experts/down_proj"
    SHARED_ROUTER = "layers.{}/mlp/shared/router"
    SHARED_GATE_UP = "layers.{}/mlp/shared/gate_up_proj"
    SHARED_GATE = "layers.{}/mlp/shared/gate_proj"
    SHARED_UP = "layers.{}/mlp/shared/up_proj"
    SHARED_DOWN = "layers.{}/mlp/shared/down_proj"
    MLP_POST_NORM = "layers.{}/mlp/post_norm"
    FINAL_NORM = "norm"
    PROJECT_OUT = "project_out"
    HEAD = "lm_head"

    def path(self, layer: int | None = None) -> str:
        return self.value.format(layer)


WEIGHT, BIAS, CORRECTION = "weight", "bias", "correction"
"""The kinds of tensor that a role may have; CORRECTION is a router's offset for each expert."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """One family.

    `names` maps a role to its tensors' name without the prefix and without `.weight` or `.bias`. The first `{}` stands
    for the layer; a second one for the expert, or the head, where each has a tensor of its own: without it, all of them
    are one tensor with an axis more in front.
    """

    model_types: tuple[str, ...]
    read: Callable[[ConfigReader], DecoderSpec]
    names: Mapping[Role, str]
    prefixes: tuple[str, ...] = ("model.", "")
    """What stands in front of every name but the head's; the first one under which the embedding is found counts."""
    irregular: Mapping[tuple[Role, str], str] = field(default_factory=dict)
    """Whole names, without the prefix, of tensors that do not end in `.weight` or `.bias`."""
    transposed: frozenset[Role] = frozenset()
    """Projections stored as [in, out]."""
    renamed: Callable[[DecoderSpec], Mapping[Role, str]] | None = None
    """Names that depend on the spec."""
    ignored: str | None = None
    """A regular expression for tensors in the files that the model's own code leaves out too; `{layers}` stands for how
    many layers there are, which is the index of the first that is none."""

    def of(self, spec: DecoderSpec) -> Recipe:
        """The recipe with the names that this spec's tensors have."""
        return self if self.renamed is None else replace(self, names={**self.names, **self.renamed(spec)}, renamed=None)

    def tensor(self, role: Role, kind: str, prefix: str, layer: int | None = None, copy: int | None = None) -> str:
        """The checkpoint's name of a role's tensor of `kind`."""
        whole = self.irregular.get((role, kind))
        name = (f"{self.names[role]}.{kind}" if whole is None else whole).format(layer, copy)
        return name if role is Role.HEAD else prefix + name

    def by_copy(self, role: Role, kind: str) -> bool:
        """Whether each expert (or head) has a tensor of its own."""
        return self.irregular.get((role, kind), self.names.get(role, "")).count("{}") == 2
