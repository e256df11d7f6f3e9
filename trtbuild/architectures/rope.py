"""RoPE from config.json, in the form of transformers 4 (`rope_theta`, `rope_scaling`) and of 5 (`rope_parameters`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtbuild.architectures.config_reader import ConfigReader
from trtbuild.architectures.rope_spec import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Rope,
    Scaling,
    YarnScaling,
)

KINDS = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": (
        "factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale",
        "mscale_all_dim", "truncate",
    ),
    "longrope": ("factor", "original_max_position_embeddings", "attention_factor", "short_factor", "long_factor"),
}  # fmt: skip
"""By `rope_type`, the parameters that it takes besides the base and the rotated part."""

ALIASES = {"su": "longrope"}
"""What the first Phi-3 files call it."""


def read_rope(
    config: ConfigReader,
    head_dim: int,
    *,
    layer_type: str | None = None,
    interleaved: bool = False,
    partial: float | None = None,
    default_partial: float = 1.0,
    default_theta: float | None = None,
    extra: frozenset[str] = frozenset(),
) -> Rope:
    """The rotary embedding that config.json describes.

    `layer_type` picks its own entry where `rope_parameters` has one for each type of layer. `partial` is the rotated
    share of a head for families that name it otherwise than `partial_rotary_factor`, `default_partial` that of families
    whose files may leave it unsaid, `default_theta` the base of such families; of any other, only Llama 2's files
    written by transformers before 4.33 may. `extra` names parameters that the recipe reads by itself. Raises InputError
    where neither form is there, both are and disagree, the kind is unknown, or a parameter is missing, unknown or not a
    positive number.
    """
    parameters = rope_parameters(config, layer_type)
    base = config.number("rope_theta")
    if "rope_theta" in parameters:
        theta = _number(config, parameters, "rope_theta")
        if base is not None and base != theta and layer_type is None:
            raise config.refuse(
                f"'rope_theta' is {base:g} and 'rope_parameters' says {theta:g}", "Correct the file: they must agree."
            )
    elif base is not None:
        theta = base
    elif default_theta is not None:
        theta = default_theta
    elif _predates_rope_theta(config):
        theta = 10_000.0
    else:
        raise config.refuse(
            "neither 'rope_parameters' nor 'rope_theta' is there, so the base of RoPE is unknown",
            "Take the config.json that belongs to these weights.",
        )
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    kind = ALIASES.get(kind, kind)
    if kind not in KINDS:
        raise config.refuse(f"rope_type {kind!r} is not known", f"Known are {', '.join(KINDS)}.")
    unknown = sorted(
        set(parameters) - {"rope_theta", "rope_type", "type", "partial_rotary_factor", *KINDS[kind], *extra}
    )
    if unknown:
        raise config.refuse(
            f"RoPE of type {kind!r} has the parameter {unknown[0]!r} = {parameters[unknown[0]]!r}, "
            "which it does not take",
            "Correct the file, or report the model if transformers reads it.",
        )
    share = config.number("partial_rotary_factor")
    if parameters.get("partial_rotary_factor") is not None:
        share = _number(config, parameters, "partial_rotary_factor")
    if partial is not None:
        share = partial
    rotary_dim = int(head_dim * (default_partial if share is None else share))
    if rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
        raise config.refuse(
            f"RoPE would rotate {rotary_dim} of a head's {head_dim} elements", "It must be an even number of them."
        )
    scaling = _read_scaling(config, kind, parameters, rotary_dim)
    return Rope(theta=theta, rotary_dim=rotary_dim, scaling=scaling, interleaved=interleaved)


def rope_parameters(config: ConfigReader, layer_type: str | None = None) -> Mapping[str, Any]:
    """`rope_parameters`, or else `rope_scaling`, or else nothing; of `layer_type` where they are kept by type."""
    parameters = config.mapping("rope_parameters")
    scaling = config.mapping("rope_scaling")
    parameters = parameters if parameters is not None else scaling or {}
    nested = parameters.get(layer_type) if layer_type is not None else None
    if isinstance(nested, Mapping):
        return nested
    if any(isinstance(value, Mapping) for value in parameters.values()):
        raise config.refuse(
            f"'rope_parameters' has entries for {', '.join(parameters)} and none for {layer_type or 'all layers'}",
            "Correct the file.",
        )
    return parameters


def extended_positions(trained: int, rope: Rope | None) -> int:
    """Positions that a model trained for `trained` can take with its RoPE's scaling."""
    scaling = rope.scaling if rope else None
    if isinstance(scaling, DynamicScaling | YarnScaling):
        return max(trained, int(scaling.original_positions * scaling.factor))
    return trained


def inverse_frequencies(rope: Rope, *, long: bool = False) -> NDArray[np.float64]:
    """Radians per position of each rotated pair, f64 [rotary_dim / 2], scaling applied.

    theta^(-2i/d) (Su et al. 2021); llama3's ramp as published with Llama 3.1; YaRN's as in Peng et al. 2023, section
    3.2. LongRoPE's `long` factors are for sequences of more than `original_positions` tokens; dynamic NTK's are those
    of shorter ones.
    """
    frequencies: NDArray[np.float64] = rope.theta ** -(
        np.arange(0, rope.rotary_dim, 2, dtype=np.float64) / rope.rotary_dim
    )
    scaling = rope.scaling
    if isinstance(scaling, LinearScaling):
        return frequencies / scaling.factor
    if isinstance(scaling, Llama3Scaling):
        turns = scaling.original_positions * frequencies / (2 * np.pi)
        ramp = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
        return _blend(frequencies, scaling.factor, ramp)
    if isinstance(scaling, YarnScaling):
        return _blend(frequencies, scaling.factor, 1 - _yarn_ramp(rope, scaling))
    if isinstance(scaling, LongRopeScaling):
        return frequencies / np.asarray(scaling.long_factors if long else scaling.short_factors, np.float64)
    return frequencies


def _blend(frequencies: NDArray[np.float64], factor: float, kept: NDArray[np.float64]) -> NDArray[np.float64]:
    """Divided by `factor` where `kept` is 0 or less, as they are where it is 1 or more."""
    kept = np.clip(kept, 0.0, 1.0)
    return frequencies * ((1 - kept) / factor + kept)


def _yarn_ramp(rope: Rope, scaling: YarnScaling) -> NDArray[np.float64]:
    """By pair, 0 for those to be kept and 1 for those to be interpolated."""

    def pair_that_turns(times: float) -> float:
        reach = scaling.original_positions / (times * 2 * math.pi)
        return rope.rotary_dim * math.log(reach) / (2 * math.log(rope.theta))

    low, high = pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.rotary_dim - 1)
    ramp = (np.arange(rope.rotary_dim // 2, dtype=np.float64) - low) / (high - low if high != low else 0.001)
    return np.clip(ramp, 0.0, 1.0)


def yarn_magnitude(factor: float, mscale: float = 1.0) -> float:
    """0.1 * mscale * ln(factor) + 1, by which YaRN sharpens attention."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _read_scaling(config: ConfigReader, kind: str, parameters: Mapping[str, Any], rotary_dim: int) -> Scaling | None:
    def number(name: str) -> float:
        return _number(config, parameters, name)

    def optional(name: str) -> float | None:
        return None if parameters.get(name) is None else number(name)

    if kind == "linear":
        return LinearScaling(number("factor"))
    if kind == "dynamic":
        return DynamicScaling(number("factor"), config.integer("max_position_embeddings"))
    if kind == "llama3":
        return Llama3Scaling(
            factor=number("factor"),
            low_freq_factor=number("low_freq_factor"),
            high_freq_factor=number("high_freq_factor"),
            original_positions=int(number("original_max_position_embeddings")),
        )
    if kind not in ("yarn", "longrope"):
        return None
    trained = config.integer("max_position_embeddings")
    outside = config.number("original_max_position_embeddings")
    original = int(outside or optional("original_max_position_embeddings") or trained)
    factor = optional("factor") or trained / original
    attention_factor = optional("attention_factor")
    if kind == "yarn":
        # Devstral 2 has a 0 here, which to transformers is as good as nothing.
        mscale, mscale_all_dim = (
            number(name) if parameters.get(name) else None for name in ("mscale", "mscale_all_dim")
        )
        if attention_factor is None:
            attention_factor = yarn_magnitude(factor)
            if mscale is not None and mscale_all_dim is not None:
                attention_factor = yarn_magnitude(factor, mscale) / yarn_magnitude(factor, mscale_all_dim)
        return YarnScaling(
            factor=factor,
            original_positions=original,
            attention_factor=attention_factor,
            beta_fast=optional("beta_fast") or 32.0,
            beta_slow=optional("beta_slow") or 1.0,
            truncate=bool(parameters.get("truncate", True)),
        )
    if attention_factor is None:
        attention_factor = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    short, long = (_factors(config, parameters, name, rotary_dim // 2) for name in ("short_factor", "long_factor"))
    return LongRopeScaling(short, long, original, attention_factor)


def _factors(config: ConfigReader, parameters: Mapping[str, Any], name: str, count: int) -> tuple[float, ...]:
    values = parameters.get(name)
    if not isinstance(values, list) or not all(isinstance(v, int | float) and v > 0 for v in values):
        raise config.refuse(f"RoPE's {name!r} is {values!r}, not a list of positive numbers", "Correct the file.")
    if len(values) != count:
        raise config.refuse(f"RoPE's {name!r} has {len(values)} factors for {count} rotated pairs", "Correct the file.")
    return tuple(float(value) for value in values)


def _predates_rope_theta(config: ConfigReader) -> bool:
    major, _, rest = config.text("transformers_version", "").partition(".")
    minor = rest.partition(".")[0]
    return major == "4" and minor.isdigit() and int(minor) < 33


def _number(config: ConfigReader, mapping: Mapping[str, Any], name: str) -> float:
    value = mapping.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise config.refuse(f"RoPE's {name!r} is {value!r}, not a positive number", "Correct the file.")
    return float(value)
