"""One family's proof: how its small checkpoint is made, and what is special about it."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.families import cases


@dataclass(frozen=True, slots=True)
class Case:
    """A small random model of a family.

    `config` is transformers' config class and `fields` are its arguments; for a family that transformers does not have,
    `save` writes the checkpoint and `logits` is an independent forward pass, f32 [batch, tokens, vocab].
    """

    name: str
    """The test's id."""
    family: str
    """The models that this stands for, as `docs/models.md` names them."""
    special: str
    """What sets the family apart from Llama."""
    config: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    save: Callable[[Path], None] | None = None
    logits: Callable[[Path, NDArray[np.int64]], NDArray[np.float32]] | None = None
    attention: str = "eager"
    """transformers' form of attention that is the reference."""
    lengths: tuple[int, int, int] = (5, 17, 30)
    """Tokens of the three prompts that are decoded together, each by twelve more."""
    prompt: int = 24
    """Tokens of the prompt that is prefilled at once, and in chunks, and then decoded by 24 more."""
    capacity: int = 64
    grows: bool = False
    """Keys stay in the cache as an earlier length rotated them (dynamic NTK), so that the reference, too, must be run
    token by token with its cache."""


@dataclass(frozen=True, slots=True)
class Real:
    """A published model: its config.json's fields, and how many parameters its files hold (a tied head counts once)."""

    name: str
    parameters: int
    config: Mapping[str, Any]


def all_real() -> list[Real]:
    """REAL of every module in `cases`."""
    modules = sorted(module.name for module in pkgutil.iter_modules(cases.__path__))
    return [real for name in modules for real in import_module(f"{cases.__name__}.{name}").REAL]


def all_cases() -> list[Case]:
    """CASES of every module in `cases`."""
    modules = sorted(module.name for module in pkgutil.iter_modules(cases.__path__))
    return [case for name in modules for case in import_module(f"{cases.__name__}.{name}").CASES]
