"""What every command prints: help at once, one JSON document when asked, results apart from progress."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

import trtbuild as package
from tests.cli.conftest import TRTBUILD, Command

COMMANDS = ["compile", "serve", "generate", "export", "build", "verify"]
STAGE_FIELDS = {"name", "seconds", "peak_rss_bytes", "output_bytes", "note"}


def document(result: subprocess.CompletedProcess[str], code: int = 0) -> Any:
    """Stdout is one JSON document, nothing before it and nothing after."""
    assert result.returncode == code, result.stderr
    assert result.stdout.startswith("{\n") and result.stdout.endswith("\n}\n")
    return json.loads(result.stdout)


@pytest.mark.parametrize("command", COMMANDS)
def test_help(trtbuild: Command, command: str) -> None:
    result = trtbuild(command, "--help", COLUMNS="100")
    assert result.returncode == 0 and result.stderr == ""
    assert f"Usage: trtbuild {command} [OPTIONS]" in result.stdout
    assert f"trtbuild {command} " in result.stdout.split("Options")[0].split("[OPTIONS]")[1]  # an example


def test_help_lists_the_commands(trtbuild: Command) -> None:
    result = trtbuild("--help", COLUMNS="100")
    assert result.returncode == 0
    assert all(f"│ {command} " in result.stdout for command in COMMANDS)


def test_version(trtbuild: Command) -> None:
    assert trtbuild("--version").stdout == f"trtbuild {package.__version__}\n"


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-X", "importtime", TRTBUILD, "--help"], capture_output=True, text=True, check=True
    )
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in result.stderr.splitlines()}
    assert "trtbuild" in imported and "typer" in imported
    heavy = {
        "numpy", "onnx", "onnxruntime", "torch", "transformers", "tokenizers", "huggingface_hub", "gguf", "jinja2",
        "tensorrt", "tensorrt_rtx", "tritonclient", "grpc", "google", "yaml", "polygraphy",
    }  # fmt: skip
    assert imported & heavy == set()


@pytest.mark.parametrize("command", ["compile", "export", "build", "verify"])
def test_a_missing_argument(trtbuild: Command, command: str) -> None:
    result = trtbuild(command)
    assert result.returncode == 2 and result.stdout == ""
    assert "Missing" in result.stderr


def test_json(trtbuild: Command, tiny_checkpoint: Callable[..., Path]) -> None:
    """Of export, build and compile, one after the other on one model; verify's is in test_verify."""
    checkpoint = tiny_checkpoint(dtype="float16", num_hidden_layers=1)
    place = trtbuild.place
    exported = document(trtbuild("export", checkpoint, "--out", "graph", "--capacity", "64", "--json"))
    stages = exported.pop("stages")
    nodes = len(onnx.load(place / "graph" / "model.onnx", load_external_data=False).graph.node)
    assert exported == {
        "onnx": "graph/model.onnx", "precision": "fp16", "network_type": "F16", "nodes": nodes, "capacity": 64,
        "page_size": None,
    }  # fmt: skip
    assert [stage["name"] for stage in stages] == ["checkpoint", "graph"]
    assert all(set(stage) == STAGE_FIELDS for stage in stages)

    arguments = ["--capacity", "64", "--backend", "rtx", "--target", "sm_89", "--json"]
    built = document(trtbuild("build", "graph", "--out", "my.plan", *arguments))
    assert (built["file"], built["flavour"], built["targets"]) == ("my.plan", "tensorrt_rtx", ["sm_89"])
    assert built["bytes"] == (place / "my.plan").stat().st_size

    compiled = document(trtbuild("compile", checkpoint, "--out", "out", "--name", "tiny", *arguments))
    plan = place / compiled["engine"]["file"]
    assert plan == place / "out" / "model_repository" / "tiny" / "1" / "model.rtx.plan"
    assert compiled["engine"]["bytes"] == plan.stat().st_size
    assert compiled["engine"]["targets"] == ["sm_89"]
    assert compiled["missing_builder"] is None
    assert (compiled["model_name"], compiled["model_repository"]) == ("tiny", "out/model_repository")
    # layers x (key, value) x slots x heads x positions x head_dim x bytes
    assert compiled["kv_cache_bytes"] == 1 * 2 * 8 * 2 * 64 * 16 * 2
    names = ["checkpoint", "hash", "graph", "engine", "repository", "manifest"]
    assert [stage["name"] for stage in compiled["stages"]] == names
    assert "built before" in compiled["stages"][3]["note"]  # by `build`, of the same graph


def test_json_of_a_missing_builder(
    trtbuild: Command, tiny_checkpoint: Callable[..., Path], no_builder: dict[str, str]
) -> None:
    checkpoint = tiny_checkpoint(num_hidden_layers=1)
    arguments = ["--out", "out", "--capacity", "64", "--json"]
    found = document(trtbuild("compile", checkpoint, *arguments, **no_builder))
    assert found["engine"] is None and "trtbuild[rtx]" in found["missing_builder"]
    found = document(trtbuild("compile", checkpoint, *arguments, "--force", "--backend", "rtx", **no_builder), code=1)
    assert found["engine"] is None


def test_an_error_is_on_stderr_with_json_too(trtbuild: Command) -> None:
    result = trtbuild("compile", "./missing", "--out", "out", "--json")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ") and len(result.stderr.splitlines()) == 1


def test_debug_shows_the_traceback(trtbuild: Command) -> None:
    result = trtbuild("--debug", "compile", "./missing", "--out", "out")
    assert result.returncode == 1 and "Traceback" in result.stderr and "InputError" in result.stderr
