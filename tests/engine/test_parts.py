"""The small parts of the engine package, each by itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trtbuild.engine.adapter import available, check_options, why_unavailable
from trtbuild.engine.builder import _check_weight_bytes
from trtbuild.engine.gpu import Gpu, devices
from trtbuild.engine.inspect import inspect_plan
from trtbuild.engine.job import Job, ProfileShapes
from trtbuild.engine.messages import MessageLog, clean
from trtbuild.engine.native import NativeAdapter, refuse_missing
from trtbuild.engine.phases import BuildPhases
from trtbuild.engine.preflight import GraphFacts, PluginNode
from trtbuild.engine.request import BuildOptions, Flavour, HardwareCompatibility
from trtbuild.engine.targets import parse_targets
from trtbuild.engine.timing_cache import file_for
from trtbuild.errors import BuildError, InputError

HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize(
    ("text", "targets"),
    [
        ("sm_89", ("sm_89",)),
        ("8.9", ("sm_89",)),
        ("SM89", ("sm_89",)),
        ("89", ("sm_89",)),
        ("12.0, sm_86", ("sm_120", "sm_86")),
        (["sm_75", "12.1,8.0"], ("sm_75", "sm_121", "sm_80")),
    ],
)
def test_targets_as_users_write_them(text, targets):
    assert parse_targets(text) == targets


@pytest.mark.parametrize("text", ["", "sm_", "ampere", "8", "sm_90a", "sm_1234", "8.9,", "-8.9"])
def test_what_is_no_target(text):
    with pytest.raises(InputError, match="is not a compute capability. Write it as sm_89"):
        parse_targets(text)


def test_a_target_named_twice():
    with pytest.raises(InputError, match=r"sm_89 is named twice in 'sm_89, 8\.9'"):
        parse_targets("sm_89,8.9")


STUB_DRIVER = """
#include <string.h>
int cuInit(unsigned flags) { return flags != 0; }
int cuDeviceGetCount(int* count) { *count = 2; return 0; }
int cuDeviceGet(int* device, int ordinal) { *device = 40 + ordinal; return 0; }
int cuDeviceGetName(char* name, int size, int device) {
    strncpy(name, device == 40 ? "NVIDIA L4" : "NVIDIA H200", size);
    return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
    *value = attribute == 75 ? (device == 40 ? 8 : 9) : attribute == 76 ? (device == 40 ? 9 : 0) : -1;
    return 0;
}
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="a C compiler is needed for a stand-in driver")
def test_gpus_are_asked_of_the_driver(tmp_path):
    (tmp_path / "cuda.c").write_text(STUB_DRIVER)
    subprocess.run(["gcc", "-shared", "-fPIC", tmp_path / "cuda.c", "-o", tmp_path / "libcuda.so.1"], check=True)
    program = "from trtbuild.engine.gpu import devices; print([(gpu.name, gpu.target) for gpu in devices()])"
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert result.stdout.strip() == "[('NVIDIA L4', 'sm_89'), ('NVIDIA H200', 'sm_90')]"


@pytest.mark.skipif(devices() != (), reason="there is a GPU")
def test_tensorrt_without_a_gpu_is_refused_first(request_for, tmp_path):
    with pytest.raises(InputError, match="no NVIDIA GPU or driver is visible here.*--backend rtx"):
        check_options(Flavour.TENSORRT, (), BuildOptions())


def test_tensorrt_builds_for_the_gpu_it_is_on():
    l4, t4 = Gpu("NVIDIA L4", "sm_89"), Gpu("Tesla T4", "sm_75")
    refuse = NativeAdapter().refuse
    refuse(BuildOptions(), (), (l4,))
    refuse(BuildOptions(), ("sm_89",), (l4, t4))
    with pytest.raises(InputError, match=r"NVIDIA L4 \(sm_89\), not for sm_90"):
        refuse(BuildOptions(), ("sm_89", "sm_90"), (l4,))
    with pytest.raises(InputError, match="Tesla T4 is sm_75"):
        refuse(BuildOptions(hardware_compatibility=HardwareCompatibility.AMPERE_PLUS), (), (t4,))


@pytest.mark.skipif(available(Flavour.TENSORRT) is not None, reason="TensorRT is installed")
def test_what_is_not_installed_is_told_with_what_to_do():
    assert "No module named 'tensorrt'" in why_unavailable(Flavour.TENSORRT)
    assert "pip install 'trtbuild[tensorrt]'" in why_unavailable(Flavour.TENSORRT)


def test_plugins_that_are_missing():
    wanted = PluginNode("/layers.0/attn", "RopeAlibiAttention", "1", "trtbuild")
    refuse_missing([wanted], [("RopeAlibiAttention", "1", "trtbuild")])
    with pytest.raises(InputError, match=r"namespace 'trtbuild'\. Registered is .* version 2 in no namespace"):
        refuse_missing([wanted], [("RopeAlibiAttention", "2", ""), ("Other", "1", "")])
    with pytest.raises(InputError, match="Node '/layers.0/attn' needs the plugin .* are 1 others, none of that name"):
        refuse_missing([wanted], [("Other", "1", "")])


def test_a_timing_cache_belongs_to_a_version_and_a_device():
    file = file_for(Path("cache"), "10.16.1.11", "NVIDIA GeForce RTX 4090 (24/GB)")
    assert file == Path("cache/timing-10.16.1.11-NVIDIA-GeForce-RTX-4090-24-GB.cache")


def test_a_job_survives_its_journey(tmp_path):
    job = Job(
        onnx_file=tmp_path / "model.onnx",
        destination=tmp_path / "plan",
        flavour=Flavour.RTX,
        targets=("sm_89", "sm_120"),
        options=BuildOptions(
            optimization_level=3,
            hardware_compatibility=HardwareCompatibility.AMPERE_PLUS,
            timing_cache=tmp_path,
            plugin_libraries=(tmp_path / "p.so",),
        ),
        profiles=(ProfileShapes("decode", {"x": ((1, 2), (3, 4), (5, 6))}),),
        facts=GraphFacts(("x",), (PluginNode("/n", "P", "1", ""),), ("/dq",), 10, 20),
    )
    back = Job.from_json(job.to_json())
    assert back.profiles[0].inputs == {"x": [[1, 2], [3, 4], [5, 6]]}
    assert Job(**{f: getattr(back, f) for f in Job.__slots__ if f != "profiles"}, profiles=job.profiles) == job


def test_the_error_that_explains_and_the_noise_around_it():
    log = MessageLog()
    log.add(2, "ModelImporter.cpp:1071: Make sure input input_ids has Int64 binding.")
    log.add(2, "Something worth telling.")
    log.add(2, "Something worth telling.")
    log.add(2, "Unused Input: lengths")
    log.add(
        2, "[RemoveDeadLayers] Input Tensor lengths is unused or used only at compile-time, but is not being removed."
    )
    log.add(
        1, "[checkMacros.cpp::catchCudaError::250] Error Code 1: Cuda Runtime (In x at /a.cpp:2 (cudaError 35: old))"
    )
    log.add(
        1,
        "IBuilder::buildSerializedNetwork: Error Code 4: Internal Error (IShuffleLayer /layers.0/bad: reshaping failed "
        "In executeReshape at /_src/runtime/core/shapeMachine.cpp:348 In evaluateShapeChecks at /_src/o.cpp:1375)",
    )
    log.add(1, "A consequence.")
    log.add(3, "Total Weights Memory: 269292544 bytes")
    log.add(4, "Verbose")
    assert log.warnings == ("Something worth telling", "Unused Input: lengths")
    assert log.unused_inputs == ("lengths",)
    assert log.weight_bytes == 269292544
    assert not log.ran_out_of_memory
    assert log.explain() == (
        "TensorRT says: IBuilder::buildSerializedNetwork: Error Code 4: Internal Error (IShuffleLayer /layers.0/bad: "
        "reshaping failed)."
    )


def test_out_of_memory_is_recognised():
    log = MessageLog()
    log.add(1, "[res.cpp::virtual void* f(const string&)::206] Error Code 2: OutOfMemory (Requested size was 9 bytes.)")
    assert log.ran_out_of_memory
    assert clean(log.records[0][1]) == "Error Code 2: OutOfMemory (Requested size was 9 bytes.)"


def job_with(weights: int, expanded: int, profiles: int) -> Job:
    facts = GraphFacts((), (), ("/dq",), weights, expanded)
    shapes = (ProfileShapes("p", {}),) * profiles
    return Job(Path("m"), Path("p"), Flavour.RTX, (), BuildOptions(), shapes, facts)


def test_int4_that_was_unpacked():
    assert _check_weight_bytes(job_with(100, 350, 2), 110) == ()
    assert _check_weight_bytes(job_with(100, 350, 2), None) == ()
    with pytest.raises(BuildError, match="TensorRT has unpacked INT4"):
        _check_weight_bytes(job_with(100, 350, 2), 350)
    # Four copies for four profiles would be as large.
    assert "keeps copies for 4 profiles" in _check_weight_bytes(job_with(100, 350, 4), 380)[0]


def test_the_bar_follows_the_phases_of_tensorrt_rtx():
    """The order, names and step counts that TensorRT-RTX 1.7.1 reports for two profiles."""
    phases, seen = BuildPhases(), []
    phases.start("Building engine", None, 6)
    phases.start("Cloning network graph", "Building engine", 100)
    phases.step("Cloning network graph", 99)
    phases.finish("Cloning network graph")
    seen.append(phases.fraction)
    phases.step("Building engine", 2)
    phases.start("Building engine from subgraph", "Building engine", 1)
    seen.append(phases.fraction)
    phases.start("Computing profile costs", "Building engine from subgraph", 10)
    phases.start("Determining refit engines", "Computing profile costs", 1)
    assert phases.note == "Determining refit engines"
    phases.finish("Determining refit engines")
    phases.step("Computing profile costs", 4)
    seen.append(phases.fraction)
    phases.finish("Computing profile costs")
    phases.step("Building engine from subgraph", 0)
    phases.finish("Building engine from subgraph")
    seen.append(phases.fraction)
    phases.step("Building engine", 4)
    phases.finish("Building engine")
    seen.append(phases.fraction)
    assert seen == pytest.approx([0.0, 0.05, 0.5, 0.95, 1.0])


def test_unknown_phases_still_move_the_bar():
    phases = BuildPhases()
    phases.start("Something new", None, 4)
    phases.step("Something new", 0)
    assert phases.fraction == 0.25
    phases.step("Never started", 3)
    phases.finish("Something new")
    assert phases.fraction == 1.0


def rtx_header(size: int, bits: int) -> bytes:
    """As TensorRT-RTX 1.7.1.116 writes it, field by field."""
    head = b"vtrt" + (0).to_bytes(4, "little") + (2).to_bytes(8, "little") + size.to_bytes(8, "little")
    return (head + bytes((1, 7, 1, 116)) + b"vtrt" + bits.to_bytes(4, "little")).ljust(64, b"\0")


def test_a_plan_tells_its_version_and_targets(tmp_path):
    file = tmp_path / "model.plan"
    file.write_bytes(rtx_header(100, 0b001001) + bytes(36))
    info = inspect_plan(file)
    assert (info.flavour, info.version, info.targets) == (Flavour.RTX, "1.7.1.116", ("sm_75", "sm_89"))


def test_a_plan_that_was_cut_short(tmp_path):
    file = tmp_path / "model.plan"
    file.write_bytes(rtx_header(101, 8) + bytes(36))
    with pytest.raises(InputError, match="has 100 bytes and its header says 101: it was cut short"):
        inspect_plan(file)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is not a TensorRT plan"),
        (b"vtrt", "is not a TensorRT plan"),
        (b"# Notes about the plan\n" * 9, "is not a TensorRT plan"),
        (b"GGUF" + bytes(99), "is a GGUF model"),
        (b"PK\x03\x04" + bytes(99), "is a zip archive"),
        (b"\x08\x0b\x12\x08trtbuild" + bytes(99), "is an ONNX model"),
        (b"version https://git-lfs.github.com/spec/v1\n" * 3, "is a Git LFS pointer"),
    ],
)
def test_what_is_no_plan(tmp_path, content, problem):
    file = tmp_path / "model.plan"
    file.write_bytes(content)
    with pytest.raises(InputError, match=problem):
        inspect_plan(file)
    with pytest.raises(InputError, match="cannot be read"):
        inspect_plan(tmp_path / "absent.plan")


def test_another_header_is_not_claimed_to_be_known(tmp_path):
    file = tmp_path / "model.plan"
    file.write_bytes(b"\x93\x01" + bytes(98))
    assert inspect_plan(file).flavour is None
