"""A machine where neither TensorRT is installed still gets everything but the engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import Command


def compile_without_builder(
    command: Command, tiny_checkpoint: Callable[..., Path], no_builder: dict[str, str], backend: str
) -> tuple[int, str]:
    checkpoint = tiny_checkpoint(num_hidden_layers=1)
    arguments = ["--name", "tiny", "--backend", backend, "--capacity", "64"]
    result = command("compile", checkpoint, "--out", "out", *arguments, **no_builder)
    version = command.place / "out" / "model_repository" / "tiny" / "1"
    assert (version / "model.onnx").exists() and not list(version.glob("*.plan"))
    assert command.left() == {"out"}
    return result.returncode, result.stderr


def test_auto_makes_onnx_and_says_what_to_install(
    trtbuild: Command, tiny_checkpoint: Callable[..., Path], no_builder: dict[str, str]
) -> None:
    code, said = compile_without_builder(trtbuild, tiny_checkpoint, no_builder, "auto")
    assert code == 0
    assert "There is no engine, only ONNX." in said and "pip install 'trtbuild[rtx]'" in said


def test_a_builder_asked_for_by_name_fails(
    trtbuild: Command, tiny_checkpoint: Callable[..., Path], no_builder: dict[str, str]
) -> None:
    code, said = compile_without_builder(trtbuild, tiny_checkpoint, no_builder, "rtx")
    assert code == 1
    assert "pip install 'trtbuild[rtx]'" in said


def test_build_has_nothing_to_make(
    trtbuild: Command, tiny_checkpoint: Callable[..., Path], no_builder: dict[str, str]
) -> None:
    trtbuild("export", tiny_checkpoint(num_hidden_layers=1), "--out", "graph", "--capacity", "64")
    result = trtbuild("build", "graph", "--out", "x.plan", "--capacity", "64", **no_builder)
    assert result.returncode == 1
    assert "pip install 'trtbuild[rtx]'" in result.stderr
    assert trtbuild.left() == {"graph"}
