"""The plugin's C++ tests, compiled with the sanitizers and run: fields, shapes, formats, plans, runs, registration."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.plugins.conftest import PLUGINS
from trtbuild.plugin.toolchain import find_toolchain

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory, cuda_headers: Path, tensorrt_headers: Path) -> Path:
    place, tools = tmp_path_factory.mktemp("cpp"), find_toolchain()
    settings = {
        "CMAKE_MAKE_PROGRAM": tools.build_tool,
        "TENSORRT_INCLUDE_DIR": tensorrt_headers,
        "TRTBUILD_CUDA_INCLUDE_DIR": cuda_headers,
    }
    for command in (
        ["-S", PLUGINS / "tests", "-B", place, "-G", tools.generator, *(f"-D{k}={v}" for k, v in settings.items())],
        ["--build", place, "--parallel", "2"],
    ):
        result = subprocess.run([tools.cmake, *command], capture_output=True, text=True)
        assert result.returncode == 0, result.stdout + result.stderr
    return place


def test_units(compiled: Path) -> None:
    result = subprocess.run([compiled / "unit_tests"], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    ran = re.search(r"(\d+) tests, 0 failures", result.stdout)
    assert ran is not None
    written = sum(file.read_text().count("\nTEST(") for file in (PLUGINS / "tests").glob("test_*.cpp"))
    assert int(ran[1]) == written > 20


@pytest.mark.parametrize("order", ["before", "after"])
def test_registration(compiled: Path, order: str) -> None:
    """As Triton opens the backend, with TensorRT, and then the plugin: nothing of either is a global symbol."""
    libraries = [compiled / "libplugin_under_test.so", compiled / "libnvinfer.so.10"]
    # Where the library would find TensorRT's if it loaded it, which it must not.
    environment = {**os.environ, "LD_LIBRARY_PATH": str(compiled)}
    command = [compiled / "test_registration", *libraries, order]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (result.returncode, result.stdout) == (0, "ok\n"), result.stderr
