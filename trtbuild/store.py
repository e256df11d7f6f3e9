"""Results of slow stages, kept under the hash of everything that they depend on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trtbuild.files import atomic_folder


def default_cache() -> Path:
    """TRTBUILD_CACHE, or trtbuild's folder in the user's cache. It may be deleted at any time."""
    named = os.environ.get("TRTBUILD_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trtbuild"


def key_of(**facts: Any) -> str:
    """A hash over named facts (anything JSON holds), whatever their order."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


class Store:
    """Folders under `root`/stage/key; one appears whole or not at all."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def place(self, stage: str, key: str) -> Path:
        """Where the key's folder is, if it is there."""
        return self.root / stage / key

    @contextmanager
    def keep(self, stage: str, key: str) -> Iterator[Path]:
        """Yield a folder to write into; it is kept under the key when the block ends without an exception."""
        with atomic_folder(self.place(stage, key), replace=True) as folder:
            yield folder
