"""A whole checkpoint to INT4: the arithmetic, the file, what is left alone, what is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.graph.harness import Decoder, read_binding
from trtbuild.architectures import Matrix, Role
from trtbuild.calibration.weights import dequantise
from trtbuild.checkpoint.safetensors import read_header
from trtbuild.dtypes import DType
from trtbuild.errors import InputError
from trtbuild.graph.decoder import GraphOptions, author_decoder
from trtbuild.graph.save import save_graph
from trtbuild.quantize.rounding import unpack
from trtbuild.quantize.rtn import Int4Options, QuantizedWeights, block_size, quantize_to_int4
from trtbuild.quantize.stored import INT8, Int4Layers, int4

ALL = frozenset(Int4Layers) - {Int4Layers.EMBEDDING}
GPT2 = dict.fromkeys(("head_dim", "num_key_value_heads", "intermediate_size", "max_position_embeddings"))


def quantised(checkpoint: Path, options: Int4Options, name: str = "q.safetensors") -> QuantizedWeights:
    return quantize_to_int4(read_binding(checkpoint), options, checkpoint.parent / name, {"format": "pt"})


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_weights_are_within_half_a_scale_of_the_checkpoints(tiny_checkpoint: Callable[..., Path], dtype: str) -> None:
    checkpoint = tiny_checkpoint(dtype=dtype)
    result = quantised(checkpoint, Int4Options(DType.F16, block=32))
    original = load_file(checkpoint / "model.safetensors")
    with safe_open(result.file, "np") as file:
        for name in result.quantised:
            values = unpack(file.get_tensor(f"{name}.int4")).astype(np.float32)
            scales = np.repeat(file.get_tensor(f"{name}.scales").astype(np.float32), 32, axis=0)
            error = np.abs(values * scales - original[name].float().numpy().T)
            assert (error <= 0.51 * scales).all(), name
    assert len(result.quantised) == 14


def test_everything_else_is_copied_bit_for_bit(tiny_checkpoint: Callable[..., Path]) -> None:
    checkpoint = tiny_checkpoint(dtype="bfloat16")
    result = quantised(checkpoint, Int4Options(DType.BF16))
    original, written = load_file(checkpoint / "model.safetensors"), load_file(result.file)
    kept = [name for name in original if name not in result.quantised]
    assert "model.embed_tokens.weight" in kept and "model.norm.weight" in kept and "lm_head.weight" in kept
    for name in kept:
        assert torch.equal(written[name], original[name])


def test_the_file_passes_our_own_header_check_and_is_the_same_each_time(tiny_checkpoint: Callable[..., Path]) -> None:
    checkpoint = tiny_checkpoint()
    first = quantised(checkpoint, Int4Options(DType.F16, layers=ALL), "first.safetensors")
    second = quantised(checkpoint, Int4Options(DType.F16, layers=ALL), "second.safetensors")
    assert first.file.read_bytes() == second.file.read_bytes()
    read_header(first.file)


def test_the_graph_computes_with_the_dequantised_weights(tiny_checkpoint: Callable[..., Path]) -> None:
    """Logits of the INT4 graph are those of an ordinary graph over the same weights, dequantised by the test."""
    checkpoint = tiny_checkpoint(tie_word_embeddings=True)
    result = quantised(checkpoint, Int4Options(DType.F32, block=32, layers=ALL))
    file = checkpoint.parent / "int4" / "model.onnx"
    save_graph(author_decoder(result.binding, GraphOptions(DType.F32, 64), result.quantised), file)

    tensors = load_file(checkpoint / "model.safetensors")
    with safe_open(result.file, "np") as stored:
        for name in result.quantised:
            values = unpack(stored.get_tensor(f"{name}.int4")).astype(np.float32)
            tensor = torch.from_numpy((values * np.repeat(stored.get_tensor(f"{name}.scales"), 32, axis=0)).T.copy())
            tensors["lm_head.weight" if "embed" in name else name] = tensor
    plain = tiny_checkpoint(tie_word_embeddings=False)
    save_file(tensors, plain / "model.safetensors", {"format": "pt"})
    reference = checkpoint.parent / "plain" / "model.onnx"
    save_graph(author_decoder(read_binding(plain), GraphOptions(DType.F32, 64)), reference)

    tokens = np.random.default_rng(0).integers(0, 512, (1, 20))
    got, want = Decoder(file).step(tokens, [0]), Decoder(reference).step(tokens, [0])
    np.testing.assert_allclose(got, want, atol=1e-3)
    assert np.abs(want - Decoder(_unquantised(checkpoint)).step(tokens, [0])).max() > 0.1


def _unquantised(checkpoint: Path) -> Path:
    file = checkpoint.parent / "unquantised" / "model.onnx"
    save_graph(author_decoder(read_binding(checkpoint), GraphOptions(DType.F32, 64)), file)
    return file


def test_onnx_runtime_multiplies_by_int4_directly(tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    """An FP16 file's scales, cast for the FP32 graph, still become MatMulNBits: no silent fall back to FP32 weights."""
    import onnx

    result = quantised(tiny_checkpoint(), Int4Options(DType.F16))
    file = tmp_path / "cpu" / "model.onnx"
    save_graph(author_decoder(result.binding, GraphOptions(DType.F32, 64), result.quantised), file)
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    optimised = onnx.load(options.optimized_model_filepath, load_external_data=False)
    operators = [node.op_type for node in optimised.graph.node]
    assert operators.count("MatMulNBits") == 14
    assert "DequantizeLinear" not in operators


def test_blocks_by_width() -> None:
    """The largest that divides, of those asked for; the smallest, and padding, where none does."""
    assert [block_size(width, None) for width in (4096, 576, 1536, 96, 80)] == [128, 64, 128, 32, 32]
    assert [block_size(width, 128) for width in (4096, 576, 96, 80)] == [128, 64, 32, 32]
    assert [block_size(width, 64) for width in (4096, 576, 96)] == [64, 64, 32]
    assert int4(32).blocks(80) == 3 and int4(32).padded(80) == 96
    assert int4(32).bits_per_weight(80, 2) == (96 * 4 + 3 * 16) / 80
    assert INT8.bits_per_weight(64, 2) == 8 + 16 / 64


@pytest.mark.parametrize(
    ("config_class", "sizes"),
    [
        ("LlamaConfig", {"hidden_size": 72, "intermediate_size": 100, "head_dim": 12, "num_attention_heads": 6}),
        ("GPT2Config", {"hidden_size": 72, "n_inner": 100, "num_attention_heads": 6, "n_positions": 128, **GPT2}),
    ],
)
def test_widths_that_no_block_divides(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path, config_class: str, sizes: dict[str, Any]
) -> None:
    """Inputs are padded with zeros; what comes out is what the dequantised weights give, padding cut off."""
    checkpoint = tiny_checkpoint(config_class, **sizes)
    result = quantised(checkpoint, Int4Options(DType.F32))
    file = checkpoint.parent / "int4" / "model.onnx"
    save_graph(author_decoder(result.binding, GraphOptions(DType.F32, 64), result.quantised), file)
    assert any(each.values.shape[0] in (96, 128) for each in result.quantised.values()), "72 and 100 in blocks of 32"

    whole = load_file(checkpoint / "model.safetensors")
    for _, _, matrix in read_binding(checkpoint).linears():
        stored = dequantise(result.quantised[matrix.name])[:, : matrix.shape[1]]
        assert float((stored - _matrix(whole, matrix)).abs().max()) < 0.5 * float(stored.abs().max())
        whole[matrix.sources[0]] = (stored.T if matrix.transposed else stored).contiguous()
    plain = tmp_path / "plain"
    shutil.copytree(checkpoint, plain)
    save_file(whole, plain / "model.safetensors", {"format": "pt"})
    reference = tmp_path / "reference" / "model.onnx"
    save_graph(author_decoder(read_binding(plain), GraphOptions(DType.F32, 64)), reference)
    tokens = np.random.default_rng(0).integers(0, 512, (1, 20))
    got, want = Decoder(file).step(tokens, [0]), Decoder(reference).step(tokens, [0])
    np.testing.assert_allclose(got, want, atol=1e-3)


def _matrix(tensors: dict[str, torch.Tensor], matrix: Matrix) -> torch.Tensor:
    stored = tensors[matrix.sources[0]]
    return stored.T if matrix.transposed else stored


def test_which_layers(tiny_checkpoint: Callable[..., Path]) -> None:
    result = quantised(tiny_checkpoint(), Int4Options(DType.F16, layers=frozenset({Int4Layers.MLP})))
    assert {name.split(".")[3] for name in result.quantised} == {"mlp"}


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_weight_that_is_no_number_is_named_and_nothing_is_left(
    tiny_checkpoint: Callable[..., Path], bad: float
) -> None:
    checkpoint = tiny_checkpoint()
    tensors = load_file(checkpoint / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][5, 7] = bad
    save_file(tensors, checkpoint / "model.safetensors", {"format": "pt"})
    before = set(checkpoint.parent.iterdir())
    with pytest.raises(InputError, match=r"layers\.1\.mlp\.up_proj\.weight: row 5 has NaN or infinity"):
        quantised(checkpoint, Int4Options(DType.F16))
    assert set(checkpoint.parent.iterdir()) - {checkpoint.parent / "cache"} == before


def test_odd_output_features_are_refused(tiny_checkpoint: Callable[..., Path]) -> None:
    checkpoint = tiny_checkpoint(intermediate_size=131)
    with pytest.raises(InputError, match="131 output features are odd"):
        quantised(checkpoint, Int4Options(DType.F16))


def test_a_tied_head_gets_a_copy_of_its_own(tiny_checkpoint: Callable[..., Path]) -> None:
    result = quantised(tiny_checkpoint(tie_word_embeddings=True), Int4Options(DType.F16, layers=ALL))
    embedding = result.binding.tensor(Role.EMBEDDING)
    assert embedding.name in result.quantised
    assert embedding.file == result.file and embedding.dtype is DType.F32
