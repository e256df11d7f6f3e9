"""The embedding in INT4: words of eight values, looked up and brought apart in the graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from tests.calibration.conftest import options
from tests.conftest import ROOT
from tests.families.test_engine import build
from tests.families.test_engine import pytestmark as needs_rtx
from tests.graph.harness import Decoder, read_binding
from trtbuild.architectures import Role
from trtbuild.calibrating import calibrate
from trtbuild.dtypes import DType
from trtbuild.errors import InputError
from trtbuild.evaluating import EvaluationOptions, evaluate_model
from trtbuild.exporting import export, read_weights
from trtbuild.graph.decoder import GraphOptions, author_decoder
from trtbuild.graph.save import save_graph
from trtbuild.options import ExportOptions, Method, Precision
from trtbuild.progress import Silent
from trtbuild.quantize.rtn import Int4Options, quantize_to_int4
from trtbuild.quantize.stored import Int4Layers
from trtbuild.quantize.table import pack_rows, table_rows, unpack_rows

Checkpoints = Callable[..., Path]
TOKENS = np.random.default_rng(0).integers(3, 500, (2, 24))
EMBEDDING = frozenset({Int4Layers.EMBEDDING})
BOTH = frozenset({Int4Layers.EMBEDDING, Int4Layers.HEAD})


def test_words_hold_eight_values_the_first_lowest() -> None:
    """Written out by hand: -8 is 0 and 7 is 15, so the word of -8, -7 … -1 is 0x76543210."""
    values = np.asarray([[*range(-8, 0), *range(7, -1, -1)], [7] * 8 + [-8] * 8], np.int8)
    packed = pack_rows(values)
    assert [f"{int(word) & 0xFFFFFFFF:08x}" for word in packed.reshape(-1)] == [
        "76543210", "89abcdef", "ffffffff", "00000000",
    ]  # fmt: skip
    assert np.array_equal(unpack_rows(packed), values)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16])
def test_the_graph_looks_up_what_the_rows_stand_for(tiny_checkpoint: Checkpoints, tmp_path: Path, dtype: DType) -> None:
    """Every value of a nibble at every place of a word, against a graph with the dequantised table."""
    checkpoint = tiny_checkpoint(tie_word_embeddings=False)
    binding = read_binding(checkpoint)
    quantised = quantize_to_int4(binding, Int4Options(dtype, layers=EMBEDDING), tmp_path / "int4.safetensors", {})
    assert quantised.table is not None and not quantised.quantised
    table = table_rows(quantised.table, np.arange(512))
    original = load_file(checkpoint / "model.safetensors")
    own = original["model.embed_tokens.weight"].numpy()
    steps = np.abs(own).reshape(512, 2, 32).max(axis=2).repeat(32, axis=1) / 7
    assert (np.abs(table - own) <= 0.51 * steps).all()
    nibbles = np.fromfile(quantised.table.values.file, "<u4", 512 * 8, offset=quantised.table.values.offset)
    assert all(len(np.unique(nibbles >> np.uint32(4 * k) & np.uint32(15))) >= 14 for k in range(8))

    original["model.embed_tokens.weight"] = load_file(checkpoint / "model.safetensors")[
        "model.embed_tokens.weight"
    ].new_tensor(table)
    save_file(original, checkpoint / "model.safetensors", {"format": "pt"})
    files = [tmp_path / name / "model.onnx" for name in ("int4", "plain")]
    graphs = (
        author_decoder(quantised.binding, GraphOptions(dtype, 64), table=quantised.table),
        author_decoder(read_binding(checkpoint), GraphOptions(dtype, 64)),
    )
    for graph, file in zip(graphs, files, strict=True):
        save_graph(graph, file)
    got, want = (Decoder(file, slots=2).step(TOKENS, [0, 0]) for file in files)
    np.testing.assert_allclose(got, want, atol=1e-5 if dtype is DType.F32 else 0.1)


@pytest.mark.parametrize(
    ("config_class", "changes", "layers"),
    [
        ("LlamaConfig", {"tie_word_embeddings": True}, BOTH),
        ("LlamaConfig", {"tie_word_embeddings": False}, EMBEDDING),
        ("GemmaConfig", {}, BOTH | {Int4Layers.MLP}),
    ],
)
def test_calibrated_and_rounded_alike(
    tiny_checkpoint: Checkpoints,
    tmp_path: Path,
    config_class: str,
    changes: dict[str, Any],
    layers: frozenset[Int4Layers],
) -> None:
    """The table is not in the file as it was; what `evaluate` measures is what the exported graph does."""
    checkpoint = tiny_checkpoint(config_class, vocab_size=49152, **changes)
    own = ExportOptions(cache=tmp_path / "cache")
    layers = layers | {Int4Layers.ATTENTION}
    calibrate(checkpoint, tmp_path / "int4", options(tmp_path, Method.RTN, int4_layers=layers, activations=DType.F32))
    name = read_binding(checkpoint).tensor(Role.EMBEDDING).name
    names = set(load_file(tmp_path / "int4" / "model.safetensors"))
    assert {f"{name}.rows", f"{name}.row_scales"} <= names and name not in names
    rounded = export(
        checkpoint,
        tmp_path / "rounded",
        ExportOptions(Precision.INT4, DType.F32, 32, layers, cache=tmp_path / "cache"),
        capacity=64,
    )
    calibrated = export(tmp_path / "int4", tmp_path / "calibrated", own, capacity=64)
    got, want = (Decoder(each.onnx_file, slots=2).step(TOKENS, [0, 0]) for each in (calibrated, rounded))
    np.testing.assert_allclose(got, want, atol=0.05 * np.abs(want).max())

    compared = EvaluationOptions(ROOT / "README.md", windows=2, length=64, tokens=6, cache=tmp_path / "cache")
    result = evaluate_model(tmp_path / "int4", compared)
    assert 0 < result.evaluation.kl_mean < 20 and len(result.continuations) == 10


@needs_rtx[-1]
@pytest.mark.slow
def test_rtx_keeps_the_rows_packed(tiny_checkpoint: Checkpoints, tmp_path: Path) -> None:
    """4096 rows of 256: 0.5 MB of INT4 and 0.066 MB of scales where FP16 has 2.1 MB."""
    sizes_of = {"vocab_size": 4096, "hidden_size": 256, "head_dim": 64}
    checkpoint = tiny_checkpoint(dtype="float16", tie_word_embeddings=False, **sizes_of)
    sizes = []
    for layers in (frozenset({Int4Layers.ATTENTION}), EMBEDDING | {Int4Layers.ATTENTION}):
        own = ExportOptions(Precision.INT4, DType.F16, None, layers, cache=tmp_path / "cache")
        exported = export(checkpoint, tmp_path / f"onnx-{len(layers)}", own, capacity=64)
        plan = build(exported.onnx_file, tmp_path / f"{len(layers)}.plan", decode_only=True)
        assert plan.realised.weight_bytes is not None
        sizes.append(plan.realised.weight_bytes)
    saved = 4096 * 256 * 2 - 4096 * 256 // 2 - 4096 * 8 * 2
    assert sizes[0] - sizes[1] == pytest.approx(saved, rel=0.01)


def test_a_table_that_the_head_needs_is_refused(tiny_checkpoint: Checkpoints) -> None:
    binding = read_binding(tiny_checkpoint(tie_word_embeddings=True))
    with pytest.raises(InputError, match="is the head's matrix too, .*head,embedding, or neither"):
        quantize_to_int4(binding, Int4Options(DType.F16, layers=EMBEDDING), Path("none"), {})


def test_rows_of_no_whole_blocks_are_refused(tiny_checkpoint: Checkpoints) -> None:
    checkpoint = tiny_checkpoint(hidden_size=72, head_dim=12, num_attention_heads=6, tie_word_embeddings=False)
    with pytest.raises(InputError, match="its rows of 72 are no whole blocks of 32"):
        quantize_to_int4(read_binding(checkpoint), Int4Options(DType.F16, layers=EMBEDDING), Path("none"), {})


def test_a_damaged_table_is_refused(tiny_checkpoint: Checkpoints, tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint(vocab_size=49152, tie_word_embeddings=False)
    layers = EMBEDDING | {Int4Layers.ATTENTION}
    calibrate(checkpoint, tmp_path / "int4", options(tmp_path, Method.RTN, int4_layers=layers))
    tensors = load_file(tmp_path / "int4" / "model.safetensors")
    tensors["model.embed_tokens.weight.row_scales"] = tensors["model.embed_tokens.weight.row_scales"][:, :1].clone()
    save_file(tensors, tmp_path / "int4" / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match="are not one table of 49152 rows of 64. Calibrate again"):
        read_weights(tmp_path / "int4", ExportOptions(cache=tmp_path / "cache"), Silent())
