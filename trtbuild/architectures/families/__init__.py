"""One module per family, each with RECIPES; a module that is added here is found by itself."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from trtbuild.architectures.recipe import Recipe


@cache
def recipes() -> dict[str, Recipe]:
    """By `model_type`, every recipe of every module in this folder."""
    found: dict[str, Recipe] = {}
    for module in pkgutil.iter_modules(__path__):
        for recipe in import_module(f"{__name__}.{module.name}").RECIPES:
            for model_type in recipe.model_types:
                if model_type in found:
                    raise RuntimeError(f"two recipes for the model_type {model_type!r}")
                found[model_type] = recipe
    return found
