"""What the front is told: where Triton is, which models it has, and its limits."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from trtbuild.errors import InputError


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model of the repository that answers prompts."""

    name: str
    folder: Path
    """Its version's folder, with tokenizer.json."""
    max_length: int | None
    """The most tokens of a prompt and its answer; None: not known."""
    created: int
    """When it was built, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class FrontendOptions:
    """Addresses are "host:port"."""

    grpc_url: str
    metrics_url: str
    models: tuple[ServedModel, ...]
    api_key: str | None = None
    max_body_bytes: int = 16 * 1024 * 1024
    """A longer body is refused: a prompt of a million tokens has about 4 MB."""
    silence_seconds: float = 3600.0
    """An answer of which nothing came for so long is given up: above the longest that a request may queue."""


def served_models(repository: Path) -> tuple[ServedModel, ...]:
    """The models in the folder `repository` that take prompts, by name; raises InputError if there is none."""
    if not repository.is_dir():
        raise InputError(f"The model repository {repository} does not exist.")
    found = []
    for file in sorted(repository.glob("*/*/tokenizer.json")):
        folder = file.parent
        if folder.name == _newest_version(folder.parent):
            created = int((folder.parent / "config.pbtxt").stat().st_mtime)
            found.append(ServedModel(folder.parent.name, folder, _max_length(folder), created))
    if not found:
        raise InputError(
            f"{repository} holds no language model (a version's folder with a tokenizer.json), so there is nothing for "
            "--openai to answer with. Give what `trtbuild compile` made of one."
        )
    return tuple(found)


def _newest_version(model: Path) -> str:
    return max((place.name for place in model.iterdir() if place.name.isdigit()), key=int, default="")


def _max_length(folder: Path) -> int | None:
    """From serving.json, which a repository of somebody else's need not have."""
    try:
        return int(json.loads((folder / "serving.json").read_text(encoding="utf-8"))["cache"]["capacity"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
