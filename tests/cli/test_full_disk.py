"""A full disk: exit code 1, the disk's name, nothing left on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Command


def fails_on(command: Command, small_disk: Path, model: Path, stage: str, *arguments: str) -> str:
    result = command("compile", model, "--out", small_disk / "out", "--capacity", "64", *arguments)
    assert result.returncode == 1, result.stderr
    *stages, message = result.stderr.splitlines()
    assert stages[-1] == f"{stage} …"
    assert not list(small_disk.iterdir())
    assert not {name for name in command.left() if "tmp" in name}
    return message


@pytest.fixture
def large(tiny_checkpoint: Callable[..., Path]) -> Path:
    """3 MB of FP16."""
    return tiny_checkpoint(dtype="float16", vocab_size=4096, hidden_size=128)


def test_while_quantising(trtbuild: Command, small_disk: Path, large: Path) -> None:
    message = fails_on(trtbuild, small_disk, large, "int4", "--precision", "int4", "--backend", "onnx")
    assert message.startswith(f"error: The disk that holds {small_disk} is full (model.int4.safetensors")


def test_while_copying_the_weights(trtbuild: Command, small_disk: Path, large: Path) -> None:
    """From another file system the weights cannot be links."""
    message = fails_on(trtbuild, small_disk, large, "graph", "--backend", "onnx")
    assert message.startswith(f"error: The disk that holds {small_disk} is full")


def test_while_placing_the_engine(trtbuild: Command, small_disk: Path, tiny_checkpoint: Callable[..., Path]) -> None:
    """The engine is built into the cache, which has room, and copied."""
    model = tiny_checkpoint(dtype="float16", num_hidden_layers=1)
    message = fails_on(trtbuild, small_disk, model, "engine", "--backend", "rtx", "--no-cpu-fallback")
    assert message.startswith(f"error: The disk that holds {small_disk} is full")


def test_while_building_into_the_cache(
    trtbuild: Command, small_disk: Path, tiny_checkpoint: Callable[..., Path]
) -> None:
    model = tiny_checkpoint(dtype="float16", num_hidden_layers=1)
    arguments = ["--backend", "rtx", "--capacity", "64"]
    result = trtbuild("compile", model, "--out", "out", *arguments, TRTBUILD_CACHE=str(small_disk / "cache"))
    assert result.returncode == 1
    message = result.stderr.splitlines()[-1]
    assert message.startswith(f"error: The disk that holds {small_disk}/cache/engine is full (plan)")
    assert "--cache" in message
    assert not [path for path in small_disk.rglob("*") if path.is_file() or "tmp" in path.name]
    assert trtbuild.left() == set()


def test_while_writing_the_repository(
    trtbuild: Command, small_disk: Path, tiny_checkpoint: Callable[..., Path]
) -> None:
    """The tokenizer's files, 2 MB, are copies."""
    model = tiny_checkpoint(num_hidden_layers=1)
    message = fails_on(trtbuild, small_disk, model, "repository", "--backend", "onnx")
    assert message.startswith(f"error: The disk that holds {small_disk} is full")
