from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from safetensors.numpy import load_file

from tests.checkpoint.gguf_files import HEADS, HIDDEN, KV_HEADS, add_key, metadata, weights, write_gguf
from trtbuild.checkpoint.base import Checkpoint
from trtbuild.checkpoint.gguf import open_gguf
from trtbuild.dtypes import DType
from trtbuild.errors import InputError

GATE = "blk.0.ffn_gate.weight"
GATE_HUB = "model.layers.0.mlp.gate_proj.weight"


def llama_cpp_permute(values: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """What llama.cpp's converter does to q and k (convert_hf_to_gguf.py, LlamaModel.permute)."""
    return (
        values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
    )


def stored(checkpoint: Checkpoint, name: str) -> np.ndarray[Any, Any]:
    """A tensor's bytes, by the checkpoint's own reference."""
    ref = checkpoint.tensors[name]
    kind = {DType.F32: "<f4", DType.F16: "<f2", DType.BF16: "<u2"}[ref.dtype]
    return np.fromfile(ref.file, kind, offset=ref.offset, count=ref.length // ref.dtype.size).reshape(ref.shape)


def test_names_and_rows_are_those_of_transformers(tmp_path: Path) -> None:
    hub = weights() | {"blk.0.attn_q.bias": np.arange(HIDDEN, dtype=np.float32)}
    hub |= {f"blk.0.attn_{name}.bias": np.zeros(size, np.float32) for name, size in (("v", 32), ("output", HIDDEN))}
    hub["blk.0.attn_k.bias"] = np.arange(32, dtype=np.float32)
    heads = {"attn_q": HEADS, "attn_k": KV_HEADS}
    in_file = {
        name: llama_cpp_permute(values, heads[part]) if (part := name.split(".")[-2]) in heads else values
        for name, values in hub.items()
    }
    kinds = {"blk.0.attn_q.weight": Kind.Q8_0}
    checkpoint = open_gguf(write_gguf(tmp_path / "m.gguf", tensors=in_file, kinds=kinds), cache=tmp_path)
    layer = "model.layers.0."
    names = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "blk.0.attn_norm.weight": f"{layer}input_layernorm.weight",
        "blk.0.ffn_norm.weight": f"{layer}post_attention_layernorm.weight",
        "blk.0.attn_output.weight": f"{layer}self_attn.o_proj.weight",
        "blk.0.attn_output.bias": f"{layer}self_attn.o_proj.bias",
        "blk.0.ffn_gate.weight": f"{layer}mlp.gate_proj.weight",
        "blk.0.ffn_up.weight": f"{layer}mlp.up_proj.weight",
        "blk.0.ffn_down.weight": f"{layer}mlp.down_proj.weight",
        **{
            f"blk.0.attn_{part}.{kind}": f"{layer}self_attn.{part}_proj.{kind}"
            for part in "qkv"
            for kind in ("weight", "bias")
        },
    }
    assert set(checkpoint.tensors) == set(names.values())
    for name, values in hub.items():
        mine = stored(checkpoint, names[name])
        if name in kinds:
            expected = gguf.dequantize(gguf.quantize(values, kinds[name]), kinds[name]).astype(np.float16)
            np.testing.assert_array_equal(mine, expected)
        else:
            assert mine.dtype == np.float32
            np.testing.assert_array_equal(mine, values)


def test_qwen_rows_stay_where_they_are(tmp_path: Path) -> None:
    tensors = weights() | {
        f"blk.0.attn_{part}.bias": np.arange(size, dtype=np.float32) for part, size in (("q", 64), ("k", 32), ("v", 32))
    }
    path = write_gguf(tmp_path / "m.gguf", metadata("qwen2"), tensors, architecture="qwen2")
    checkpoint = open_gguf(path, cache=tmp_path)
    for part in "qkv":
        for kind in ("weight", "bias"):
            mine = stored(checkpoint, f"model.layers.0.self_attn.{part}_proj.{kind}")
            np.testing.assert_array_equal(mine, tensors[f"blk.0.attn_{part}.{kind}"])


QUANTISED = [kind for kind in Kind if kind in gguf.quants._type_traits and kind != Kind.BF16]


@pytest.mark.parametrize("kind", QUANTISED, ids=lambda kind: kind.name)
def test_every_quantised_type(kind: Kind, tmp_path: Path) -> None:
    """Random blocks of each type that the gguf package can dequantise, against its own result for the whole tensor."""
    _, size = gguf.GGML_QUANT_SIZES[kind]
    block, rows = gguf.GGML_QUANT_SIZES[kind][0], 300
    raw = np.random.default_rng(int(kind)).integers(0, 0x3C, (rows, 512 // block * size), dtype=np.uint8)
    expected = gguf.dequantize(raw, kind)
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor(GATE, raw, raw_dtype=kind)
    rest = {name: values for name, values in weights().items() if name != GATE}
    write_with(writer, rest)
    checkpoint = open_gguf(path, cache=tmp_path)
    mine = stored(checkpoint, GATE_HUB)
    assert mine.shape == (rows, 512)
    assert mine.dtype == (np.float16 if np.abs(expected).max() <= 65504 else np.float32)
    np.testing.assert_array_equal(mine, expected.astype(mine.dtype))


def write_with(writer: gguf.GGUFWriter, tensors: dict[str, Any]) -> None:
    for key, value in metadata().items():
        add_key(writer, key, value)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_bf16_and_f16_are_kept_bit_for_bit(tmp_path: Path) -> None:
    kinds = {"blk.0.ffn_up.weight": Kind.BF16, GATE: Kind.F16}
    checkpoint = open_gguf(write_gguf(tmp_path / "m.gguf", kinds=kinds), cache=tmp_path)
    up = stored(checkpoint, "model.layers.0.mlp.up_proj.weight")
    assert checkpoint.tensors["model.layers.0.mlp.up_proj.weight"].dtype == DType.BF16
    np.testing.assert_array_equal(up, gguf.quantize(weights()["blk.0.ffn_up.weight"], Kind.BF16).view("<u2"))
    np.testing.assert_array_equal(stored(checkpoint, GATE_HUB), weights()[GATE].astype(np.float16))


def test_the_safetensors_package_reads_what_is_written(tmp_path: Path) -> None:
    checkpoint = open_gguf(write_gguf(tmp_path / "m.gguf", kinds={GATE: Kind.F16}), cache=tmp_path)
    loaded = load_file(checkpoint.weight_files[0])
    assert set(loaded) == set(checkpoint.tensors)
    for name, values in loaded.items():
        np.testing.assert_array_equal(values, stored(checkpoint, name))


def test_values_beyond_f16_make_that_tensor_f32(tmp_path: Path) -> None:
    large = weights()[GATE]
    large[-1, -1] = 1e6  # in the last chunk, after F16 has been written
    path = write_gguf(tmp_path / "m.gguf", tensors=weights() | {GATE: large}, kinds={GATE: Kind.Q8_0})
    checkpoint = open_gguf(path, cache=tmp_path)
    assert checkpoint.tensors[GATE_HUB].dtype == DType.F32
    expected = gguf.dequantize(gguf.quantize(large, Kind.Q8_0), Kind.Q8_0)
    np.testing.assert_array_equal(stored(checkpoint, GATE_HUB), expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.BF16], ids=lambda kind: kind.name)
def test_nan_and_infinity_are_refused(bad: float, kind: Kind, tmp_path: Path) -> None:
    values = weights()[GATE]
    values[3, 4] = bad
    path = write_gguf(tmp_path / "m.gguf", tensors=weights() | {GATE: values}, kinds={GATE: kind})
    with pytest.raises(InputError, match=r"'blk.0.ffn_gate.weight' holds (nan|inf)"):
        open_gguf(path, cache=tmp_path / "cache")
    assert not list((tmp_path / "cache" / "gguf").iterdir())


def test_a_type_that_cannot_be_dequantised_is_refused(tmp_path: Path) -> None:
    tensors = weights() | {GATE: np.zeros((4, 4), np.int32)}
    path = tmp_path / "m.gguf"
    write_with(gguf.GGUFWriter(path, "llama"), tensors)
    with pytest.raises(InputError, match=r"'blk.0.ffn_gate.weight' is I32, which the installed gguf package cannot"):
        open_gguf(path, cache=tmp_path)


def test_heads_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", metadata(llama__attention__head_count_kv=3))
    with pytest.raises(InputError, match="32 rows, not an even number for each of 3 heads"):
        open_gguf(path, cache=tmp_path)
