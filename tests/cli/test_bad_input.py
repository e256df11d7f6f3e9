"""Wrong input: exit code 2, a message that names the culprit, and nothing left behind."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Command

Checkpoints = Callable[..., Path]

# Arguments, and what the message must name.
OPTIONS = {
    "target": (["--target", "sm_13"], r"sm_13"),
    "target-without-engine": (["--backend", "onnx", "--target", "sm_89"], r"--target"),
    "profiles": (["--profiles", "chatt"], r"'chatt'.*chat"),
    "profile-file": (["--profiles", "missing.yaml"], r"missing\.yaml"),
    "capacity": (["--capacity", "257"], r"257 positions.*256.*max_position_embeddings.*--capacity 256"),
    "no-capacity": (["--capacity", "0"], r"at least one slot and one position.*x 0"),
    "no-slots": (["--slots", "0"], r"at least one slot and one position.*0 x"),
    "block-size": (["--block-size", "64"], r"--block-size.*int4"),
    "block-size-of-no-kind": (["--precision", "int4", "--block-size", "48"], r"48"),
    "activations": (["--activations", "fp16"], r"--activations.*int4"),
    "int4-layers": (["--precision", "int4", "--int4-layers", "attention,mlpp"], r"--int4-layers: 'mlpp'"),
    "no-int4-layers": (["--precision", "int4", "--int4-layers", ","], r"--int4-layers names no group"),
    "name": (["--name", "../x"], r"'\.\./x' cannot be a model's name"),
    "slo": (["--slo", "ttft=1"], r"'1' is no length of time"),
    "slo-of-no-priority": (["--slo", "4:ttft=1s"], r"no priority 4; this model knows 1 to 3"),
    "slo-end-to-end": (["--slo", "e2e=5s"], r"e2e depends on how long an answer is"),
    "optimization-level": (["--optimization-level", "6"], r"0 to 5, not 6"),
    "workspace": (["--workspace-mib", "0"], r"workspace.*not 0"),
    "rtx-version-compatible": (["--version-compatible"], r"version-compatible"),
    "precision": (["--precision", "fp8"], r"fp8"),
    "backend": (["--backend", "tensorflow"], r"tensorflow"),
}


def refused(command: Command, *arguments: str | Path, names: str, code: int = 2) -> str:
    before = command.left()
    result = command("compile", *arguments, "--out", "out")
    assert result.returncode == code, result.stderr
    assert result.stdout == ""
    assert re.search(names, result.stderr, re.DOTALL), result.stderr
    assert "Traceback" not in result.stderr and "Internal error" not in result.stderr
    assert command.left() == before
    return result.stderr


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_is_refused(trtbuild: Command, tiny: Path, option: str) -> None:
    arguments, names = OPTIONS[option]
    backend = [] if "--backend" in arguments else ["--backend", "rtx"]
    capacity = [] if {"--capacity", "--profiles"} & {*arguments} else ["--capacity", "64"]
    refused(trtbuild, tiny, *backend, *capacity, *arguments, names=names)


@pytest.fixture
def tiny(tiny_checkpoint: Checkpoints) -> Path:
    return tiny_checkpoint(dtype="float16", num_hidden_layers=1)


def test_an_output_folder_is_kept_or_replaced(trtbuild: Command, tiny: Path) -> None:
    out = trtbuild.place / "out"
    out.mkdir()
    (out / "mine").write_text("precious")
    refused(trtbuild, tiny, "--backend", "onnx", "--capacity", "64", names="out exists and is not empty.*--force")
    assert (out / "mine").read_text() == "precious"
    result = trtbuild("compile", tiny, "--out", "out", "--backend", "onnx", "--capacity", "64", "--force")
    assert result.returncode == 0, result.stderr
    assert not (out / "mine").exists() and (out / "build.json").exists()
    assert trtbuild.left() == {"out"}


def test_a_failure_keeps_what_force_would_replace(trtbuild: Command, tiny: Path) -> None:
    (trtbuild.place / "out").mkdir()
    (trtbuild.place / "out" / "mine").write_text("precious")
    refused(trtbuild, tiny, "--force", "--backend", "onnx", "--capacity", "999", names="999")
    assert (trtbuild.place / "out" / "mine").read_text() == "precious"


def test_out_is_a_file(trtbuild: Command, tiny: Path) -> None:
    (trtbuild.place / "out").write_text("mine")
    refused(trtbuild, tiny, "--force", "--backend", "onnx", "--capacity", "64", names="out is a file; --out names a")
    assert (trtbuild.place / "out").read_text() == "mine"


@pytest.mark.parametrize("command", ["compile", "export"])
@pytest.mark.parametrize("out", [".", ".."], ids=["itself", "its-parent"])
def test_out_holds_the_checkpoint(trtbuild: Command, tiny: Path, command: str, out: str) -> None:
    """--force replaces a folder; it must not be the one with the weights."""
    before = sorted(tiny.iterdir())
    result = trtbuild(command, tiny, "--out", tiny / out, "--force", "--capacity", "64")
    assert result.returncode == 2 and "holds the checkpoint itself (model.safetensors)" in result.stderr
    assert sorted(tiny.iterdir()) == before


def test_out_is_a_folder_where_build_wants_a_file(trtbuild: Command, tiny: Path) -> None:
    trtbuild("export", tiny, "--out", "graph", "--capacity", "64")
    (trtbuild.place / "out").mkdir()
    result = trtbuild("build", "graph", "--out", "out", "--backend", "rtx", "--capacity", "64", "--force")
    assert (result.returncode, trtbuild.left()) == (2, {"graph", "out"})
    assert "out is a folder" in result.stderr


def test_the_plugin_form_where_it_cannot_be(trtbuild: Command, tiny_checkpoint: Callable[..., Path]) -> None:
    """TensorRT-RTX has no plugins."""
    checkpoint = tiny_checkpoint(head_dim=64, dtype="float16")
    assert trtbuild("export", checkpoint, "--out", "graph", "--attention", "plugin").returncode == 0
    built = trtbuild("build", "graph", "--out", "plan", "--backend", "rtx", "--capacity", "64")
    assert built.returncode == 2 and "needs a plugin, and TensorRT-RTX has none" in " ".join(built.stderr.split())
    library = "graph/model.onnx"
    built = trtbuild("build", "graph", "--out", "plan", "--backend", "rtx", "--plugin-library", library)
    assert built.returncode == 2 and "TensorRT-RTX has no plugins" in " ".join(built.stderr.split())
    built = trtbuild("build", "graph", "--out", "plan", "--plugin-library", "absent.so")
    assert built.returncode == 2 and "absent.so" in built.stderr
    assert trtbuild.left() == {"graph"}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (
            "cache: {slots: 2, capacity: 64}\nprofiles:\n  decode: {batch: 1, tokens: 1, cach: [1, 8, 64]}\n",
            r"\.yaml:3:.*'cach'",
        ),
        (
            "cache: {slots: 2, capacity: 64}\nprofiles:\n"
            "  decode: {batch: [1, 1, 2], tokens: 1, cache: [1, 8, 64]}\n"
            "  prefill: {batch: 1, tokens: [4, 8, 16], cache: [4, 8, 64]}\n",
            r"leave a gap.*prefill",
        ),
    ],
    ids=["typo", "gap"],
)
def test_a_profile_file(trtbuild: Command, tiny: Path, text: str, names: str) -> None:
    (trtbuild.place / "my.yaml").write_text(text)
    refused(trtbuild, tiny, "--backend", "onnx", "--profiles", "my.yaml", names=rf"my.*{names}")


def test_a_truncated_checkpoint(trtbuild: Command, tiny: Path) -> None:
    weights = tiny / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    refused(trtbuild, tiny, "--backend", "onnx", names=r"model\.safetensors is truncated.*100 too few")


def test_only_pickles(trtbuild: Command, tiny: Path) -> None:
    (tiny / "model.safetensors").rename(tiny / "pytorch_model.bin")
    refused(trtbuild, tiny, "--backend", "onnx", names=r"only as pytorch_model\.bin.*pickle")


def test_an_unknown_family(trtbuild: Command, tiny: Path) -> None:
    config = json.loads((tiny / "config.json").read_text())
    (tiny / "config.json").write_text(json.dumps({**config, "model_type": "lama"}))
    refused(trtbuild, tiny, "--backend", "onnx", names=r"'lama'")


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
def test_no_tokenizer(trtbuild: Command, tiny: Path, file: str) -> None:
    """Refused before the engine is built, not by the check of the finished repository."""
    (tiny / file).unlink()
    message = refused(trtbuild, tiny, "--backend", "rtx", "--capacity", "64", names=rf"no {file}")
    assert "graph …" not in message


def test_no_model(trtbuild: Command) -> None:
    refused(trtbuild, "./missing", "--backend", "onnx", names=r"missing does not exist")


def test_nan_is_found_while_quantising(trtbuild: Command, tiny: Path) -> None:
    """The one fault of the input that only reading the weights shows."""
    import numpy as np
    from safetensors.numpy import load_file, save_file

    weights = load_file(tiny / "model.safetensors")
    weights["model.layers.0.mlp.up_proj.weight"][3, 5] = np.nan
    save_file(weights, tiny / "model.safetensors")
    arguments = ["--precision", "int4", "--backend", "onnx", "--capacity", "64"]
    refused(trtbuild, tiny, *arguments, names=r"layers\.0\.mlp\.up_proj\.weight: row 3")
