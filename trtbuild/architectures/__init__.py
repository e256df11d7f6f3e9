"""From a checkpoint's config.json to a DecoderSpec with every weight bound to its role."""

from __future__ import annotations

from collections.abc import Collection

from trtbuild.architectures.binding import Binding, Matrix, bind
from trtbuild.architectures.config_reader import ConfigReader
from trtbuild.architectures.families import recipes
from trtbuild.architectures.recipe import Recipe, Role
from trtbuild.architectures.spec import DecoderSpec
from trtbuild.checkpoint.base import Checkpoint
from trtbuild.errors import InputError

__all__ = ["Binding", "DecoderSpec", "Matrix", "Recipe", "Role", "known_model_types", "read_decoder"]


def known_model_types() -> tuple[str, ...]:
    """Every `model_type` that has a recipe."""
    return tuple(sorted(recipes()))


def read_decoder(checkpoint: Checkpoint, ignore: Collection[str] = ()) -> Binding:
    """The decoder that the checkpoint holds: its spec, and each role's tensors, present and of the right shape.

    `ignore` names fields of config.json that the user vouches for. Raises InputError for an unknown `model_type`, a
    field that no recipe understands, and a tensor that is missing, extra or misshapen.
    """
    config = ConfigReader(checkpoint.config, f"{checkpoint.name}/config.json")
    model_type = config.text("model_type")
    recipe = recipes().get(model_type)
    if recipe is None:
        raise InputError(
            f"{checkpoint.name}/config.json: the model_type {model_type!r} is not known. "
            f"Known are {', '.join(known_model_types())}."
        )
    spec = recipe.read(config)
    config.check_all_read(ignore)
    return bind(checkpoint, recipe.of(spec), spec)
