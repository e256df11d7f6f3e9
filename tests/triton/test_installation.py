"""Finding a tritonserver."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from trtbuild.errors import InputError
from trtbuild.triton import installation
from trtbuild.triton.installation import find_server

ORIGINAL = importlib.metadata.version


@pytest.fixture(autouse=True)
def no_other_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(installation, "CONTAINER", tmp_path / "opt")


def pretend_numpy(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version if name == "numpy" else ORIGINAL(name))


def test_the_wheels_server_is_put_together_once(tmp_path: Path) -> None:
    first = find_server(tmp_path)
    assert os.access(first.binary, os.X_OK)
    stub = first.backends / "python" / "triton_python_backend_stub"
    assert os.access(stub, os.X_OK)
    assert (first.backends / "python" / "libtriton_python.so").is_file()
    assert (first.caches / "local" / "libtritoncache_local.so").is_file()
    inode = stub.stat().st_ino
    assert find_server(tmp_path) == first
    assert stub.stat().st_ino == inode


def test_a_server_on_the_path_comes_first(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tritonserver").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "tritonserver").chmod(0o755)
    found = find_server(tmp_path / "cache")
    assert (found.binary, found.backends) == (tmp_path / "bin" / "tritonserver", tmp_path / "backends")


def test_the_containers_server_comes_before_the_wheels(tmp_path: Path) -> None:
    (tmp_path / "opt" / "bin").mkdir(parents=True)
    (tmp_path / "opt" / "bin" / "tritonserver").write_text("")
    assert find_server(tmp_path / "cache").backends == tmp_path / "opt" / "backends"


def test_numpy_2_is_refused_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_numpy(monkeypatch, "2.3.1")
    with pytest.raises(InputError, match=r"numpy 2.3.1 is installed.*'numpy<2'"):
        find_server(tmp_path)
    assert not list(tmp_path.iterdir())


def test_no_wheel_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'trtbuild\[serve\]'"):
        find_server(tmp_path)


def test_a_python_without_a_stub_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Version(tuple[Any, ...]):
        major, minor = 3, 99

    monkeypatch.setattr(sys, "version_info", Version((3, 99, 0)))
    with pytest.raises(InputError, match=r"Python 3.8, 3.9, 3.10, .* and this is Python 3.99"):
        find_server(tmp_path)
