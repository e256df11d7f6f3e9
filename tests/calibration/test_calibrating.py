"""`calibrate`: a checkpoint like any other comes out, the same for the same inputs, and a stopped job goes on."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.calibration.conftest import options
from tests.conftest import ROOT
from tests.graph.harness import Decoder
from trtbuild.calibrating import calibrate
from trtbuild.calibration import layerwise
from trtbuild.calibration.evaluation import evaluate, windows
from trtbuild.dtypes import DType
from trtbuild.errors import BuildError, InputError
from trtbuild.exporting import export, read_weights
from trtbuild.graph.facts import read_facts
from trtbuild.options import Device, ExportOptions, Method, Precision
from trtbuild.progress import Silent
from trtbuild.quantize.stored import Int4Layers

Checkpoints = Callable[..., Path]
TOKENS = np.random.default_rng(0).integers(3, 40_000, (2, 64))


def digests(folder: Path) -> dict[str, str]:
    """Of every file but the one that says how long it took."""
    files = (file for file in sorted(folder.iterdir()) if file.name != "timings.json")
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def unfinished(place: Path) -> list[Path]:
    return list(place.glob(".*.unfinished"))


def test_the_result_is_a_checkpoint_that_exports(checkpoint: Path, tmp_path: Path) -> None:
    result = calibrate(checkpoint, tmp_path / "int4", options(tmp_path, activations=DType.F16))
    assert result.bits_per_weight == 4.5
    assert len(result.matrices) == 3 * 7
    assert not unfinished(tmp_path)

    with safe_open(tmp_path / "int4" / "model.safetensors", "pt") as file:
        names = set(file.keys())
        assert file.get_tensor("model.layers.0.input_layernorm.weight").dtype.is_floating_point
    assert "model.layers.2.mlp.down_proj.weight.int4" in names and "model.layers.2.mlp.down_proj.weight" not in names

    exported = export(tmp_path / "int4", tmp_path / "onnx", ExportOptions(cache=tmp_path / "cache"), capacity=64)
    facts = read_facts(exported.onnx_file)
    assert exported.precision is Precision.INT4 and facts.dtype is DType.F16
    assert facts.metadata["trtbuild.int4"] == "awq+gptq, symmetric, blocks of 32"
    assert np.isfinite(Decoder(exported.onnx_file).step(TOKENS[:1], [0])).all()


def test_the_exported_graph_is_what_evaluate_measures(checkpoint: Path, tmp_path: Path) -> None:
    """Perplexity layer by layer, with the weights dequantised, and of the graph's own logits: the same number."""
    calibrate(checkpoint, tmp_path / "int4", options(tmp_path, activations=DType.F32))
    own = ExportOptions(cache=tmp_path / "cache")
    exported = export(tmp_path / "int4", tmp_path / "onnx", own, capacity=64)
    logits = Decoder(exported.onnx_file, slots=2).step(TOKENS, [0, 0]).astype(np.float64)
    predicted = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    loss = -np.take_along_axis(predicted[:, :-1], TOKENS[:, 1:, None], axis=-1).mean()
    weights = [read_weights(place, own, Silent()) for place in (tmp_path / "int4", checkpoint)]
    result = evaluate(*weights, TOKENS)
    assert result.perplexity == pytest.approx(np.exp(loss), rel=1e-4)
    assert result.tokens == 2 * 63
    assert result.kl_mean > 0 and 0 < result.same_top1 <= 1


def test_a_model_is_itself(checkpoint: Path, tmp_path: Path) -> None:
    weights = read_weights(checkpoint, ExportOptions(cache=tmp_path / "cache"), Silent())
    result = evaluate(weights, weights, TOKENS)
    assert (result.ratio, result.kl_mean, result.same_top1) == (1.0, 0.0, 1.0)


def test_calibrated_is_nearer_than_rounded(checkpoint: Path, tmp_path: Path) -> None:
    own = ExportOptions(cache=tmp_path / "cache")
    reference = read_weights(checkpoint, own, Silent())
    divergences = []
    for method in (Method.RTN, Method.GPTQ):
        calibrate(checkpoint, tmp_path / method.value, options(tmp_path, method))
        tokens = windows(ROOT / "README.md", reference.checkpoint, 4, 128)
        result = evaluate(read_weights(tmp_path / method.value, own, Silent()), reference, tokens)
        divergences.append(result.kl_mean)
    assert divergences[1] < 0.8 * divergences[0]


def test_the_same_inputs_give_the_same_bytes(checkpoint: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        calibrate(checkpoint, tmp_path / name, options(tmp_path))
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


def test_a_failed_job_goes_on_at_its_layer(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calibrate(checkpoint, tmp_path / "whole", options(tmp_path))
    real, seen = layerwise._layer, []

    def layer(work: layerwise.Work, index: int, *rest: object) -> object:
        seen.append(index)
        if index == 1 and seen.count(1) == 1:
            raise BuildError("the power went")
        return real(work, index, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(layerwise, "_layer", layer)
    with pytest.raises(BuildError):
        calibrate(checkpoint, tmp_path / "out", options(tmp_path))
    assert not (tmp_path / "out").exists() and len(unfinished(tmp_path)) == 1
    calibrate(checkpoint, tmp_path / "out", options(tmp_path))
    assert seen == [0, 1, 1, 2]
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")
    assert not unfinished(tmp_path)


def test_a_job_of_another_kind_begins_anew(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, seen = layerwise._layer, []

    def layer(work: layerwise.Work, index: int, *rest: object) -> object:
        seen.append(index)
        if seen == [0, 1]:
            raise BuildError("the power went")
        return real(work, index, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(layerwise, "_layer", layer)
    with pytest.raises(BuildError):
        calibrate(checkpoint, tmp_path / "out", options(tmp_path))
    calibrate(checkpoint, tmp_path / "out", options(tmp_path, Method.GPTQ))
    assert seen == [0, 1, 0, 1, 2]


@pytest.mark.slow
def test_killed_and_started_again(tiny_checkpoint: Checkpoints, tmp_path: Path) -> None:
    """kill -9 in the middle, through the command; the second run ends with the bytes of an unbroken one."""
    checkpoint = tiny_checkpoint(vocab_size=49152, hidden_size=256, intermediate_size=512, num_hidden_layers=8)
    command = [
        Path(sys.executable).parent / "trtbuild",
        "calibrate",
        checkpoint,
        "--json",
        "--cache",
        "cache",
        "--length=128",
    ]
    subprocess.run([*command, "--out", "whole"], check=True, cwd=tmp_path, stdout=subprocess.DEVNULL)
    process = subprocess.Popen([*command, "--out", "out"], cwd=tmp_path, stdout=subprocess.DEVNULL)
    journal = tmp_path / ".out.unfinished" / "attempt" / layerwise.JOURNAL
    while not (journal.exists() and journal.read_text().count("\n") >= 3):
        assert process.poll() is None, "it finished before it could be killed"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "out").exists()
    subprocess.run([*command, "--out", "out"], check=True, cwd=tmp_path, stdout=subprocess.DEVNULL)
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")


def test_a_gpu_that_is_not_there(checkpoint: Path, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(InputError, match="--device cuda: this torch sees no GPU"):
        calibrate(checkpoint, tmp_path / "out", replace(options(tmp_path), device=Device.CUDA))


@pytest.mark.gpu
def test_a_gpu_fits_as_well_as_the_cpu(checkpoint: Path, tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU and a CUDA build of torch")
    made = [calibrate(checkpoint, tmp_path / each.value, replace(options(tmp_path), device=each)) for each in Device]
    for own, other in zip(*(result.matrices for result in made), strict=True):
        assert abs(own.sqnr - other.sqnr) < 0.3


def test_the_embedding_alone_is_nothing_to_calibrate(tiny_checkpoint: Checkpoints, tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint(vocab_size=49152, tie_word_embeddings=False)
    with pytest.raises(InputError, match="embedding alone leaves nothing to calibrate"):
        calibrate(checkpoint, tmp_path / "int4", options(tmp_path, int4_layers=frozenset({Int4Layers.EMBEDDING})))
    assert not (tmp_path / "int4").exists()


def test_a_tied_head_gets_a_copy_of_its_own(tiny_checkpoint: Checkpoints, tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint(vocab_size=49152, tie_word_embeddings=True)
    groups = frozenset(Int4Layers) - {Int4Layers.EMBEDDING}
    result = calibrate(checkpoint, tmp_path / "int4", options(tmp_path, int4_layers=groups))
    assert [report.role for report in result.matrices if report.layer is None] == ["head"]
    names = set(load_file(tmp_path / "int4" / "model.safetensors"))
    assert {"model.embed_tokens.weight", "model.embed_tokens.weight.int4"} <= names
    weights = read_weights(tmp_path / "int4", ExportOptions(cache=tmp_path / "cache"), Silent())
    assert "model.embed_tokens.weight" in weights.quantised


def test_not_a_number_in_a_weight_is_named(checkpoint: Path, tmp_path: Path) -> None:
    tensors = load_file(checkpoint / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][5, 7] = float("nan")
    save_file(tensors, checkpoint / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=r"model\.layers\.1\.mlp\.up_proj\.weight has NaN or infinity at \[5, 7\]"):
        calibrate(checkpoint, tmp_path / "out", options(tmp_path))
    assert not (tmp_path / "out").exists()


def test_activations_that_overflow_are_named(checkpoint: Path, tmp_path: Path) -> None:
    tensors = load_file(checkpoint / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][5] = 3e38
    save_file(tensors, checkpoint / "model.safetensors", {"format": "pt"})
    with pytest.raises(BuildError, match="layer 1: channel 5 of .* is not finite on the calibration text"):
        calibrate(checkpoint, tmp_path / "out", options(tmp_path))


def test_a_calibrated_checkpoint_is_not_calibrated_again(checkpoint: Path, tmp_path: Path) -> None:
    calibrate(checkpoint, tmp_path / "int4", options(tmp_path, Method.RTN))
    with pytest.raises(InputError, match="calibrated already, from .*Give that one"):
        calibrate(tmp_path / "int4", tmp_path / "again", options(tmp_path))
    with pytest.raises(InputError, match="calibrated INT4 already"):
        export(tmp_path / "int4", tmp_path / "onnx", ExportOptions(Precision.FP16, cache=tmp_path / "cache"))


def test_matrices_of_another_shape_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    calibrate(checkpoint, tmp_path / "int4", options(tmp_path, Method.RTN))
    config = json.loads((tmp_path / "int4" / "config.json").read_text())
    config["quantization_config"]["matrices"]["model.layers.0.mlp.up_proj.weight"]["block"] = 64
    (tmp_path / "int4" / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"up_proj\.weight.* are not one matrix in blocks of 64"):
        read_weights(tmp_path / "int4", ExportOptions(cache=tmp_path / "cache"), Silent())
    config["quantization_config"]["format"] = 99
    (tmp_path / "int4" / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="format 99"):
        read_weights(tmp_path / "int4", ExportOptions(cache=tmp_path / "cache"), Silent())


def test_a_full_disk_leaves_nothing(checkpoint: Path, small_disk: Path, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="is full"):
        calibrate(checkpoint, small_disk / "out", options(tmp_path))
    assert not (small_disk / "out").exists()


def test_models_of_two_architectures_are_not_compared(
    checkpoint: Path, tiny_checkpoint: Checkpoints, tmp_path: Path
) -> None:
    own = ExportOptions(cache=tmp_path / "cache")
    other = read_weights(tiny_checkpoint(vocab_size=49152, num_hidden_layers=1), own, Silent())
    with pytest.raises(InputError, match="not of one architecture"):
        evaluate(read_weights(checkpoint, own, Silent()), other, TOKENS)
