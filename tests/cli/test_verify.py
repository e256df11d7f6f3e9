"""`verify` tells a right output from a wrong one, and one backend of a repository from another that disagrees."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.graph.harness import read_binding, with_rope
from trtbuild.dtypes import DType
from trtbuild.engine.gpu import devices
from trtbuild.graph.decoder import GraphOptions, author_decoder
from trtbuild.graph.save import save_graph
from trtbuild.serving.config import ServingConfig
from trtbuild.verify.backends import compare_backends


@pytest.fixture
def checkpoint(tiny_checkpoint: Callable[..., Path]) -> Path:
    return tiny_checkpoint(vocab_size=49152, num_hidden_layers=1)  # the tokenizer's vocabulary


@pytest.fixture
def compiled(trtbuild: Command, checkpoint: Path) -> Path:
    arguments = ["--backend", "onnx", "--capacity", "64", "--name", "tiny"]
    result = trtbuild("compile", checkpoint, "--out", "out", *arguments)
    assert result.returncode == 0, result.stderr
    return trtbuild.place / "out"


def swap_for_another_theta(checkpoint: Path, file: Path) -> None:
    """The same model with RoPE's base ten times what it is: the shapes stay, the answers do not."""
    binding = read_binding(checkpoint)
    wrong = replace(binding, spec=with_rope(binding.spec, theta=1e5))
    metadata = {"trtbuild.precision": "fp32", "trtbuild.network_type": "F32"}
    save_graph(author_decoder(wrong, GraphOptions(DType.F32, 64), metadata=metadata), file)


@pytest.mark.slow
def test_a_right_output_passes(trtbuild: Command, compiled: Path) -> None:
    result = trtbuild("verify", "out", "--tokens", "8")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("8 of 8\n") == 10
    assert "fp32 against transformers in FP32" in result.stdout


@pytest.mark.slow
def test_a_wrong_graph_fails(trtbuild: Command, compiled: Path, checkpoint: Path) -> None:
    swap_for_another_theta(checkpoint, compiled / "onnx" / "model.onnx")
    result = trtbuild("verify", "out", "--tokens", "8", "--json")
    assert result.returncode == 1
    found = json.loads(result.stdout)
    assert found["passed"] is False and found["distance"]["kl_mean"] > 1e-3
    assert result.stderr == f"error: The mean KL divergence {found['distance']['kl_mean']:.3g} is above 1e-06.\n"


def test_another_checkpoint_is_refused(trtbuild: Command, compiled: Path, tiny_checkpoint: Callable[..., Path]) -> None:
    other = tiny_checkpoint(vocab_size=49152, num_hidden_layers=2)
    result = trtbuild("verify", "out", "--reference", other)
    assert result.returncode == 2 and "made from another checkpoint" in result.stderr


@pytest.mark.slow
def test_an_engine_that_cannot_run_here_is_said_to_have_not(trtbuild: Command, checkpoint: Path) -> None:
    """One JSON document on stdout, polygraphy's log or not."""
    arguments = ["--backend", "rtx", "--capacity", "64", "--precision", "fp16"]
    assert trtbuild("compile", checkpoint, "--out", "out", *arguments).returncode == 0
    result = trtbuild("verify", "out", "--tokens", "4", "--json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["passed"], found["precision"], found["max_kl"], len(found["prompts"])) == (True, "fp16", 1e-3, 10)
    if not devices():
        assert found["engine"]["ran"] is False and "this machine has no GPU" in found["engine"]["text"]


@pytest.mark.slow
def test_an_export_needs_its_reference_named(trtbuild: Command, checkpoint: Path) -> None:
    trtbuild("export", checkpoint, "--out", "graph", "--capacity", "64")
    result = trtbuild("verify", "graph")
    assert result.returncode == 2 and "--reference" in result.stderr
    assert trtbuild("verify", "graph", "--reference", checkpoint, "--tokens", "4").returncode == 0


def test_a_folder_of_something_else(trtbuild: Command, checkpoint: Path) -> None:
    result = trtbuild("verify", checkpoint)
    assert result.returncode == 2 and "holds neither onnx/model.onnx nor model.onnx" in result.stderr


def test_backends_of_one_repository_are_compared(
    compiled: Path, checkpoint: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    version = compiled / "model_repository" / "tiny" / "1"
    config = ServingConfig.load(version / "serving.json")
    (right,) = config.backends
    swap_for_another_theta(checkpoint, version / "wrong.onnx")
    (version / "copy.onnx").write_bytes((version / right.file).read_bytes())
    same = compare_backends(config, version, replace(right, file="copy.onnx"), right)
    assert same.ran and same.passed
    assert "copy.onnx against model.onnx: the largest difference of a logit is 0 " in same.text
    other = compare_backends(config, version, replace(right, file="wrong.onnx"), right)
    assert other.ran and not other.passed
    assert capfd.readouterr().out == ""  # stdout is for results


def test_backends_are_compared_on_no_more_tokens_than_they_take(trtbuild: Command, checkpoint: Path) -> None:
    arguments = ["--backend", "onnx", "--capacity", "16", "--name", "tiny"]
    assert trtbuild("compile", checkpoint, "--out", "out", *arguments).returncode == 0
    version = trtbuild.place / "out" / "model_repository" / "tiny" / "1"
    config = ServingConfig.load(version / "serving.json")
    (right,) = config.backends
    (version / "copy.onnx").write_bytes((version / right.file).read_bytes())
    result = compare_backends(config, version, replace(right, file="copy.onnx"), right)
    assert result.passed and "over 8 tokens of prefill and 8 of decode" in result.text
