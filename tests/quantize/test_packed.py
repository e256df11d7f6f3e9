"""Checkpoints that come in INT4, packed here from the formats' descriptions, against their meaning in FP32."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from tests.calibration.conftest import options
from tests.conftest import ROOT
from tests.families.test_int4 import read
from tests.graph.harness import Decoder
from trtbuild.calibrating import calibrate
from trtbuild.calibration.weights import dequantise
from trtbuild.checkpoint import open_checkpoint
from trtbuild.dtypes import DType
from trtbuild.errors import InputError
from trtbuild.evaluating import EvaluationOptions, evaluate_model
from trtbuild.exporting import export, quantise, read_weights
from trtbuild.options import ExportOptions, Method
from trtbuild.progress import Silent
from trtbuild.quantize.stored import Int4Layers
from trtbuild.stages import Stages
from trtbuild.verify.reference import Reference

Checkpoints = Callable[..., Path]
TOKENS = np.random.default_rng(0).integers(3, 500, (1, 24))


@dataclass(frozen=True)
class Linear:
    """W[o, i] = (q[o, i] - z[o, g]) * s[o, g], q and z in 0..15, g = groups[i]."""

    q: NDArray[np.int64]
    z: NDArray[np.int64]
    s: NDArray[np.float16]
    groups: NDArray[np.int64]

    @property
    def weight(self) -> NDArray[np.float32]:
        return ((self.q - self.z[:, self.groups]) * self.s.astype(np.float32)[:, self.groups]).astype(np.float32)


def quantised(weight: NDArray[np.float32], group: int, *, symmetric: bool, shuffled: bool, seed: int) -> Linear:
    rows, width = weight.shape
    rng = np.random.default_rng(seed)
    groups = np.arange(width) // group
    if shuffled:
        groups = rng.permutation(groups)
    count = width // group
    z = np.full((rows, count), 8) if symmetric else rng.integers(0, 16, (rows, count))
    s = np.empty((rows, count), np.float16)
    q = np.empty(weight.shape, np.int64)
    for g in range(count):
        own = weight[:, groups == g]
        s[:, g] = np.abs(own).max(axis=1) / 7
        q[:, groups == g] = np.clip(np.rint(own / s[:, g : g + 1].astype(np.float32)) + z[:, g : g + 1], 0, 15)
    return Linear(q, z, s, groups)


def word(eight: NDArray[np.int64]) -> int:
    """Eight numbers as the hexadecimal digits of a word, the first one lowest, read as a signed integer."""
    value = int("".join(f"{int(number):x}" for number in reversed(eight)), 16)
    return value - (1 << 32) if value >= 1 << 31 else value


def pack(matrix: NDArray[np.int64], axis: int) -> torch.Tensor:
    if axis == 0:
        return pack(matrix.T, 1).T.contiguous()
    rows, columns = matrix.shape
    words = [[word(matrix[r, c : c + 8]) for c in range(0, columns, 8)] for r in range(rows)]
    return torch.tensor(words, dtype=torch.int32)


def awq(linear: Linear) -> dict[str, torch.Tensor]:
    """Outputs 0 2 4 6 1 3 5 7 of each eight stand in nibbles 0 to 7."""

    def shuffle(matrix: NDArray[np.int64]) -> NDArray[np.int64]:
        return matrix.reshape(len(matrix), -1, 8)[:, :, [0, 2, 4, 6, 1, 3, 5, 7]].reshape(len(matrix), -1)

    return {
        "qweight": pack(shuffle(linear.q.T), 1),
        "qzeros": pack(shuffle(linear.z.T), 1),
        "scales": torch.from_numpy(linear.s.T.copy()),
    }


def gptq(linear: Linear, version: int = 1) -> dict[str, torch.Tensor]:
    return {
        "qweight": pack(linear.q.T, 0),
        "qzeros": pack((linear.z.T - (2 - version)) % 16, 1),
        "scales": torch.from_numpy(linear.s.T.copy()),
        "g_idx": torch.from_numpy(linear.groups.astype(np.int32)),
    }


def gptq_v2(linear: Linear) -> dict[str, torch.Tensor]:
    return gptq(linear, 2)


def compressed(linear: Linear) -> dict[str, torch.Tensor]:
    tensors = {
        "weight_packed": pack(linear.q, 1),
        "weight_scale": torch.from_numpy(linear.s.copy()),
        "weight_shape": torch.tensor(linear.q.shape, dtype=torch.int64),
    }
    if (linear.z != 8).any():
        tensors["weight_zero_point"] = pack(linear.z, 0)
    if not np.array_equal(linear.groups, np.sort(linear.groups)):
        tensors["weight_g_idx"] = torch.from_numpy(linear.groups.astype(np.int32))
    return tensors


def awq_config(group: int, symmetric: bool, **other: Any) -> dict[str, Any]:
    own = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": not symmetric, "version": "gemm"}
    return {**own, **other}


def gptq_config(group: int, symmetric: bool, **other: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": 4, "group_size": group, "sym": symmetric, "desc_act": False, **other}


def gptq_v2_config(group: int, symmetric: bool) -> dict[str, Any]:
    return gptq_config(group, symmetric, checkpoint_format="gptq_v2")


def compressed_config(group: int, symmetric: bool, **other: Any) -> dict[str, Any]:
    weights = {"num_bits": 4, "type": "int", "symmetric": symmetric, "strategy": "group", "group_size": group, **other}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}},
        "ignore": ["lm_head"],
    }


FORMATS: Mapping[str, tuple[Any, Any]] = {
    "awq": (awq, awq_config),
    "gptq": (gptq, gptq_config),
    "gptq_v2": (gptq_v2, gptq_v2_config),
    "compressed": (compressed, compressed_config),
}


def make(
    plain: Path, form: str, *, group: int = 32, symmetric: bool = True, shuffled: bool = False, **config: Any
) -> tuple[Path, Path, dict[str, Linear]]:
    """A packed checkpoint, one that holds what it means in FP32, and its linears by the weight's name."""
    packer, describe = FORMATS[form]
    packed, meaning = plain.parent / f"{form}-packed", plain.parent / f"{form}-meaning"
    for folder in (packed, meaning):
        shutil.copytree(plain, folder)
    tensors = load_file(plain / "model.safetensors")
    linears, stored, plain_tensors = {}, {}, {}
    for index, (name, tensor) in enumerate(tensors.items()):
        stored[name] = plain_tensors[name] = tensor
        if not name.endswith("_proj.weight") or "layers.1.mlp.down" in name:  # one module is left alone
            continue
        own = quantised(tensor.float().numpy(), group, symmetric=symmetric, shuffled=shuffled, seed=index)
        linears[name] = own
        del stored[name]
        stored |= {f"{name.removesuffix('.weight')}.{key}": value for key, value in packer(own).items()}
        plain_tensors[name] = torch.from_numpy(own.weight)
    save_file(stored, packed / "model.safetensors", {"format": "pt"})
    save_file(plain_tensors, meaning / "model.safetensors", {"format": "pt"})
    found = json.loads((packed / "config.json").read_text())
    found["quantization_config"] = {**describe(group, symmetric), **config}
    (packed / "config.json").write_text(json.dumps(found))
    return packed, meaning, linears


def logits(folder: Path, **options: Any) -> NDArray[np.float32]:
    own = ExportOptions(cache=folder.parent / "cache", **options)
    result = export(folder, folder.parent / f"{folder.name}-onnx", own, capacity=64)
    return Decoder(result.onnx_file).step(TOKENS, [0])[0]


@pytest.mark.parametrize("shuffled", [False, True], ids=["in-order", "act-order"])
@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "zero-points"])
@pytest.mark.parametrize("form", FORMATS)
def test_the_graph_computes_what_the_checkpoint_means(
    tiny_checkpoint: Checkpoints, form: str, symmetric: bool, shuffled: bool
) -> None:
    if form == "awq" and shuffled:
        pytest.skip("AutoAWQ has no act-order")
    packed, meaning, _ = make(tiny_checkpoint(), form, symmetric=symmetric, shuffled=shuffled)
    want = Reference(open_checkpoint(meaning, cache=meaning.parent)).logits(TOKENS[0].tolist())
    np.testing.assert_allclose(logits(packed, activations=DType.F32), want, atol=1e-3)


@pytest.mark.parametrize("form", FORMATS)
def test_symmetric_weights_are_kept_bit_for_bit(tiny_checkpoint: Checkpoints, tmp_path: Path, form: str) -> None:
    packed, _, linears = make(tiny_checkpoint(), form)
    weights = read_weights(packed, ExportOptions(cache=tmp_path / "cache"), Silent())
    assert weights.dtype is DType.F16
    int4 = quantise(weights, ExportOptions(), tmp_path, Stages(Silent())).quantised
    assert set(int4) == set(linears)
    for name, linear in linears.items():
        values = read(int4[name].values, "u1")
        nibbles = np.stack([values & 15, values >> 4], axis=-1).reshape(len(values), -1)
        assert np.array_equal(nibbles.T, (linear.q - 8) % 16)
        assert np.array_equal(read(int4[name].scales, "<f2").T, linear.s)
        assert int4[name].offsets is None and int4[name].order is None


def test_large_groups_become_blocks_of_one_scale(tiny_checkpoint: Checkpoints, tmp_path: Path) -> None:
    plain = tiny_checkpoint(hidden_size=256, intermediate_size=512, head_dim=64)
    packed, meaning, _ = make(plain, "gptq", group=256)
    weights = read_weights(packed, ExportOptions(cache=tmp_path / "cache"), Silent())
    int4 = quantise(weights, ExportOptions(), tmp_path, Stages(Silent())).quantised
    assert {weight.grid.block for weight in int4.values()} == {128}
    want = Reference(open_checkpoint(meaning, cache=meaning.parent)).logits(TOKENS[0].tolist())
    np.testing.assert_allclose(logits(packed, activations=DType.F32), want, atol=1e-3)


@pytest.mark.parametrize("named", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("form", ["gptq", "gptq_v2"])
def test_a_symmetric_gptq_file_of_either_version_under_either_name(
    tiny_checkpoint: Checkpoints, form: str, named: str
) -> None:
    """Version 2's zeros under version 1's name would shift every weight by a step (vLLM 38966)."""
    packed, meaning, _ = make(tiny_checkpoint(), form, checkpoint_format=named)
    want = Reference(open_checkpoint(meaning, cache=meaning.parent)).logits(TOKENS[0].tolist())
    np.testing.assert_allclose(logits(packed, activations=DType.F32), want, atol=1e-3)


def test_experts(tiny_checkpoint: Checkpoints) -> None:
    """Each expert is a module of its own, and one matrix with the others in the graph."""
    plain = tiny_checkpoint("MixtralConfig", num_local_experts=4, num_experts_per_tok=2)
    tensors = load_file(plain / "model.safetensors")
    if not any("experts.0.w1" in name for name in tensors):
        pytest.skip("this release of transformers writes experts as one tensor")
    packer, describe = FORMATS["gptq"]
    stored, meaning = {}, {}
    for index, (name, tensor) in enumerate(tensors.items()):
        stored[name] = meaning[name] = tensor
        if ".experts." in name:
            own = quantised(tensor.float().numpy(), 32, symmetric=False, shuffled=False, seed=index)
            del stored[name]
            stored |= {f"{name.removesuffix('.weight')}.{key}": value for key, value in packer(own).items()}
            meaning[name] = torch.from_numpy(own.weight)
    packed = plain.parent / "packed"
    shutil.copytree(plain, packed)
    save_file(stored, packed / "model.safetensors", {"format": "pt"})
    save_file(meaning, plain / "model.safetensors", {"format": "pt"})
    config = json.loads((packed / "config.json").read_text())
    (packed / "config.json").write_text(json.dumps({**config, "quantization_config": describe(32, False)}))
    want = Reference(open_checkpoint(plain, cache=plain.parent)).logits(TOKENS[0].tolist())
    np.testing.assert_allclose(logits(packed, activations=DType.F32), want, atol=1e-3)


@pytest.mark.parametrize(
    ("form", "config", "message"),
    [
        ("awq", {"bits": 8}, "8 bits cannot be mapped to TensorRT's INT4"),
        ("gptq", {"bits": 3}, "3 bits cannot be mapped"),
        ("gptq", {"group_size": 16}, "groups of 16 are no multiple of 128, 64, 32"),
        ("gptq", {"group_size": 48}, "groups of 48"),
        ("gptq", {"checkpoint_format": "marlin"}, "GPTQ's marlin form is not known"),
        ("awq", {"version": "gemv"}, "AutoAWQ's gemv packing is not known"),
        ("compressed", {"format": "float-quantized"}, "the format 'float-quantized' is not known"),
        ("compressed", {"config_groups": {}}, "0 different schemes"),
        ("awq", {"quant_method": "bitsandbytes"}, r"already quantised \(bitsandbytes\)"),
        ("awq", {"quant_method": "gptq"}, r"already|says gptq|qweight|mapped|do not agree|g_idx|shape"),
    ],
)
def test_what_cannot_be_mapped_is_refused(
    tiny_checkpoint: Checkpoints, form: str, config: dict[str, Any], message: str
) -> None:
    packed, _, _ = make(tiny_checkpoint(), form, **config)
    with pytest.raises(InputError, match=message):
        logits(packed)


@pytest.mark.parametrize("missing", ["scales", "qzeros", "qweight"])
def test_a_missing_tensor_is_named(tiny_checkpoint: Checkpoints, missing: str) -> None:
    packed, _, _ = make(tiny_checkpoint(), "gptq")
    tensors = load_file(packed / "model.safetensors")
    del tensors[f"model.layers.0.mlp.up_proj.{missing}"]
    save_file(tensors, packed / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=r"model\.layers\.0\.mlp\.up_proj"):
        logits(packed)


def test_groups_of_unequal_size_are_refused(tiny_checkpoint: Checkpoints) -> None:
    packed, _, _ = make(tiny_checkpoint(), "gptq", shuffled=True)
    tensors = load_file(packed / "model.safetensors")
    groups = tensors["model.layers.0.mlp.up_proj.g_idx"]
    groups[(groups == 1).nonzero()[0, 0]] = 0
    save_file(tensors, packed / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=r"up_proj.*not of one size"):
        logits(packed)


def test_it_is_not_rounded_again(tiny_checkpoint: Checkpoints) -> None:
    packed, _, _ = make(tiny_checkpoint(), "awq")
    with pytest.raises(InputError, match=r"comes in INT4 \(awq\), so --precision, --block-size"):
        logits(packed, block_size=64)


@pytest.mark.parametrize(("form", "shuffled"), [("awq", False), ("gptq", True), ("compressed", True)])
def test_a_packed_checkpoint_is_evaluated_as_what_it_means(
    tiny_checkpoint: Checkpoints, tmp_path: Path, form: str, shuffled: bool
) -> None:
    packed, meaning, _ = make(tiny_checkpoint(vocab_size=49152), form, symmetric=False, shuffled=shuffled)
    own = EvaluationOptions(ROOT / "README.md", str(meaning), windows=2, length=64, tokens=4, cache=tmp_path / "cache")
    result = evaluate_model(packed, own)
    assert result.evaluation.kl_mean < 1e-6 and result.evaluation.same_top1 == 1
    assert all(each.reference == each.model for each in result.continuations)
    assert not list((tmp_path / "cache").glob("evaluate-*"))


@pytest.mark.parametrize(("form", "shuffled"), [("awq", False), ("gptq", True)])
def test_rounded_again_without_zero_points(
    tiny_checkpoint: Checkpoints, tmp_path: Path, form: str, shuffled: bool
) -> None:
    """On request: plain INT4 comes out, near what the packed checkpoint means, and evaluate says how near."""
    packed, meaning, linears = make(tiny_checkpoint(vocab_size=49152), form, symmetric=False, shuffled=shuffled)
    asked = options(tmp_path, Method.GPTQ)
    with pytest.raises(InputError, match="is INT4 already. .*or round it again with --requantise"):
        calibrate(packed, tmp_path / "int4", asked)
    result = calibrate(packed, tmp_path / "int4", replace(asked, requantise=True))
    assert {report.name for report in result.matrices} >= set(linears)
    weights = read_weights(tmp_path / "int4", ExportOptions(cache=tmp_path / "cache"), Silent())
    assert all(each.offsets is None and each.order is None for each in weights.quantised.values())
    for name, linear in linears.items():
        got = dequantise(weights.quantised[name]).numpy()
        assert np.square(got - linear.weight).mean() < 0.02 * np.square(linear.weight).mean()
    found = []
    for reference in (None, str(meaning)):
        own = EvaluationOptions(ROOT / "README.md", reference, 2, 64, tokens=0, cache=tmp_path / "cache")
        found.append(evaluate_model(tmp_path / "int4", own).evaluation.kl_mean)
    assert found[0] == pytest.approx(found[1], rel=1e-3), "what it is compared with by itself is the packed checkpoint"
    assert found[0] > 0


def test_rounding_again_what_cannot_be(tiny_checkpoint: Checkpoints, tmp_path: Path) -> None:
    plain = tiny_checkpoint(vocab_size=49152)
    packed, _, _ = make(plain, "awq")
    asked = replace(options(tmp_path), requantise=True)
    with pytest.raises(InputError, match="is not in another library's INT4. Leave out --requantise"):
        calibrate(plain, tmp_path / "int4", asked)
    part = replace(asked, export=replace(asked.export, int4_layers=frozenset({Int4Layers.ATTENTION})))
    with pytest.raises(InputError, match="comes in INT4 and --int4-layers leaves it out"):
        calibrate(packed, tmp_path / "int4", part)
