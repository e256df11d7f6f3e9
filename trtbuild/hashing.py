"""SHA-256 of files, each read once however many hard links lead to it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

_CHUNK = 1 << 22


class Hasher:
    """Hashes files and remembers each by its place on the disk: weights appear in an output under several names."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int, int], str] = {}

    def file(self, file: Path, advance: Callable[[int], None] = lambda size: None) -> str:
        """The file's SHA-256 in hexadecimal; `advance` is told of the bytes of each chunk as it is read."""
        status = file.stat()
        # Size and time too: the number of a removed file is given to the next one.
        place = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
        if place not in self._known:
            digest = hashlib.sha256()
            with file.open("rb") as stream:
                while chunk := stream.read(_CHUNK):
                    digest.update(chunk)
                    advance(len(chunk))
            self._known[place] = digest.hexdigest()
        return self._known[place]

    def files(
        self, files: Iterable[Path], advance: Callable[[int, int], None] = lambda done, of: None
    ) -> dict[str, str]:
        """By file name, the SHA-256 of each; `advance` is told the bytes done and the bytes in all."""
        files = list(files)
        total, done = sum(file.stat().st_size for file in files), 0

        def add(size: int) -> None:
            nonlocal done
            done += size
            advance(done, total)

        return {file.name: self.file(file, add) for file in files}
