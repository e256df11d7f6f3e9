"""The plugin, compiled once a session with kernels that compile in a second; and headers for its C++ tests."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT
from trtbuild.plugin.build import PluginBuild, build_plugin
from trtbuild.plugin.sources import Sources
from trtbuild.plugin.toolchain import find_nvcc
from trtbuild.progress import Silent
from trtbuild.stages import Stages

PLUGINS = ROOT / "plugins"
QUICK = Sources(PLUGINS, PLUGINS / "tests" / "quick_kernels")
"""The plugin around kernels that only copy; head sizes of 256 are refused by them."""


@pytest.fixture(scope="session")
def cuda_headers() -> Path:
    """The folder of cuda_runtime_api.h, as nvcc itself names it."""
    command = [*find_nvcc().command, "--dryrun", "-E", "-x", "cu", "/dev/null"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    for folder in re.findall(r'-I([^"\s]+)', said):
        if (Path(folder) / "cuda_runtime_api.h").is_file():
            return Path(folder)
    raise AssertionError(said)


@pytest.fixture(scope="session")
def tensorrt_headers() -> Path:
    """TensorRT 10.14's, of the wheel kernel-lens."""
    spec = importlib.util.find_spec("kernel_lens")
    assert spec is not None and spec.origin is not None, (
        "run scripts/test, which installs kernel-lens without its needs"
    )
    return Path(spec.origin).parent / "include" / "tensorrt"


@pytest.fixture(scope="session")
def quick(tmp_path_factory: pytest.TempPathFactory) -> PluginBuild:
    """The library with the quick kernels, for two targets."""
    out = tmp_path_factory.mktemp("quick") / "plugin"
    return build_plugin(out, ("sm_80", "sm_120"), stages=Stages(Silent()), sources=QUICK)
