"""Where a model comes from: a folder, a GGUF file, or the hub."""

from __future__ import annotations

from pathlib import Path

from trtbuild.checkpoint.base import Checkpoint, TensorRef
from trtbuild.errors import InputError
from trtbuild.progress import Progress, Silent

__all__ = ["Checkpoint", "TensorRef", "open_checkpoint"]

_SUFFIXES = frozenset({".gguf", ".safetensors", ".json", ".bin", ".pt", ".pth", ".ckpt"})


def open_checkpoint(
    model: str | Path, *, revision: str | None = None, cache: Path, progress: Progress | None = None
) -> Checkpoint:
    """Open `model`: a folder, a .gguf file, or a hub id (org/name, org/name@revision); what exists on disk comes first.

    `cache` is a folder of trtbuild's own, where a GGUF's conversion is kept; models from the hub stay in the hub's
    cache. Raises InputError for anything that is not a model, or is a damaged one.
    """
    progress = progress or Silent()
    path = Path(model).expanduser()
    if path.exists():
        if revision is not None:
            raise InputError(
                f"{path} is on this disk, and a revision ({revision!r}) is for a hub id only. Leave it out."
            )
        return _open_path(path, cache, progress)
    if isinstance(model, Path) or _looks_like_path(model):
        raise InputError(f"{model} does not exist. Name a folder, a .gguf file, or a hub id such as org/name.")
    from trtbuild.checkpoint.hub import open_hub

    return open_hub(model, revision=revision, progress=progress)


def _open_path(path: Path, cache: Path, progress: Progress) -> Checkpoint:
    from trtbuild.checkpoint.folder import PICKLES, open_folder, refuse_pickle

    if path.is_dir():
        return open_folder(path, source=str(path))
    if path.suffix in PICKLES:
        raise refuse_pickle(str(path))
    if path.suffix == ".gguf":
        from trtbuild.checkpoint.gguf import open_gguf

        return open_gguf(path, cache=cache, progress=progress)
    raise InputError(f"{path} is neither a folder nor a .gguf file. Name the folder that holds config.json.")


def _looks_like_path(model: str) -> bool:
    """Whether a string that names nothing on this disk was meant to: a hub id is org/name, and a path rarely is."""
    parts = model.partition("@")[0].split("/")
    return (
        len(parts) != 2
        or "" in parts
        or parts[0] in (".", "..", "~")
        or "\\" in model
        or Path(model).suffix.lower() in _SUFFIXES
    )
