"""FP16 calibration: massive activations give NaN in plain FP16 and the right logits after an audit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper
from safetensors.torch import load_file, save_file

from tests.calibration.conftest import PROSE
from tests.graph.harness import Decoder
from trtbuild.auditing import AuditResult, audit
from trtbuild.calibration.ranges import FP16_LARGEST, Gauge
from trtbuild.calibration.samples import SampleOptions
from trtbuild.checkpoint import open_checkpoint
from trtbuild.dtypes import DType
from trtbuild.errors import InputError
from trtbuild.exporting import export
from trtbuild.graph.widen import widen
from trtbuild.options import ExportOptions, Precision
from trtbuild.verify.reference import Reference

Checkpoints = Callable[..., Path]
TOKENS = np.random.default_rng(0).integers(3, 40_000, (1, 24))
CHANNEL = 5


def plant(checkpoint: Path, size: float) -> None:
    """Layer 0 writes about `size` into one channel of the residual stream; the norms behind it make up for it."""
    file = checkpoint / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.0.mlp.down_proj.weight"][CHANNEL] *= size / 300
    tensors["model.layers.0.mlp.down_proj.bias"][CHANNEL] = size
    for name, tensor in tensors.items():
        if name.endswith("norm.weight") and not name.startswith("model.layers.0."):
            tensor *= size / 30
            tensor[CHANNEL] /= size
    save_file(tensors, file, {"format": "pt"})


@pytest.fixture
def massive(tiny_checkpoint: Checkpoints) -> Path:
    checkpoint = tiny_checkpoint(vocab_size=49152, num_hidden_layers=4, mlp_bias=True)
    plant(checkpoint, 1e6)
    return checkpoint


def audited(checkpoint: Path, **options: Any) -> AuditResult:
    own = ExportOptions(cache=checkpoint.parent / "cache", **options)
    return audit(checkpoint, checkpoint.parent / "audit.json", SampleOptions((PROSE,), 4, 128), own, force=True)


def exported(checkpoint: Path, name: str, **options: Any) -> Path:
    own = ExportOptions(cache=checkpoint.parent / "cache", **options)
    return export(checkpoint, checkpoint.parent / name, own, capacity=64, force=True).onnx_file


def logits(file: Path) -> NDArray[np.float32]:
    return Decoder(file).step(TOKENS, [0])[0]


def test_plain_fp16_gives_nan_and_the_audited_graph_the_right_logits(massive: Path) -> None:
    want = Reference(open_checkpoint(massive, cache=massive.parent)).logits(TOKENS[0].tolist())
    plain = logits(exported(massive, "plain", precision=Precision.FP16))
    assert np.isnan(plain).any(), "the model was to overflow"

    result = audited(massive)
    residual = next(found for found in result.ranges if found.name == "/model/layers.0/mlp/residual/Add/output_0")
    assert residual.fault == "overflows" and residual.where[-1] == CHANNEL
    assert 1e5 < residual.largest < 1e8
    got = logits(exported(massive, "audited", precision=Precision.FP16, audit=result.file))
    assert np.isfinite(got).all()
    assert np.abs(got - want).max() < 0.02 * np.abs(want).max()


def test_exactly_the_unsafe_parts_are_fp32(massive: Path) -> None:
    """The residual stream from layer 0's MLP on, and what feeds it; every projection behind a norm stays FP16."""
    result = audited(massive)
    model = onnx.load(
        exported(massive, "audited", precision=Precision.FP16, audit=result.file), load_external_data=False
    )
    types = {
        value.name: value.type.tensor_type.elem_type
        for value in onnx.shape_inference.infer_shapes(model).graph.value_info
    }
    narrow, wide = TensorProto.FLOAT16, TensorProto.FLOAT
    assert types["/model/layers.0/attn/residual/Add/output_0"] == narrow
    assert types["/model/layers.0/mlp/down_proj/MatMul/output_0"] == wide
    for layer in (1, 2, 3):
        assert types[f"/model/layers.{layer}/attn/residual/Add/output_0"] == wide
        for part in ("attn/q_proj", "attn/o_proj", "mlp/gate_proj", "mlp/up_proj", "mlp/down_proj"):
            assert types[f"/model/layers.{layer}/{part}/MatMul/output_0"] == narrow


def test_a_safe_model_is_left_alone(tiny_checkpoint: Checkpoints) -> None:
    checkpoint = tiny_checkpoint(vocab_size=49152)
    result = audited(checkpoint)
    assert not result.unsafe and len(result.ranges) > 60
    plain, kept = (
        exported(checkpoint, name, precision=Precision.FP16, audit=file)
        for name, file in (("plain", None), ("audited", result.file))
    )
    assert plain.read_bytes() == kept.read_bytes()


def test_weights_that_fp16_cannot_hold(tiny_checkpoint: Checkpoints) -> None:
    """One too large, one that it flushes to 0: both projections are computed in FP32."""
    checkpoint = tiny_checkpoint(vocab_size=49152)
    tensors = load_file(checkpoint / "model.safetensors")
    large, small = "model.layers.0.mlp.up_proj.weight", "model.layers.1.self_attn.o_proj.weight"
    tensors[large][3] *= 1e6
    tensors["model.layers.0.mlp.down_proj.weight"][:, 3] *= 1e-6
    tensors[small] *= 1e-8
    save_file(tensors, checkpoint / "model.safetensors", {"format": "pt"})
    result = audited(checkpoint)
    faults = {found.name: found.fault for found in result.unsafe}
    assert faults[large] == "overflows" and faults[small] == "loses precision"
    want = Reference(open_checkpoint(checkpoint, cache=checkpoint.parent)).logits(TOKENS[0].tolist())
    got = logits(exported(checkpoint, "audited", precision=Precision.FP16, audit=result.file))
    assert np.abs(got - want).max() < 0.2, "FP16 rounds to 11 bits, and the logits reach 38"


def test_int4_with_fp16_activations(massive: Path) -> None:
    options = {"precision": Precision.INT4, "activations": DType.F16, "block_size": 32}
    assert np.isnan(logits(exported(massive, "plain", **options))).any()
    result = audited(massive)
    got = logits(exported(massive, "audited", audit=result.file, **options))
    assert np.isfinite(got).all()


def test_keys_that_do_not_fit_the_cache_are_refused(tiny_checkpoint: Checkpoints) -> None:
    checkpoint = tiny_checkpoint(vocab_size=49152)
    tensors = load_file(checkpoint / "model.safetensors")
    tensors["model.layers.1.self_attn.v_proj.weight"] *= 1e6
    save_file(tensors, checkpoint / "model.safetensors", {"format": "pt"})
    result = audited(checkpoint)
    with pytest.raises(InputError, match=r"layers\.1/attn.*kept in the KV cache.*--precision bf16"):
        exported(checkpoint, "audited", precision=Precision.FP16, audit=result.file)


def test_another_models_audit_is_refused(tiny_checkpoint: Checkpoints, massive: Path) -> None:
    result = audited(massive)
    with pytest.raises(InputError, match=r"audit\.json is of .* not of "):
        exported(tiny_checkpoint(vocab_size=49152), "onnx", precision=Precision.FP16, audit=result.file)
    with pytest.raises(InputError, match="computes in BF16"):
        exported(massive, "onnx", precision=Precision.BF16, audit=result.file)
    result.file.write_text(json.dumps({"unsafe": []}))
    with pytest.raises(InputError, match="is not what this release's `trtbuild audit` writes"):
        exported(massive, "onnx", precision=Precision.FP16, audit=result.file)


@pytest.mark.slow
def test_tensorrt_rtx_builds_the_widened_graph(massive: Path, tmp_path: Path) -> None:
    from trtbuild.building import build
    from trtbuild.engine.profile_file import read_profiles
    from trtbuild.options import Backend, EngineOptions
    from trtbuild.progress import Silent
    from trtbuild.stages import Stages
    from trtbuild.store import Store

    result = audited(massive)
    file = exported(massive, "audited", precision=Precision.FP16, audit=result.file)
    profiles = tmp_path / "profiles.yaml"
    profiles.write_text(
        "cache: {slots: 2, capacity: 64}\nprofiles: {one: {batch: [1, 2, 2], tokens: [1, 8, 16], cache: [1, 32, 64]}}\n"
    )
    built = build(
        file,
        tmp_path / "model.engine",
        profiles=read_profiles(profiles),
        options=EngineOptions(backend=Backend.RTX, targets=("sm_89",)),
        stages=Stages(Silent()),
        store=Store(tmp_path / "store"),
    )
    assert built.bytes > 0


def gauge(*values: float) -> Gauge:
    found = Gauge("x")
    found.add(0, np.asarray(values, np.float32)[None])
    return found


def test_gauges() -> None:
    """Against FP16's definition (IEEE 754 binary16): 65504 is its largest, 2^-24 its smallest number."""
    assert gauge(FP16_LARGEST / 4, -1.0).range().fault is None
    assert gauge(FP16_LARGEST / 3.9).range().fault == "near overflow"
    assert gauge(7e4).range().fault == "overflows"
    tiny = gauge(2.0**-26, 2.0**-20, 1.0, 0.0).range()
    assert (tiny.flushed, tiny.subnormal, tiny.where) == (0.25, 0.25, (0, 2))
    assert gauge(2.0**-26, 2.0**-26).range().fault == "loses precision"


def test_the_error_is_that_of_rounding() -> None:
    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    rounded = torch.from_numpy(values).half().float().numpy().astype(np.float64)
    want = np.linalg.norm(values - rounded) / np.linalg.norm(values.astype(np.float64))
    assert gauge(*values).range().error == pytest.approx(want, rel=1e-6)


def test_widening_by_hand() -> None:
    """y = (a + b) + a, z = y * y in FP16; y unsafe: both adds' types follow, z is cast back."""
    nodes = [
        helper.make_node("Add", ["a", "b"], ["x"], name="x"),
        helper.make_node("Add", ["x", "a"], ["y"], name="y"),
        helper.make_node("Mul", ["y", "y"], ["z"], name="z"),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, [2]) for name in "abz"]
    model = helper.make_model(helper.make_graph(nodes, "g", values[:2], values[2:]), ir_version=10)
    assert widen(model, {"y", "unknown"}) == 2
    onnx.checker.check_model(model, full_check=True)
    import onnxruntime as ort

    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    a, b = np.array([300, 0.01], np.float16), np.array([-350, 0.01], np.float16)
    assert session.run(None, {"a": a, "b": b})[0] == pytest.approx([62500, 0.0009], rel=1e-3)
    large = np.array([40000, 0], np.float16)
    assert np.isfinite(session.run(None, {"a": large, "b": -large})[0][1])
