"""`trtbuild plugin build`: which tools it takes, and what it says when one is missing or fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.plugins.conftest import QUICK
from trtbuild.errors import BuildError, InputError
from trtbuild.plugin import build, toolchain
from trtbuild.plugin.build import PluginBuild, build_plugin
from trtbuild.plugin.compiling import run
from trtbuild.plugin.info import read_info
from trtbuild.plugin.sources import Sources
from trtbuild.plugin.toolchain import find_nvcc, find_toolchain
from trtbuild.progress import Silent
from trtbuild.stages import Stages


def script(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


def fake_nvcc(file: Path, release: str = "13.9", codes: str = "sm_75 sm_90 sm_80") -> Path:
    return script(
        file,
        f'case $1 in --version) echo "Cuda compilation tools, release {release}, V";; '
        f"*) for code in {codes}; do echo $code; done;; esac",
    )


@pytest.fixture
def no_wheels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither wheels nor programs of this virtual environment."""
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere" / "python"))


def compile_kernels(place: Path, kernels: str, **changes: object) -> PluginBuild:
    """Build with one .cu file of this text."""
    folder = place / "kernels"
    folder.mkdir()
    (folder / "own.cu").write_text(kernels)
    sources = Sources(QUICK.root, folder)
    return build_plugin(place / "out" / "plugin", ("sm_90",), stages=Stages(Silent()), sources=sources, **changes)  # type: ignore[arg-type]


class TestTools:
    def test_cuda_home_comes_before_path(self, tmp_path: Path) -> None:
        home, path = fake_nvcc(tmp_path / "home/bin/nvcc"), fake_nvcc(tmp_path / "path/nvcc", "13.1")
        found = find_nvcc({"CUDA_HOME": str(tmp_path / "home"), "PATH": f"{path.parent}:{os.defpath}"})
        assert (found.path, found.version, found.targets) == (home, "13.9", ("sm_80", "sm_90"))
        found = find_nvcc({"CUDA_HOME": str(tmp_path / "empty"), "PATH": f"{path.parent}:{os.defpath}"})
        assert (found.path, found.version) == (path, "13.1")

    def test_the_wheels_come_last(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        wheel = fake_nvcc(tmp_path / "nvidia/cu13/bin/nvcc")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "nvidia", raising=False)
        with pytest.raises(InputError, match=r"needs nvidia-nvvm, nvidia-cuda-crt, .* of the same version.*\[plugin\]"):
            find_nvcc({"PATH": "/nowhere"})
        for part in toolchain._WHEEL_PARTS:
            (wheel.parent.parent / part).mkdir(parents=True)
        found = find_nvcc({"PATH": "/nowhere"})
        assert (found.path, found.libraries) == (wheel, tmp_path / "nvidia/cu13/lib")
        assert found.command == (str(wheel), f"-L{tmp_path}/nvidia/cu13/lib")

    def test_no_compiler(self, no_wheels: None) -> None:
        with pytest.raises(InputError, match=r"no CUDA compiler \(tried /opt/x/bin/nvcc, PATH.*trtbuild\[plugin\]"):
            find_nvcc({"CUDA_HOME": "/opt/x", "PATH": "/nowhere"})

    def test_a_compiler_that_does_not_run(self, tmp_path: Path) -> None:
        broken = script(tmp_path / "bin/nvcc", "echo 'cannot open cicc' >&2; exit 3")
        with pytest.raises(InputError, match=f"{broken} fails at --version: cannot open cicc"):
            find_nvcc({"CUDA_HOME": str(tmp_path), "PATH": os.defpath})
        script(tmp_path / "bin/nvcc", "echo something else")
        with pytest.raises(InputError, match="does not answer as a CUDA compiler"):
            find_nvcc({"CUDA_HOME": str(tmp_path), "PATH": os.defpath})

    def test_each_other_tool_is_named(self, tmp_path: Path, no_wheels: None) -> None:
        fake_nvcc(tmp_path / "nvcc")
        bare = {"CUDA_HOME": "", "PATH": f"{tmp_path}:/nowhere"}
        script(tmp_path / "sh", 'exec /bin/sh "$@"')
        with pytest.raises(InputError, match="CMake, which builds the plugin, is not on PATH"):
            find_toolchain(bare)
        script(tmp_path / "cmake", "")
        with pytest.raises(InputError, match="Neither ninja nor make"):
            find_toolchain(bare)
        script(tmp_path / "make", "")
        with pytest.raises(InputError, match=r"no C\+\+ compiler"):
            find_toolchain(bare)
        script(tmp_path / "g++", "")
        assert find_toolchain(bare).generator == "Unix Makefiles"
        script(tmp_path / "ninja", "")
        assert find_toolchain(bare).generator == "Ninja"


class TestTargets:
    def test_unknown(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"cannot build for sm_75. It offers sm_80, .*sm_90"):
            build_plugin(tmp_path / "out", ("sm_90", "sm_75"), stages=Stages(Silent()))
        assert not list(tmp_path.iterdir())

    def test_none_and_no_gpu(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(build, "devices", lambda: ())
        with pytest.raises(InputError, match="No NVIDIA GPU is visible here.*--target sm_90"):
            build_plugin(tmp_path / "out", stages=Stages(Silent()))


class TestFailures:
    def test_an_error_in_a_source(self, tmp_path: Path) -> None:
        with pytest.raises(BuildError) as caught:
            compile_kernels(tmp_path, "__global__ void k() { int x = nothing_such; }\n")
        first, *_ = str(caught.value).splitlines()
        assert first.startswith("Compiling the plugin failed: ")
        assert 'own.cu(1): error: identifier "nothing_such" is undefined' in first
        assert len(str(caught.value).splitlines()) <= 3
        assert not list((tmp_path / "out").iterdir())

    def test_a_missing_function(self, tmp_path: Path) -> None:
        with pytest.raises(BuildError, match="undefined reference to `trtbuild_"):
            compile_kernels(tmp_path, 'extern "C" int f() { return 0; }\n')
        assert not list((tmp_path / "out").iterdir())

    def test_no_headers(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(toolchain, "_wheel_headers", lambda: None)
        if Path("/usr/include/x86_64-linux-gnu/NvInfer.h").exists():
            pytest.skip("the system has TensorRT's headers")
        with pytest.raises(
            InputError, match="headers were not found; those of 10.3 or later are needed. Set TENSORRT_"
        ):
            compile_kernels(tmp_path, "")
        assert not list((tmp_path / "out").iterdir())

    def test_headers_that_are_not_where_they_should_be(self, tmp_path: Path) -> None:
        variables = {**os.environ, "TENSORRT_INCLUDE_DIR": str(tmp_path)}
        with pytest.raises(InputError, match=f"TENSORRT_INCLUDE_DIR is {tmp_path}, and there is no NvInfer.h in it"):
            find_toolchain(variables)

    def test_headers_of_an_old_release(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "NvInfer.h").touch()
        (tmp_path / "NvInferVersion.h").write_text(
            "#define NV_TENSORRT_MAJOR 8 //!< x\n#define NV_TENSORRT_MINOR 6\n#define NV_TENSORRT_PATCH 1\n"
        )
        monkeypatch.setenv("TENSORRT_INCLUDE_DIR", str(tmp_path))
        with pytest.raises(InputError, match=f"The headers in {tmp_path} are TensorRT 8.6.1's; those of 10.3 or later"):
            compile_kernels(tmp_path, "")

    def test_what_exists_is_kept(self, tmp_path: Path) -> None:
        out = tmp_path / "out"
        out.mkdir()
        (out / "mine").touch()
        with pytest.raises(InputError, match="exists and is not empty"):
            build_plugin(out, ("sm_90",), stages=Stages(Silent()))
        assert [file.name for file in out.iterdir()] == ["mine"]

    def test_a_full_disk(self, small_disk: Path) -> None:
        with pytest.raises(BuildError, match=f"The disk that holds {small_disk} is full"):
            build_plugin(small_disk / "out", ("sm_90",), stages=Stages(Silent()), sources=QUICK)
        assert not list(small_disk.iterdir())

    def test_no_library(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="There is no .*gone. Make it with"):
            read_info(tmp_path / "gone")
        with pytest.raises(InputError, match="There is no .*libtrtbuild_plugin.so"):
            read_info(tmp_path)
        (tmp_path / "libtrtbuild_plugin.so").write_text("text " * 100)
        with pytest.raises(InputError, match="is not trtbuild's plugin, or cannot be loaded.*invalid ELF header"):
            read_info(tmp_path)

    def test_the_first_errors_of_many(self) -> None:
        lines = [
            "[1/2] Building a.o",
            "FAILED: a.o",
            "cc a.cpp",
            *(f"a.cpp:{i}: error: {i}" for i in range(9)),
            "ninja: x",
        ]
        with pytest.raises(BuildError) as caught:
            run([sys.executable, "-c", f"print({chr(10).join(lines)!r}); exit(1)"], "It", environment=os.environ)
        assert str(caught.value) == "It failed: a.cpp:0: error: 0\n  a.cpp:1: error: 1\n  a.cpp:2: error: 2"

    def test_memory(self) -> None:
        line = "c++: fatal error: Killed signal terminated program cc1plus"
        with pytest.raises(BuildError, match="Killed.*\n.*ran out of memory: try --jobs 1"):
            run([sys.executable, "-c", f"print({line!r}); exit(1)"], "It", environment=os.environ)


def test_steps_are_counted() -> None:
    seen: list[tuple[int, int, str]] = []
    text = "[1/4] Building CUDA object x/own.cu.o\n[ 50%] Linking CUDA shared library libx.so\nother"
    said = run(
        [sys.executable, "-c", f"print({text!r})"],
        "It",
        environment=os.environ,
        advance=lambda *step: seen.append(step),
    )
    assert seen == [(1, 4, "own.cu"), (50, 100, "libx.so")]
    assert said == text


@pytest.mark.slow
def test_replacing(quick: PluginBuild, tmp_path: Path) -> None:
    """With --force: another library in the place of the first, and nothing of the old folder."""
    out = tmp_path / "plugin"
    out.mkdir()
    (out / "old").touch()
    made = build_plugin(out, ("sm_90",), stages=Stages(Silent()), force=True, sources=QUICK, jobs=1)
    assert {file.name for file in out.iterdir()} == {"libtrtbuild_plugin.so", "libtrtbuild_kernels.so"}
    assert made.plugin.targets == read_info(out).targets == ("sm_90",)
    assert [file.name for file in tmp_path.iterdir()] == ["plugin"]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopping(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """While the compilers run: they end too, and nothing is left."""
    trtbuild = Path(sys.executable).with_name("trtbuild")
    (tmp_path / "out").mkdir()
    with subprocess.Popen(
        [trtbuild, "plugin", "build", "--target", "sm_90", "--out", tmp_path / "out/plugin"],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert [process.stderr.readline(), process.stderr.readline()] == ["configure …\n", "compile …\n"]
        time.sleep(0.5)
        process.send_signal(number)
        rest = process.stderr.read()
    assert (process.returncode, rest) == (code, f"error: Stopped by {number.name}; nothing half-written was left.\n")
    assert not list((tmp_path / "out").iterdir())
    running = [" ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])]
    assert not [command for command in running if str(tmp_path) in command]
