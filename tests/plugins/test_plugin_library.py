"""The compiled library in the real plugin registry of TensorRT-RTX, which needs no GPU for that."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from onnx import helper

from trtbuild.architectures.alibi import alibi_slopes
from trtbuild.architectures.rope_spec import Rope
from trtbuild.architectures.spec import Attention
from trtbuild.graph.operator import PagedInputs, attention_node
from trtbuild.plugin.build import PluginBuild
from trtbuild.plugin.info import read_info

# In a process of its own: a library that is loaded once stays loaded, and so do its creators.
_IN_REGISTRY = """
import json, sys
import numpy as np
import tensorrt_rtx as trt

library, wanted = sys.argv[1], json.loads(sys.argv[2])
registry = trt.get_plugin_registry()
handle = registry.load_library(library)
ours = [c for c in registry.all_creators if c.name == "RopeAlibiAttention"]
again = registry.load_library(library)
TYPES = {"int32": (np.int32, trt.PluginFieldType.INT32), "float32": (np.float32, trt.PluginFieldType.FLOAT32)}
found = {
    "loaded": handle is not None,
    "again": again is not None,
    "creators": [(c.name, c.plugin_version, c.plugin_namespace) for c in ours],
    "fields": [(field.name, field.type.name) for field in ours[0].field_names],
    "made": [],
}
creator = registry.get_creator("RopeAlibiAttention", "1", "trtbuild")
for fields in wanted:
    given = [trt.PluginField(n, np.asarray(v, TYPES[t][0]).reshape(-1), TYPES[t][1]) for n, t, v in fields]
    print(f"-- {len(found['made'])}", file=sys.stderr, flush=True)
    plugin = creator.create_plugin("layer", trt.PluginFieldCollection(given), trt.TensorRTPhase.BUILD)
    found["made"].append(plugin is not None)
registry.deregister_library(handle)
found["left"] = sum(c.name == "RopeAlibiAttention" for c in registry.all_creators)
found["reloaded"] = registry.load_library(library) is not None
print(json.dumps(found))
"""

# As the serving runner loads it.
_IN_RUNTIME = """
import sys
import tensorrt_rtx as trt

runtime = trt.Runtime(trt.Logger(trt.Logger.ERROR))
registry = runtime.get_plugin_registry()
assert registry.load_library(sys.argv[1]) is not None
(creator,) = [c for c in registry.all_creators if c.name == "RopeAlibiAttention"]
assert (creator.plugin_version, creator.plugin_namespace) == ("1", "trtbuild")
assert registry.load_library(sys.argv[1] + "-that-is-not-there") is None
"""

GOOD = [
    ["num_heads", "int32", 12],
    ["num_kv_heads", "int32", 4],
    ["head_dim", "int32", 64],
    ["scale", "float32", 0.125],
]


def in_registry(library: Path, *wanted: list[list[Any]]) -> tuple[dict[str, Any], list[str]]:
    """What the registry says, and for each list of fields what was printed while a plugin was made of it."""
    command = [sys.executable, "-c", _IN_REGISTRY, str(library), json.dumps(wanted)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    printed = re.split(r"^-- \d+\n", result.stderr, flags=re.MULTILINE)[1:]
    return json.loads(result.stdout.splitlines()[-1]), [text.strip() for text in printed]


def test_a_runtimes_own_registry_lists_it(quick: PluginBuild) -> None:
    command = [sys.executable, "-c", _IN_RUNTIME, str(quick.plugin.library)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


def test_the_registry_lists_it_once(quick: PluginBuild) -> None:
    found, _ = in_registry(quick.plugin.library)
    assert found["loaded"] and not found["again"]
    assert found["creators"] == [["RopeAlibiAttention", "1", "trtbuild"]]
    assert found["fields"] == [
        ["num_heads", "INT32"], ["num_kv_heads", "INT32"], ["head_dim", "INT32"], ["rotary_dim", "INT32"],
        ["interleaved", "INT32"], ["window", "INT32"], ["scale", "FLOAT32"], ["soft_cap", "FLOAT32"],
        ["alibi_slopes", "FLOAT32"],
    ]  # fmt: skip
    assert found["left"] == 0 and found["reloaded"]


def test_plugins_of_good_and_bad_fields(quick: PluginBuild) -> None:
    wanted: list[tuple[list[list[Any]], str]] = [
        (GOOD, ""),
        ([*GOOD, ["alibi_slopes", "float32", [0.5] * 12], ["rotary_dim", "int32", 16], ["window", "int32", 4096]], ""),
        (GOOD[1:], "field 'num_heads' is missing"),
        ([*GOOD, ["heads", "int32", 12]], "field 'heads' is unknown; there are num_heads, num_kv_heads, head_dim, "
         "rotary_dim, interleaved, window, scale, soft_cap, alibi_slopes"),
        ([*GOOD, ["window", "float32", 1]], "field 'window' must be int32, and is float32"),
        ([*GOOD, ["window", "int32", [1, 2]]], "field 'window' must be one value, and has 2"),
        ([*GOOD, ["alibi_slopes", "float32", [0.5] * 11]],
         "field 'alibi_slopes' has 11 values; it must have one for each of the 12 heads"),
        ([*GOOD, ["rotary_dim", "int32", 66]], "field 'rotary_dim' is 66; it must be even, from 0 to head_dim, 64"),
        ([*GOOD[:2], ["head_dim", "int32", 256], GOOD[3]], "head_dim is 256, which the quick kernels refuse"),
    ]  # fmt: skip
    found, printed = in_registry(quick.plugin.library, *(fields for fields, _ in wanted))
    assert found["made"] == [not message for _, message in wanted]
    assert printed == [message and f"RopeAlibiAttention: node 'layer': {message}" for _, message in wanted]


def test_nodes_of_the_graph_are_taken(quick: PluginBuild) -> None:
    """Attributes as TensorRT's ONNX parser hands them over: INT as int32, FLOAT and FLOATS as float32."""
    specs = [
        (Attention(9, 3, 64, 0.125), Rope(10000.0, 64), None),
        (Attention(40, 40, 128, 128**-0.5, alibi=alibi_slopes(40)), None, None),
        (Attention(16, 8, 128, 0.0625, soft_cap=50.0), Rope(10000.0, 32, interleaved=True), 4096),
    ]
    names = {"qkv": "q", "kv_pages": "p", "outputs": ("a", "b"), "name": "layer"}
    nodes = [
        attention_node(spec, rope, window, shared=PagedInputs("t", "c", "l"), cos_sin=rope and "r", **names)
        for spec, rope, window in specs
    ]
    known = {field.name for field in quick.plugin.fields}
    wanted = []
    for node in nodes:
        assert node.op_type == quick.plugin.name
        given = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        assert given.pop("plugin_version").decode() == quick.plugin.plugin_version
        assert given.pop("plugin_namespace").decode() == quick.plugin.namespace
        assert given.keys() <= known
        wanted.append(
            [[name, "int32" if isinstance(value, int) else "float32", value] for name, value in given.items()]
        )
    found, printed = in_registry(quick.plugin.library, *wanted)
    assert found["made"] == [True] * 3, printed


def test_info(quick: PluginBuild) -> None:
    info = read_info(quick.folder)
    assert info == quick.plugin
    assert info.targets == ("sm_80", "sm_120")
    assert (info.kernels, info.tensorrt_headers.split(".")[0]) == ("quick", "10")
    fields = {field.name: field for field in info.fields}
    assert [name for name, field in fields.items() if field.required] == [
        "num_heads", "num_kv_heads", "head_dim", "scale",
    ]  # fmt: skip
    assert fields["alibi_slopes"].type == "float32[num_heads]"
    assert fields["window"].default == 0


def test_nothing_else_is_exported_or_needed(quick: PluginBuild) -> None:
    """Neither TensorRT nor the CUDA runtime is linked, and another library's symbols cannot be taken for ours."""
    exported = subprocess.run(
        ["nm", "-D", "--defined-only", "--format=just-symbols", quick.plugin.library], capture_output=True, text=True
    ).stdout.split()
    assert {"getCreators", "setLoggerFinder", "trtbuild_plugin_info", "trtbuild_attention_run"} <= set(exported)
    assert {name for name in exported if not name.startswith("trtbuild_")} == {"getCreators", "setLoggerFinder"}
    dynamic = subprocess.run(["readelf", "-d", quick.plugin.library], capture_output=True, text=True).stdout
    needed = re.findall(r"NEEDED.*\[(.*?)\.so", dynamic)
    assert set(needed) <= {"libstdc++", "libgcc_s", "libc", "libm", "ld-linux-x86-64", "ld-linux-aarch64"}
    assert "SYMBOLIC" in dynamic and "NODELETE" in dynamic


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_with_the_real_kernels(tmp_path: Path) -> None:
    """The command as a user runs it; what the fields' rules let through, the kernels take."""
    trtbuild = Path(sys.executable).with_name("trtbuild")
    out = tmp_path / "plugin"
    result = subprocess.run(
        [trtbuild, "plugin", "build", "--target", "sm_90", "--out", out], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert "RopeAlibiAttention for sm_90" in result.stdout
    assert {file.name for file in out.iterdir()} == {"libtrtbuild_plugin.so", "libtrtbuild_kernels.so"}
    wanted = [
        [["num_heads", "int32", 16], ["num_kv_heads", "int32", kv], ["head_dim", "int32", dim], GOOD[3]]
        for kv in (1, 16)
        for dim in (64, 80, 96, 128, 256)
    ]
    found, printed = in_registry(out / "libtrtbuild_plugin.so", *wanted)
    assert found["creators"] == [["RopeAlibiAttention", "1", "trtbuild"]]
    assert found["made"] == [True] * 10, printed
