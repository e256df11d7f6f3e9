"""Every family's INT4 form: what ONNX Runtime makes of it is what the same rounded weights make in FP32."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.families.conftest import Model
from tests.graph.harness import Decoder, read_binding
from trtbuild.architectures import Matrix
from trtbuild.checkpoint.base import TensorRef
from trtbuild.dtypes import DType
from trtbuild.graph.decoder import GraphOptions, author_decoder
from trtbuild.graph.save import save_graph
from trtbuild.quantize.rtn import Int4Options, plan_int4, quantize_to_int4
from trtbuild.quantize.stored import QuantizedMatrix

BLOCK = 32


def read(ref: TensorRef, dtype: str) -> NDArray[np.generic]:
    return np.memmap(ref.file, dtype, "r", ref.offset, ref.shape)


def dequantised(weight: QuantizedMatrix) -> NDArray[np.float32]:
    """[in, out]: two's-complement nibbles, the even column in the low one, times the block's scale."""
    packed = read(weight.values, "u1")
    nibbles = np.stack([packed & 15, packed >> 4], axis=-1).reshape(packed.shape[0], -1).astype(np.int8)
    signed = np.where(nibbles > 7, nibbles - 16, nibbles).astype(np.float32)
    return signed * np.repeat(read(weight.scales, "<f4"), weight.grid.block, axis=0)


def overwrite(matrix: Matrix, value: NDArray[np.float32], old: Path, new: Path) -> None:
    """Put `value` [out, in] in the place of the matrix in a copy of its checkpoint."""
    for part, piece in zip(matrix.parts, np.split(value, len(matrix.parts), axis=matrix.along), strict=True):
        file = new / part.file.relative_to(old)
        place = np.memmap(file, "<f4", "r+", part.offset, part.shape)
        place[:] = piece.T if matrix.transposed else piece
        place.flush()


def test_int4_is_the_rounded_weights(model: Model, tmp_path: Path) -> None:
    binding = read_binding(model.folder)
    options = Int4Options(DType.F32, BLOCK)
    quantised = quantize_to_int4(binding, options, tmp_path / "model.int4.safetensors", {})
    file, graph_options = tmp_path / "model.onnx", GraphOptions(DType.F32, model.case.capacity)
    save_graph(author_decoder(quantised.binding, graph_options, quantised.quantised), file)

    rounded = tmp_path / "rounded"
    shutil.copytree(model.folder, rounded)
    chosen = plan_int4(binding, options)
    assert chosen
    for name, (matrix, _) in chosen.items():
        overwrite(matrix, dequantised(quantised.quantised[name]).T, model.folder, rounded)
    reference = tmp_path / "reference" / "model.onnx"
    save_graph(author_decoder(read_binding(rounded), graph_options), reference)

    tokens = np.random.default_rng(8).integers(3, 500, (1, model.case.prompt))
    got, want = Decoder(file).step(tokens, [0]), Decoder(reference).step(tokens, [0])
    np.testing.assert_allclose(got, want, atol=1e-3)
    unrounded = model.reference.logits(tokens[0])
    assert np.abs(want - unrounded).max() > 0.01, "nothing was rounded"


def test_the_int4_graph_in_fp16_is_finite(model: Model, tmp_path: Path) -> None:
    quantised = quantize_to_int4(
        read_binding(model.folder), Int4Options(DType.F16, BLOCK), tmp_path / "model.int4.safetensors", {}
    )
    graph = author_decoder(quantised.binding, GraphOptions(DType.F16, model.case.capacity), quantised.quantised)
    save_graph(graph, tmp_path / "model.onnx")
    tokens = np.random.default_rng(9).integers(3, 500, (1, model.case.prompt))
    assert np.isfinite(Decoder(tmp_path / "model.onnx").step(tokens, [0])).all()
