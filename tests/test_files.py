"""Whole or not at all: exceptions, kills, full disks, concurrent writers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from trtbuild.errors import BuildError, InputError
from trtbuild.files import YOUNG_SECONDS, atomic_file, atomic_folder, link_or_copy


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_file_appears_at_the_end(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "deep" / "x") as temporary:
        temporary.write_text("new")
        assert not (tmp_path / "deep" / "x").exists()
    assert (tmp_path / "deep" / "x").read_text() == "new"
    assert names(tmp_path / "deep") == {"x"}


def test_an_exception_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("old")
    with pytest.raises(KeyboardInterrupt), atomic_file(tmp_path / "x") as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt
    assert (tmp_path / "x").read_text() == "old"
    assert names(tmp_path) == {"x"}


def test_a_folder_is_refused_replaced_or_filled(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with atomic_folder(out) as temporary:
        (temporary / "a").touch()
    assert names(out) == {"a"}
    with pytest.raises(InputError, match="exists and is not empty"), atomic_folder(out):
        raise AssertionError("not reached")
    with atomic_folder(out, replace=True) as temporary:
        (temporary / "b").touch()
    assert names(out) == {"b"}
    assert names(tmp_path) == {"out"}


def test_a_file_where_a_folder_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    with pytest.raises(InputError, match="is a file"), atomic_folder(tmp_path / "out", replace=True):
        raise AssertionError("not reached")


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_writes_is_not(tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import sys, time
        from pathlib import Path
        from trtbuild.files import atomic_folder
        with atomic_folder(Path(sys.argv[1])) as temporary:
            (temporary / "half").touch()
            print("ready", flush=True)
            time.sleep(60)
    """)
    children = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "out")], stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    for child in children:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
    left = sorted(tmp_path.iterdir())
    assert len(left) == 2
    for path in left:
        os.utime(path, (0, path.stat().st_mtime - 2 * YOUNG_SECONDS))
    children[0].send_signal(signal.SIGKILL)
    children[0].wait()
    with atomic_folder(tmp_path / "out") as temporary:
        (temporary / "whole").touch()
    assert len(names(tmp_path)) == 2  # the result, and the living process's temporary
    children[1].terminate()
    children[1].wait()


def test_a_full_disk_is_named_and_nothing_is_left(small_disk: Path) -> None:
    full = pytest.raises(BuildError, match=f"The disk that holds {small_disk} is full")
    with full, atomic_folder(small_disk / "out") as temporary:
        (temporary / "big").write_bytes(bytes(2 << 20))
    assert names(small_disk) == set()


def test_links_resolve_symlinks_and_copies_cross_file_systems(tmp_path: Path, small_disk: Path) -> None:
    """The hub's cache is symlinks into a folder of blobs; a link to a link would break when the cache is cleaned."""
    (tmp_path / "blob").write_text("weights")
    (tmp_path / "snapshot").symlink_to(tmp_path / "blob")
    link_or_copy(tmp_path / "snapshot", tmp_path / "linked")
    assert not (tmp_path / "linked").is_symlink()
    assert (tmp_path / "linked").stat().st_ino == (tmp_path / "blob").stat().st_ino
    link_or_copy(tmp_path / "snapshot", small_disk / "copied")
    assert (small_disk / "copied").read_text() == "weights"
