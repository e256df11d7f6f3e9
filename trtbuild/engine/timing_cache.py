"""TensorRT's timing cache on disk. A cache belongs to one TensorRT version and one device, so each pair has a file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from trtbuild.files import atomic_file


def file_for(folder: Path, version: str, device: str) -> Path:
    """The cache of one TensorRT version and one device in `folder`."""
    plain = re.sub(r"[^A-Za-z0-9.]+", "-", device).strip("-")
    return folder / f"timing-{version}-{plain}.cache"


def attach(config: Any, file: Path) -> None:
    """Let the builder use what `file` holds (or an empty cache); one that does not fit is dropped, not forced in."""
    cache = config.create_timing_cache(file.read_bytes() if file.is_file() else b"")
    if cache is None or not config.set_timing_cache(cache, False):
        config.set_timing_cache(config.create_timing_cache(b""), False)


def store(config: Any, file: Path) -> None:
    """Write the builder's cache back, joined with what another build has written meanwhile."""
    cache = config.get_timing_cache()
    if file.is_file():
        other = config.create_timing_cache(file.read_bytes())
        if other is not None:
            cache.combine(other, False)
    with atomic_file(file) as temporary:
        temporary.write_bytes(memoryview(cache.serialize()))
