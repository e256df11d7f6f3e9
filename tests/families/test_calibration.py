"""Every family, a layer at a time: the parts are the whole, channel scales change nothing, and fits are better."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.families.conftest import Model
from tests.families.test_int4 import dequantised
from tests.graph.harness import Decoder, read_binding
from trtbuild.architectures import Binding, Matrix, Role
from trtbuild.calibration.folds import folds
from trtbuild.calibration.layerwise import Work, layout, run
from trtbuild.calibration.runner import PartRunner
from trtbuild.calibration.weights import PartWeights
from trtbuild.dtypes import DType
from trtbuild.graph.decoder import GraphOptions, author_decoder
from trtbuild.graph.parts import author_embedding, author_head, author_layer
from trtbuild.graph.save import save_graph
from trtbuild.options import Method
from trtbuild.progress import Silent
from trtbuild.quantize.floats import read_finite
from trtbuild.quantize.rtn import Int4Options, plan_int4, quantize_to_int4
from trtbuild.quantize.stored import QuantizedMatrix, int4
from trtbuild.quantize.weights_file import WeightsFile

TOKENS = np.random.default_rng(3).integers(3, 500, (4, 40))
BLOCK = 32


def chain(binding: Binding, tokens: NDArray[np.int64], scales: dict[int, list[torch.Tensor]] | None = None):  # type: ignore[no-untyped-def]
    """Logits by embedding, layers and head, one after the other; `scales` are folded into the layers."""
    part = author_embedding(binding)
    hidden = PartRunner(part).embed(tokens, PartWeights(part).arrays())
    for layer in range(len(binding.spec.layers)):
        part = author_layer(binding, layer, tokens.shape[1])
        weights = PartWeights(part)
        for fold, own in zip(all_folds(binding, layer), (scales or {}).get(layer, []), strict=False):
            for matrix in (*fold.matrices, *fold.readers):
                weights.scale_columns(matrix, own)
            fold.source.divide(weights, own)
        hidden = PartRunner(part).layer(hidden, weights.arrays())
    part = author_head(binding)
    return PartRunner(part).logits(hidden, PartWeights(part).arrays())


def all_folds(binding: Binding, layer: int):  # type: ignore[no-untyped-def]
    return folds(binding, layer, {matrix.name for _, _, matrix in binding.linears()})


def test_the_parts_are_the_whole(model: Model, tmp_path: Path) -> None:
    binding = read_binding(model.folder)
    save_graph(author_decoder(binding, GraphOptions(DType.F32, 40)), tmp_path / "model.onnx")
    want = Decoder(tmp_path / "model.onnx", slots=2).step(TOKENS[:2], [0, 0])
    np.testing.assert_allclose(chain(binding, TOKENS[:2]), want, atol=1e-3)


def test_scaled_channels_are_made_up_for(model: Model) -> None:
    """Any scales at all leave the logits as they were, in every place that a family folds them into."""
    binding, scales = read_binding(model.folder), {}
    generator = torch.Generator().manual_seed(1)
    for layer in range(len(binding.spec.layers)):
        found = all_folds(binding, layer)
        widths = [fold.matrices[0].shape[1] for fold in found]
        scales[layer] = [
            fold.source.share(torch.rand(width, generator=generator) * 4 + 0.25)
            for fold, width in zip(found, widths, strict=True)
        ]
    want = chain(binding, TOKENS[:2])
    np.testing.assert_allclose(chain(binding, TOKENS[:2], scales), want, atol=2e-3)
    if model.case.name in ("llama2", "bloom", "opt", "cohere", "deepseek-v3", "mixtral", "gemma2"):
        assert len(scales[0]) >= 1, "nothing was folded"


def calibrated(binding: Binding, method: Method, folder: Path) -> tuple[WeightsFile, list, dict]:  # type: ignore[type-arg]
    folder.mkdir()
    plan = plan_int4(binding, Int4Options(DType.F32, BLOCK))
    work = Work(binding, plan, method, DType.F32, TOKENS, folder)
    with WeightsFile(folder / "model.safetensors", layout(work), {}) as output:
        return output, run(work, output, Silent()), plan


def weight(output: WeightsFile, name: str) -> QuantizedMatrix:
    return QuantizedMatrix(output.refs[f"{name}.int4"], output.refs[f"{name}.scales"], int4(BLOCK))


def test_rounding_to_nearest_is_the_other_writers(model: Model, tmp_path: Path) -> None:
    """`rtn` layer by layer and `--precision int4` round every matrix of every family alike."""
    binding = read_binding(model.folder)
    output, _, plan = calibrated(binding, Method.RTN, tmp_path / "work")
    other = quantize_to_int4(binding, Int4Options(DType.F32, BLOCK), tmp_path / "model.int4.safetensors", {})
    for name in plan:
        want, got = dequantised(other.quantised[name]), dequantised(weight(output, name))
        step = np.repeat(read_finite(other.quantised[name].scales), BLOCK, axis=0)
        apart = np.abs(want - got) / step
        assert (apart > 1e-5).mean() < 1e-3 and apart.max() < 1.01, "more than a tie that fell the other way"


def output_noise(matrix: Matrix, stored: QuantizedMatrix, x: NDArray[np.float64], source: PartWeights) -> float:
    return float(((x @ (source.matrix(matrix).numpy().T - dequantised(stored)).astype(np.float64)) ** 2).mean())


def test_fitted_weights_are_better_than_rounded_ones(model: Model, tmp_path: Path) -> None:
    """By `awq+gptq`, which holds both; each alone is measured in tests/quantize."""
    _, reports, plan = calibrated(read_binding(model.folder), Method.AWQ_GPTQ, tmp_path / "work")
    assert {report.name for report in reports} == set(plan)
    gains = [report.sqnr - report.sqnr_rtn for report in reports]
    assert np.mean(gains) > 1.0, gains


def test_the_reports_noise_is_that_of_the_outputs(model: Model, tmp_path: Path) -> None:
    """SQNR of a first layer's matrix, recomputed from its real inputs in float64."""
    binding = read_binding(model.folder)
    output, reports, plan = calibrated(binding, Method.GPTQ, tmp_path / "work")
    embedding = author_embedding(binding)
    hidden = PartRunner(embedding).embed(TOKENS, PartWeights(embedding).arrays())
    part = author_layer(binding, 0, TOKENS.shape[1])
    source = PartWeights(part)
    values = PartRunner(part).operands(hidden, source.arrays())
    report = next(report for report in reports if report.role in (Role.QKV.name.lower(), Role.Q.name.lower(), "q_down"))
    matrix = plan[report.name][0]
    x = values[part.operands[report.name].value].reshape(-1, matrix.shape[1]).astype(np.float64)
    signal = float(((x @ source.matrix(matrix).numpy().T.astype(np.float64)) ** 2).mean())
    noise = output_noise(matrix, weight(output, report.name), x, source)
    assert abs(report.sqnr - 10 * np.log10(signal / noise)) < 0.05
    assert report.largest_input == pytest.approx(np.abs(x).max(), rel=1e-5)
