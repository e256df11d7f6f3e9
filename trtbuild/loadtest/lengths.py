"""How many tokens a prompt or an answer has: a number, or a distribution to draw from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np

from trtbuild.errors import InputError


class Shape(str, Enum):
    """The distributions, by the name they have on the command line."""

    FIXED = "fixed"
    UNIFORM = "uniform"
    NORMAL = "normal"
    LOGNORMAL = "lognormal"


FORMS = "N, uniform:LEAST:MOST, normal:MEAN:SD or lognormal:MEDIAN:SIGMA"


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution over whole numbers from 1 on.

    FIXED is `a`; UNIFORM is from `a` to `b`, both included; NORMAL has mean `a` and standard deviation `b`; LOGNORMAL
    has median `a`, and `b` is the standard deviation of the natural logarithm. The last two are rounded, and what falls
    below 1 is 1.
    """

    shape: Shape
    a: float
    b: float = 0.0

    def draw(self, rng: np.random.Generator) -> int:
        match self.shape:
            case Shape.FIXED:
                value = self.a
            case Shape.UNIFORM:
                value = float(rng.integers(int(self.a), int(self.b), endpoint=True))
            case Shape.NORMAL:
                value = rng.normal(self.a, self.b)
            case Shape.LOGNORMAL:
                value = rng.lognormal(math.log(self.a), self.b)
        return max(1, round(value))

    def __str__(self) -> str:
        return f"{self.a:g}" if self.shape is Shape.FIXED else f"{self.shape.value}:{self.a:g}:{self.b:g}"


def fixed(tokens: int) -> Lengths:
    return Lengths(Shape.FIXED, tokens)


def parse_lengths(text: str, option: str) -> Lengths:
    """Read one of FORMS. Raises InputError, naming `option`."""
    name, *parameters = text.split(":")
    if not parameters:
        name, parameters = "fixed", [name]
    shape = next((shape for shape in Shape if shape.value == name), None)
    numbers = [_number(parameter) for parameter in parameters]
    if shape is None or len(numbers) != (1 if shape is Shape.FIXED else 2) or None in numbers:
        raise InputError(f"{option} {text!r} is none of {FORMS}.")
    a, b = ([number or 0.0 for number in numbers] + [0.0])[:2]
    whole = a == int(a) and b == int(b)
    if a < 1 or (shape in (Shape.FIXED, Shape.UNIFORM) and not whole) or (shape is Shape.UNIFORM and b < a):
        raise InputError(f"{option} {text!r}: lengths are whole numbers of tokens from 1 on, the smaller one first.")
    return Lengths(shape, a, b)


def _number(text: str) -> float | None:
    """Of 0 or more; None if it is no such number."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
