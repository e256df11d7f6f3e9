"""A whole checkpoint to INT4: the arithmetic, the file, what is left alone, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.graph.harness import Decoder, read_binding
from trtbuild.architectures import Role
from trtbuild.checkpoint.safetensors import read_header
from trtbuild.dtypes import DType
from trtbuild.errors import InputError
from trtbuild.graph.decoder import GraphOptions, author_decoder
from trtbuild.graph.save import save_graph
from trtbuild.quantize.rounding import unpack
from trtbuild.quantize.rtn import Int4Options, QuantizedWeights, block_size, quantize_to_int4
from trtbuild.quantize.stored import Int4Layers

ALL = frozenset(Int4Layers)


def quantised(checkpoint: Path, options: Int4Options, name: str = "q.safetensors") -> QuantizedWeights:
    return quantize_to_int4(read_binding(checkpoint), options, checkpoint.parent / name, {"format": "pt"})


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_weights_are_within_half_a_scale_of_the_checkpoints(tiny_checkpoint: Callable[..., Path], dtype: str) -> None:
    checkpoint = tiny_checkpoint(dtype=dtype)
    result = quantised(checkpoint, Int4Options(DType.F16, block=32))
    original = load_file(checkpoint / "model.safetensors")
    with safe_open(result.file, "np") as file:
        for name in result.int4:
            values = unpack(file.get_tensor(f"{name}.int4")).astype(np.float32)
            scales = np.repeat(file.get_tensor(f"{name}.scales").astype(np.float32), 32, axis=0)
            error = np.abs(values * scales - original[name].float().numpy().T)
            assert (error <= 0.51 * scales).all(), name
    assert len(result.int4) == 14


def test_everything_else_is_copied_bit_for_bit(tiny_checkpoint: Callable[..., Path]) -> None:
    checkpoint = tiny_checkpoint(dtype="bfloat16")
    result = quantised(checkpoint, Int4Options(DType.BF16))
    original, written = load_file(checkpoint / "model.safetensors"), load_file(result.file)
    kept = [name for name in original if name not in result.int4]
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
    save_graph(author_decoder(result.binding, GraphOptions(DType.F32, 64), result.int4), file)

    tensors = load_file(checkpoint / "model.safetensors")
    with safe_open(result.file, "np") as stored:
        for name in result.int4:
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
    save_graph(author_decoder(result.binding, GraphOptions(DType.F32, 64), result.int4), file)
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    optimised = onnx.load(options.optimized_model_filepath, load_external_data=False)
    operators = [node.op_type for node in optimised.graph.node]
    assert operators.count("MatMulNBits") == 14
    assert "DequantizeLinear" not in operators


def test_blocks_by_width() -> None:
    assert [block_size(width, None, "w") for width in (4096, 576, 1536, 96)] == [128, 64, 128, 32]
    with pytest.raises(InputError, match="w: its reduction axis of 80 does not divide into blocks of 128 or 64 or 32"):
        block_size(80, None, "w")
    with pytest.raises(InputError, match="576 does not divide into blocks of 128"):
        block_size(576, 128, "w")


def test_which_layers(tiny_checkpoint: Callable[..., Path]) -> None:
    result = quantised(tiny_checkpoint(), Int4Options(DType.F16, layers=frozenset({Int4Layers.MLP})))
    assert {name.split(".")[3] for name in result.int4} == {"mlp"}


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
    assert embedding.name in result.int4
    assert embedding.file == result.file and embedding.dtype is DType.F32
