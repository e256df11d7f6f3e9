"""RoPE from config.json, in the form of transformers 4 (`rope_theta`, `rope_scaling`) and of 5 (`rope_parameters`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtbuild.architectures.config_reader import ConfigReader
from trtbuild.architectures.spec import LinearScaling, Llama3Scaling, Rope

KINDS = ("default", "linear", "llama3")


def read_rope(config: ConfigReader, head_dim: int) -> Rope:
    """The rotary embedding that config.json describes.

    Files written by transformers before 4.33 leave Llama 2's base of 10000 unsaid; any other file that names no base is
    refused. Raises InputError too where both forms are there and disagree, the kind is unknown, or a parameter is
    missing, unknown or not a positive number.
    """
    parameters, scaling = config.mapping("rope_parameters"), config.mapping("rope_scaling")
    theta = config.number("rope_theta")
    if parameters is not None:
        new = _number(config, parameters, "rope_theta")
        if theta is not None and theta != new:
            raise config.refuse(
                f"'rope_theta' is {theta:g} and 'rope_parameters' says {new:g}", "Correct the file: they must agree."
            )
        theta, scaling = new, parameters
    elif theta is None:
        if not _predates_rope_theta(config):
            raise config.refuse(
                "neither 'rope_parameters' nor 'rope_theta' is there, so the base of RoPE is unknown",
                "Take the config.json that belongs to these weights.",
            )
        theta = 10_000.0
    scaling = scaling or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in KINDS:
        raise config.refuse(f"rope_type {kind!r} is not known", f"Known are {', '.join(KINDS)}.")
    known = {"rope_theta", "rope_type", "type"}
    result: LinearScaling | Llama3Scaling | None = None
    if kind == "linear":
        known |= {"factor"}
        result = LinearScaling(_number(config, scaling, "factor"))
    elif kind == "llama3":
        known |= {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}
        result = Llama3Scaling(
            factor=_number(config, scaling, "factor"),
            low_freq_factor=_number(config, scaling, "low_freq_factor"),
            high_freq_factor=_number(config, scaling, "high_freq_factor"),
            original_positions=int(_number(config, scaling, "original_max_position_embeddings")),
        )
    unknown = sorted(set(scaling) - known)
    if unknown:
        raise config.refuse(
            f"RoPE of type {kind!r} has the parameter {unknown[0]!r} = {scaling[unknown[0]]!r}, which it does not take",
            "Correct the file, or report the model if transformers reads it.",
        )
    return Rope(theta=theta, rotary_dim=head_dim, scaling=result)


def inverse_frequencies(rope: Rope) -> NDArray[np.float64]:
    """Radians per position of each rotated pair, f64 [rotary_dim / 2], scaling applied.

    theta^(-2i/d) (Su et al. 2021); llama3's ramp as published with Llama 3.1.
    """
    exponents = np.arange(0, rope.rotary_dim, 2, dtype=np.float64) / rope.rotary_dim
    frequencies = rope.theta**-exponents
    scaling = rope.scaling
    if isinstance(scaling, LinearScaling):
        return frequencies / scaling.factor
    if isinstance(scaling, Llama3Scaling):
        wavelengths = 2 * np.pi / frequencies
        turns = scaling.original_positions / wavelengths
        ramp = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
        ramp = np.clip(ramp, 0.0, 1.0)
        return frequencies * ((1 - ramp) / scaling.factor + ramp)
    return frequencies


def _predates_rope_theta(config: ConfigReader) -> bool:
    major, _, rest = config.text("transformers_version", "").partition(".")
    minor = rest.partition(".")[0]
    return major == "4" and minor.isdigit() and int(minor) < 33


def _number(config: ConfigReader, mapping: Mapping[str, Any], name: str) -> float:
    value = mapping.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise config.refuse(f"RoPE's {name!r} is {value!r}, not a positive number", "Correct the file.")
    return float(value)
