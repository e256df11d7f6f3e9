"""What many recipes read from config.json in the same way."""

from __future__ import annotations

from dataclasses import dataclass

from trtbuild.architectures.config_reader import ConfigReader
from trtbuild.architectures.spec import Activation, Norm, NormKind

ACTIVATIONS = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu": Activation.GELU,
    "gelu_python": Activation.GELU,
    "gelu_new": Activation.GELU_TANH,
    "gelu_fast": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "gelu_python_tanh": Activation.GELU_TANH,
    "relu": Activation.RELU,
    "relu2": Activation.RELU_SQUARED,
    "quick_gelu": Activation.QUICK_GELU,
}
"""transformers' names of activations."""


@dataclass(frozen=True, slots=True)
class Heads:
    """Query heads, key/value heads, and the width of each."""

    heads: int
    kv_heads: int
    head_dim: int

    @property
    def scale(self) -> float:
        """1 / sqrt(head_dim)."""
        return float(self.head_dim) ** -0.5


def read_heads(
    config: ConfigReader,
    *,
    hidden: str = "hidden_size",
    heads: str = "num_attention_heads",
    kv_heads: str | None = "num_key_value_heads",
    head_dim: int | None = None,
) -> Heads:
    """The heads under these fields' names; `head_dim` is the family's own default for the field of that name.

    Raises InputError if queries do not divide among keys, or the width among heads.
    """
    width, count = config.integer(hidden), config.integer(heads)
    groups = count if kv_heads is None else config.integer(kv_heads, count)
    if count < 1 or groups < 1 or count % groups:
        raise config.refuse(f"{count} query heads are not a multiple of {groups} key/value heads", "Correct it.")
    dim = config.optional("head_dim", int) or head_dim
    if dim is None:
        if width % count:
            raise config.refuse(
                f"{hidden} {width} is not a multiple of {count} heads and 'head_dim' is not given", "Correct it."
            )
        dim = width // count
    return Heads(count, groups, dim)


def read_either(config: ConfigReader, *names: str, default: int | None = None) -> int:
    """The integer that goes by one of these names; raise InputError if two of them disagree, or all are missing."""
    values = {name: value for name in names if (value := config.optional(name, int)) is not None}
    if len(set(values.values())) > 1:
        raise config.refuse(f"{' and '.join(map(repr, values))} disagree", "Correct the file.")
    return next(iter(values.values())) if values else config.integer(names[0], default)


def read_width_and_heads(config: ConfigReader, width: tuple[str, ...], heads: tuple[str, ...]) -> tuple[int, int]:
    """The model's width and its heads under any of these names; raise InputError if heads do not divide the width."""
    hidden, count = read_either(config, *width), read_either(config, *heads)
    if count < 1 or hidden % count:
        raise config.refuse(f"{width[0]} {hidden} is not a multiple of {count} heads", "Correct the file.")
    return hidden, count


def read_activation(config: ConfigReader, field: str = "hidden_act", default: str | None = "silu") -> Activation:
    """The activation that `field` names as transformers does."""
    name = config.text(field, default)
    if name not in ACTIVATIONS:
        raise config.refuse(f"the activation {name!r} is not known", f"Known are {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[name]


def read_rms_norm(config: ConfigReader, field: str = "rms_norm_eps", default: float | None = None) -> Norm:
    return Norm(NormKind.RMS, config.real(field, default))


def read_layer_norm(config: ConfigReader, field: str, default: float | None = None, *, bias: bool = True) -> Norm:
    return Norm(NormKind.LAYER, config.real(field, default), bias=bias)


FULL, SLIDING = "full_attention", "sliding_attention"


def read_layer_types(
    config: ConfigReader, layers: int, known: frozenset[str] = frozenset({FULL, SLIDING})
) -> tuple[str, ...] | None:
    """`layer_types`, one of `known` for each layer, or None where the field is absent."""
    kinds = config.words("layer_types")
    if kinds is not None and (len(kinds) != layers or not set(kinds) <= known):
        raise config.refuse(
            f"'layer_types' must name {' or '.join(sorted(known))} for each of {layers} layers", "Correct the file."
        )
    return kinds


def read_windows(config: ConfigReader, layers: int, default_types: tuple[str, ...]) -> tuple[int | None, ...]:
    """By layer, the sliding window of those that `layer_types`, or else `default_types`, calls sliding."""
    kinds = read_layer_types(config, layers) or default_types
    window = config.optional("sliding_window", int)
    if SLIDING in kinds and window is None:
        raise config.refuse("layers are sliding and 'sliding_window' does not say how far", "Correct the file.")
    return tuple(window if kind == SLIDING else None for kind in kinds)
