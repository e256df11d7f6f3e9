"""SHA-256 by content, each file read once."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from trtbuild.hashing import Hasher


def test_a_known_digest(tmp_path: Path) -> None:
    """FIPS 180-2's example: the message "abc"."""
    (tmp_path / "x").write_bytes(b"abc")
    assert Hasher().file(tmp_path / "x") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_a_hard_link_is_not_read_again(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    os.link(tmp_path / "x", tmp_path / "y")
    read: list[int] = []
    hasher = Hasher()
    assert hasher.file(tmp_path / "x", read.append) == hasher.file(tmp_path / "y", read.append)
    assert read == [3]


def test_what_is_written_over_or_in_a_removed_files_place_is(tmp_path: Path) -> None:
    hasher = Hasher()
    for content in (b"first", b"second, longer", b"third"):
        (tmp_path / "x").unlink(missing_ok=True)
        (tmp_path / "x").write_bytes(content)
        assert hasher.file(tmp_path / "x") == hashlib.sha256(content).hexdigest()
        (tmp_path / "x").write_bytes(content + b"!")
        assert hasher.file(tmp_path / "x") == hashlib.sha256(content + b"!").hexdigest()


def test_progress_is_bytes_of_all_files(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    (tmp_path / "y").write_bytes(b"de")
    told: list[tuple[int, int]] = []
    Hasher().files([tmp_path / "x", tmp_path / "y"], lambda done, total: told.append((done, total)))
    assert told == [(3, 5), (5, 5)]
