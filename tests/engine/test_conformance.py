"""What the adapter and the serving runner use of TensorRT's API, held against the real APIs of both flavours.

TensorRT 10's libraries are not to be had without NVIDIA's own index, but its Python bindings are: with stubs of the
libraries they import, and every class, signature and enumerator of the real 10.16 API is there to compare with.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CACHE = ROOT / ".cache" / "tests"
ENGINE = ROOT / "trtbuild" / "engine"
BINDINGS = "tensorrt-cu13-bindings==10.16.1.11"
STUBBED = ("nvinfer", "nvinfer_plugin", "nvonnxparser")

Compare = Callable[..., dict[str, Any]]


def sources(*differences: str) -> list[Path]:
    """Every engine module that handles TensorRT's objects, with one flavour's differences, and the serving runner."""
    per_flavour = {"rtx.py", "native.py", "timing_cache.py"}
    shared = [
        file
        for file in sorted(ENGINE.glob("*.py"))
        if file.name not in per_flavour and re.search(r"\btrt\b", file.read_text())
    ]
    return [
        *shared,
        *(ENGINE / name for name in differences),
        *sorted((ROOT / "trtbuild" / "serving" / "runners").glob("tensorrt*.py")),
    ]


@pytest.fixture(scope="session")
def bindings() -> dict[str, str]:
    """The environment in which `tensorrt_bindings` 10.16 imports; downloaded once into the repository's cache."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("a C compiler is needed for stubs of TensorRT's libraries")
    folder = (
        CACHE / f"tensorrt-bindings-{BINDINGS.rpartition('=')[2]}-py{sys.version_info.major}{sys.version_info.minor}"
    )
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
            made = Path(temporary) / "made"
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", made, BINDINGS]
            result = subprocess.run(command, capture_output=True, text=True)
            if result.returncode != 0:
                pytest.skip(f"pip cannot get {BINDINGS}: {result.stderr.strip().splitlines()[-1:]}")
            made.replace(folder)
    for library in STUBBED:
        name = f"lib{library}.so.10"
        command = [compiler, "-shared", "-fPIC", f"-Wl,-soname,{name}", HERE / "tensorrt_stub.c", "-o", folder / name]
        subprocess.run(command, check=True)
    return {"PYTHONPATH": str(folder), "LD_LIBRARY_PATH": str(folder)}


@pytest.fixture(scope="session")
def native(bindings: dict[str, str]) -> Compare:
    return lambda *files: compare("tensorrt_bindings", files, bindings)


@pytest.fixture(scope="session")
def rtx() -> Compare:
    pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed")
    return lambda *files: compare("tensorrt_rtx", files, {})


def compare(module: str, files: tuple[Path, ...], environment: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, HERE / "conformance.py", module, *files]
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    assert result.returncode == 0, result.stderr
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def test_tensorrt_has_all_that_is_used(native):
    report = native(*sources("native.py", "timing_cache.py"))
    assert report["problems"] == []
    # The comparison has followed the objects that matter, in the adapter and in the runner.
    assert {
        "Builder.build_serialized_network",
        "NetworkDefinitionCreationFlag.STRONGLY_TYPED",
        "IBuilderConfig.set_timing_cache",
        "ITimingCache.combine",
        "IPluginRegistry.load_library",
        "IPluginCreatorV3One.plugin_version",
        "IOptimizationProfile.set_shape",
        "ParserError.local_function_stack",
        "ILayer.num_inputs",
        "IProgressMonitor.step_complete",
        "HardwareCompatibilityLevel.SAME_COMPUTE_CAPABILITY",
        "IExecutionContext.execute_async_v3",
        "ICudaEngine.num_io_tensors",
    } <= set(report["uses"])


def test_tensorrt_rtx_has_all_that_is_used(rtx):
    report = rtx(*sources("rtx.py"))
    assert report["problems"] == []
    assert {"IBuilderConfig.set_compute_capability", "ComputeCapability.__members__"} <= set(report["uses"])


def test_what_only_rtx_has_is_missing_in_tensorrt(native):
    problems = "\n".join(native(ENGINE / "rtx.py")["problems"])
    assert "there is no ComputeCapability" in problems
    assert "there is no IBuilderConfig.set_compute_capability" in problems


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("trt.Bilder(logger)", "there is no Bilder"),
        ("builder.create_netwrok(0)", "there is no Builder.create_netwrok"),
        ("config.max_workspace_size = 1", "there is no IBuilderConfig.max_workspace_size"),
        ("config.set_flag(trt.BuilderFlag.INT9)", "there is no BuilderFlag.INT9"),
        ("config.set_flag()", "IBuilderConfig.set_flag takes (self, flag), not 0 arguments"),
        ("config.set_flag(1, 2)", "IBuilderConfig.set_flag takes (self, flag), not 2 arguments"),
        ("config.set_flag(flags=1)", "not 0 arguments and ['flags']"),
        ("config.num_optimization_profiles = 2", "num_optimization_profiles cannot be assigned"),
        ("builder.create_network(0).get_input(0).dtpye", "there is no ITensor.dtpye"),
        ("p = builder.create_optimization_profile(); p.set_shapes('x')", "there is no IOptimizationProfile.set_shapes"),
        ("trt.Runtime(logger, 3)", "Runtime.__init__ takes (self, logger), not 2 arguments"),
        ("engine.get_tensor_name()", "ICudaEngine.get_tensor_name takes (self, index), not 0 arguments"),
    ],
)
def test_a_use_that_does_not_exist_is_found(native, rtx, tmp_path, line, problem):
    file = tmp_path / "wrong.py"
    file.write_text(f"def f(trt: Any, builder: Any, config: Any, logger: Any, engine: Any):\n    {line}\n")
    for compared in (native, rtx):
        problems = compared(file)["problems"]
        assert len(problems) == 1
        assert problems[0].startswith("wrong.py:2: ")
        assert problem in problems[0]


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("def f(thing: Any): thing.x()", "say in RECEIVERS what the parameter 'thing' of f is"),
        ("class M(trt.IProgressMonitor):\n    def phase_begin(self): ...", "has no method phase_begin to override"),
        ("class M(trt.IProgressMonitor):\n    def phase_finish(self, a, b): ...", "phase_finish has other arguments"),
    ],
)
def test_a_receiver_nobody_knows_and_a_wrong_override_are_found(rtx, tmp_path, source, problem):
    file = tmp_path / "wrong.py"
    file.write_text(source)
    problems = rtx(file)["problems"]
    assert len(problems) == 1
    assert problem in problems[0]
