"""A .gguf file, written out once as an ordinary checkpoint folder and opened like any other."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from trtbuild.checkpoint.base import Checkpoint
from trtbuild.checkpoint.folder import SINGLE, open_folder
from trtbuild.checkpoint.gguf.config import architecture_of, read_config
from trtbuild.checkpoint.gguf.reader import GgufFile, read_gguf
from trtbuild.checkpoint.gguf.tokenizer import write_tokenizer
from trtbuild.checkpoint.gguf.weights import read_rope_factors, write_weights
from trtbuild.dtypes import DType
from trtbuild.errors import InputError
from trtbuild.files import atomic_folder
from trtbuild.hashing import Hasher
from trtbuild.progress import Progress, Silent

FORMAT = 1
"""Raise it when the same GGUF would be written differently, so that older conversions are not taken up again."""

_CONFIG_DTYPES = {DType.F16: "float16", DType.BF16: "bfloat16", DType.F32: "float32"}


def open_gguf(path: Path, *, cache: Path, progress: Progress | None = None) -> Checkpoint:
    """Convert `path` into a folder of `cache` named after its content, unless it is there already, and open that.

    Needs `gguf` and `tokenizers`, no torch. Raises InputError for a damaged file, or one that a checkpoint of
    transformers cannot express exactly.
    """
    progress = progress or Silent()
    file = read_gguf(path)
    architecture_of(file)
    progress.stage(f"Reading {path.name}")
    try:
        (cache / "gguf").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"The cache folder {cache} cannot be made: {error.strerror}. Name another one.") from error
    folder = cache / "gguf" / f"{_content_hash(path, progress)[:32]}-{FORMAT}"
    checkpoint = _reopen(folder)
    if checkpoint is None:
        progress.stage(f"Converting {path.name}")
        _convert(file, folder, progress)
        checkpoint = open_folder(folder)
    return replace(checkpoint, name=path.stem, source=str(path))


def _content_hash(path: Path, progress: Progress) -> str:
    total, done = path.stat().st_size, 0

    def advance(size: int) -> None:
        nonlocal done
        done += size
        progress.update(done, total)

    return Hasher().file(path, advance)


def _reopen(folder: Path) -> Checkpoint | None:
    """An earlier conversion, or None where there is none or somebody damaged it."""
    try:
        return open_folder(folder) if folder.is_dir() else None
    except InputError:
        return None


def _convert(file: GgufFile, folder: Path, progress: Progress) -> None:
    _, architecture = architecture_of(file)
    config = read_config(file, read_rope_factors(file))
    with atomic_folder(folder, replace=True) as temporary:
        write_tokenizer(file, temporary)
        dtype = write_weights(file, architecture, config, temporary / SINGLE, progress)
        config["dtype"] = _CONFIG_DTYPES[dtype]
        text = json.dumps(config, indent=2, ensure_ascii=False)
        (temporary / "config.json").write_text(text + "\n", encoding="utf-8")
