"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trtbuild.errors import BuildError, InputError


@contextmanager
def atomic_file(destination: Path) -> Iterator[Path]:
    """Yield a temporary path beside `destination`; rename it into place on success, remove it on any exception.

    Raises BuildError, with the free space, when the disk is full.
    """
    with disk_errors(destination):
        destination.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{destination.name}.", dir=destination.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        with disk_errors(destination):
            temporary.chmod(0o644)
            yield temporary
            temporary.replace(destination)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def atomic_folder(destination: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield a new folder beside `destination`; rename it into place on success, remove it on any exception.

    An existing `destination` is refused (InputError) unless `replace`, or it is empty.
    """
    destination = destination.absolute()
    refuse_existing(destination, replace=replace)
    with disk_errors(destination):
        destination.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", dir=destination.parent))
    try:
        with disk_errors(destination):
            temporary.chmod(0o755)
            yield temporary
            if destination.exists():
                old = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", dir=destination.parent))
                destination.replace(old / destination.name)
                temporary.replace(destination)
                shutil.rmtree(old)
            else:
                temporary.replace(destination)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def refuse_existing(destination: Path, *, replace: bool) -> None:
    """Raise InputError if `destination` exists and may not be replaced; call it before any slow work."""
    if destination.is_dir() and not any(destination.iterdir()):
        return
    if destination.exists() and not destination.is_dir():
        raise InputError(f"{destination} is a file; --out names a folder. Choose another one.")
    if destination.exists() and not replace:
        raise InputError(f"{destination} exists and is not empty. Choose another --out, or give --force to replace it.")


@contextmanager
def disk_errors(place: Path) -> Iterator[None]:
    """Turn a full disk or a refused write into a BuildError that names the place."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise BuildError(
                f"The disk that holds {place.parent} is full ({error.filename or place.name}). "
                "Nothing half-written was left; free some space or choose another --out."
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise InputError(f"{error.filename or place} cannot be written: {error.strerror}.") from error
        raise


def link_or_copy(source: Path, destination: Path) -> None:
    """Make `destination` a hard link to `source` (symlinks resolved), or a copy where the file system has no links."""
    try:
        os.link(source.resolve(), destination)
    except FileExistsError:
        raise
    except OSError:
        shutil.copyfile(source, destination)
