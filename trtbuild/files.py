"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trtbuild.errors import BuildError, InputError

_MARK = ".tmp-"

YOUNG_SECONDS = 60.0
"""A temporary this young is left alone: its owner may not have locked it yet."""


@contextmanager
def atomic_file(destination: Path) -> Iterator[Path]:
    """Yield a temporary path beside `destination`; rename it into place on success, remove it on any exception.

    Raises BuildError, with the place, when the disk is full.
    """
    with disk_errors(destination):
        destination.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(destination)
        handle, name = tempfile.mkstemp(prefix=_prefix(destination), dir=destination.parent)
    temporary = Path(name)
    try:
        with disk_errors(destination), _locked(handle):
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
        remove_abandoned(destination)
        temporary = Path(tempfile.mkdtemp(prefix=_prefix(destination), dir=destination.parent))
    try:
        with disk_errors(destination), _locked(os.open(temporary, os.O_RDONLY)):
            temporary.chmod(0o755)
            yield temporary
            put_in_place(temporary, destination)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def put_in_place(folder: Path, destination: Path) -> None:
    """Rename `folder` to `destination`, on the same disk; what is there already goes only when it has succeeded."""
    if not destination.exists():
        folder.replace(destination)
        return
    old = Path(tempfile.mkdtemp(prefix=_prefix(destination), dir=destination.parent))
    destination.replace(old / destination.name)
    folder.replace(destination)
    shutil.rmtree(old)


@contextmanager
def resumable_folder(destination: Path, identity: Mapping[str, Any]) -> Iterator[Path]:
    """Yield a folder beside `destination` that survives a failure, to be gone on with by a job of the same `identity`.

    It holds `job.json` and is locked; one of another identity is emptied first. When the block ends well it is removed.
    Raises InputError if another process is at it.
    """
    place = destination.absolute().parent / f".{destination.name}.unfinished"
    with disk_errors(destination):
        place.mkdir(parents=True, exist_ok=True)
        handle = os.open(place, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise InputError(f"Another process is making {destination} (it holds {place}). Wait for it.") from None
        try:
            job, text = place / "job.json", json.dumps(identity, indent=2, sort_keys=True)
            if not job.exists() or job.read_text(encoding="utf-8") != text:
                for left in place.iterdir():
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
                job.write_text(text, encoding="utf-8")
            yield place
            shutil.rmtree(place)
        finally:
            os.close(handle)


def remove_abandoned(destination: Path) -> None:
    """Remove what killed processes left beside `destination`: temporaries of its name that nobody holds a lock on."""
    for left in destination.parent.glob(f"{_prefix(destination)}*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime < YOUNG_SECONDS:
                continue
            handle = os.open(left, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if left.is_dir():
                    shutil.rmtree(left)
                else:
                    left.unlink()
            finally:
                os.close(handle)


def refuse_existing(destination: Path, *, replace: bool) -> None:
    """Raise InputError if `destination` exists and may not be replaced; call it before any slow work."""
    if destination.is_dir() and not any(destination.iterdir()):
        return
    if destination.exists() and not destination.is_dir():
        raise InputError(f"{destination} is a file; --out names a folder. Choose another one.")
    if destination.exists() and not replace:
        raise InputError(f"{destination} exists and is not empty. Choose another --out, or give --force to replace it.")


def refuse_existing_file(destination: Path, option: str, *, replace: bool) -> None:
    """Raise InputError if the file that `option` names exists and may not be replaced; call it before any slow work."""
    if destination.exists() and not replace:
        raise InputError(f"{destination} exists. Choose another {option}, or give --force to replace it.")


@contextmanager
def disk_errors(place: Path) -> Iterator[None]:
    """Turn a full disk or a refused write into an error of ours that names the place."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise BuildError(
                f"The disk that holds {_lasting(place.parent)} is full ({error.filename or place.name}). "
                "Nothing half-written was left; free some space or choose another place (--out, --cache)."
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise InputError(f"{error.filename or place} cannot be written: {error.strerror}.") from error
        raise


def read_text(file: Path, what: str = "") -> str:
    """The text of a file that a user named as `what`. Raises InputError if it cannot be read or is not UTF-8."""
    named = f"{what} {file}".strip()
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{named} is not UTF-8 text ({error.reason} at byte {error.start}).") from error
    except OSError as error:
        raise InputError(f"{named} cannot be read: {error.strerror}.") from error


def write_json(file: Path, data: Mapping[str, Any]) -> None:
    """One document, its keys in order: the same data give the same bytes."""
    file.write_text(json.dumps(data, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def link_or_copy(source: Path, destination: Path) -> None:
    """Make `destination` a hard link to `source` (symlinks resolved), or a copy where the file system has no links."""
    try:
        os.link(source.resolve(), destination)
    except FileExistsError:
        raise
    except OSError:
        shutil.copyfile(source, destination)


def _prefix(destination: Path) -> str:
    return f".{destination.name}{_MARK}"


def _lasting(folder: Path) -> Path:
    """The folder, or, inside a temporary, the one that holds that: a message must not name what is gone by then."""
    return next((place.parent for place in reversed((folder, *folder.parents)) if _MARK in place.name), folder)


@contextmanager
def _locked(handle: int) -> Iterator[None]:
    """Hold a lock on an open temporary, which ends with the process however it ends; close it afterwards."""
    try:
        with contextlib.suppress(OSError):  # a file system without locks: nobody can lock, so nobody removes either
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)
