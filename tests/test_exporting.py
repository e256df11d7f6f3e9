"""`export`: an ONNX folder of its own, whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.graph.harness import Decoder
from tests.graph.paged_harness import PagedDecoder
from trtbuild.checkpoint import open_checkpoint
from trtbuild.dtypes import DType
from trtbuild.errors import BuildError, InputError
from trtbuild.exporting import ExportResult, export
from trtbuild.graph.facts import read_facts
from trtbuild.options import AttentionForm, ExportOptions, Precision
from trtbuild.quantize.stored import Int4Layers
from trtbuild.verify.reference import Reference

Checkpoints = Callable[..., Path]


def export_it(checkpoint: Path, out: str = "out", *, capacity: int | None = 64, **options: Any) -> ExportResult:
    """Into `out` beside the checkpoint, with a cache of the test's own."""
    place = checkpoint.parent
    return export(checkpoint, place / out, ExportOptions(cache=place / "cache", **options), capacity=capacity)


def properties(file: Path) -> dict[str, str]:
    return {entry.key: entry.value for entry in onnx.load(file, load_external_data=False).metadata_props}


@pytest.mark.parametrize(
    ("stored", "options", "precision", "network"),
    [
        ("float32", {}, Precision.FP32, DType.F32),
        ("float16", {}, Precision.FP16, DType.F16),
        ("bfloat16", {}, Precision.BF16, DType.BF16),
        ("bfloat16", {"precision": Precision.FP16}, Precision.FP16, DType.F16),
        ("bfloat16", {"precision": Precision.INT4}, Precision.INT4, DType.BF16),
        ("float32", {"precision": Precision.INT4}, Precision.INT4, DType.F16),
        ("bfloat16", {"precision": Precision.INT4, "activations": DType.F16}, Precision.INT4, DType.F16),
    ],
    ids=["fp32", "fp16", "bf16", "bf16-as-fp16", "int4-of-bf16", "int4-of-fp32", "int4-in-fp16"],
)
def test_what_the_network_computes_in(
    tiny_checkpoint: Checkpoints, stored: str, options: dict[str, Any], precision: Precision, network: DType
) -> None:
    result = export_it(tiny_checkpoint(dtype=stored), **options)
    assert (result.precision, result.dtype, read_facts(result.onnx_file).dtype) == (precision, network, network)
    found = properties(result.onnx_file)
    assert (found["trtbuild.precision"], found["trtbuild.network_type"]) == (precision.value, network.value)


def test_the_folder_holds_the_model_and_its_weights(tiny_checkpoint: Checkpoints) -> None:
    checkpoint = tiny_checkpoint()
    result = export_it(checkpoint)
    assert {file.name for file in result.folder.iterdir()} == {"model.onnx", "model.safetensors"}
    assert (result.folder / "model.safetensors").samefile(checkpoint / "model.safetensors")
    assert properties(result.onnx_file)["trtbuild.source"] == checkpoint.name
    assert result.nodes == len(onnx.load(result.onnx_file, load_external_data=False).graph.node)
    assert [stage.name for stage in result.stages] == ["checkpoint", "graph"]


def test_int4_needs_only_its_own_file(tiny_checkpoint: Checkpoints) -> None:
    """All that is not quantised is copied into it, so the folder does not need the checkpoint any more."""
    result = export_it(tiny_checkpoint(), precision=Precision.INT4, block_size=64)
    assert {file.name for file in result.folder.iterdir()} == {"model.onnx", "model.int4.safetensors"}
    assert properties(result.onnx_file)["trtbuild.int4"] == "rtn, symmetric, blocks of 64"


def test_int4_of_the_embedding_alone_is_named(tiny_checkpoint: Checkpoints) -> None:
    checkpoint = tiny_checkpoint(tie_word_embeddings=False)
    result = export_it(checkpoint, precision=Precision.INT4, int4_layers=frozenset({Int4Layers.EMBEDDING}))
    assert properties(result.onnx_file)["trtbuild.int4"] == "rtn, symmetric, blocks of 32"
    assert [stage.note for stage in result.stages if stage.name == "int4"] == ["1 matrices, blocks of 32"]


def test_int4_of_chosen_layers(tiny_checkpoint: Checkpoints) -> None:
    """Seven projections a layer: four of attention, three of the MLP; and the head."""

    def matrices(*layers: Int4Layers) -> int:
        name = "-".join(layer.value for layer in layers)
        checkpoint = tiny_checkpoint()
        result = export_it(checkpoint, name, precision=Precision.INT4, int4_layers=frozenset(layers))
        model = onnx.load(result.onnx_file, load_external_data=False)
        return sum(tensor.data_type == onnx.TensorProto.INT4 for tensor in model.graph.initializer)

    assert matrices(Int4Layers.ATTENTION) == 2 * 4
    assert matrices(Int4Layers.MLP) == 2 * 3
    assert matrices(Int4Layers.ATTENTION, Int4Layers.HEAD) == 2 * 4 + 1


def test_the_graph_is_the_model(tiny_checkpoint: Checkpoints) -> None:
    checkpoint = tiny_checkpoint()
    options = ExportOptions(cache=checkpoint.parent / "cache")
    result = export(checkpoint, checkpoint.parent / "out", options, capacity=64)
    tokens = np.random.default_rng(0).integers(0, 512, 48)
    want = Reference(open_checkpoint(checkpoint, cache=options.cache)).logits(tokens.tolist())
    got = Decoder(result.onnx_file).step(tokens[None], [0])[0]
    assert np.abs(got - want).max() < 1e-3


@pytest.mark.parametrize(("positions", "capacity"), [(256, 256), (4096, 2048)])
def test_the_capacity_that_nobody_named(tiny_checkpoint: Checkpoints, positions: int, capacity: int) -> None:
    """2048 positions, or all that the model was trained for."""
    result = export_it(tiny_checkpoint(max_position_embeddings=positions), capacity=None)
    assert result.capacity == read_facts(result.onnx_file).capacity == capacity


@pytest.mark.parametrize("capacity", [0, -1, 257])
def test_a_capacity_that_cannot_be(tiny_checkpoint: Checkpoints, capacity: int) -> None:
    with pytest.raises(InputError, match=f"{capacity} positions .* trained for 256"):
        export_it(tiny_checkpoint(), capacity=capacity)


@pytest.mark.parametrize("options", [{"block_size": 64}, {"activations": DType.F16}])
def test_options_of_int4_without_int4(tiny_checkpoint: Checkpoints, options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="--precision int4 only"):
        export_it(tiny_checkpoint(), **options)


def test_the_plugin_form(tiny_checkpoint: Checkpoints) -> None:
    """Pages of 64 unless told otherwise, for sequences as long as the model takes."""
    checkpoint = tiny_checkpoint(head_dim=64, max_position_embeddings=4096)
    result = export_it(checkpoint, capacity=None, attention=AttentionForm.PLUGIN)
    facts = read_facts(result.onnx_file)
    assert (result.page_size, result.capacity) == (facts.page_size, facts.capacity) == (64, 4096)
    tokens = np.random.default_rng(0).integers(0, 512, 100)
    reference = Reference(open_checkpoint(checkpoint, cache=checkpoint.parent / "cache"))
    got = PagedDecoder(result.onnx_file).step({0: tokens})[0]
    assert np.abs(got - reference.logits(tokens.tolist())).max() < 1e-3
    small = export_it(checkpoint, "small", attention=AttentionForm.PLUGIN, page_size=16)
    assert (small.page_size, small.capacity) == (16, 64)


@pytest.mark.parametrize(
    ("head_dim", "options", "reason"),
    [
        (16, {"attention": AttentionForm.PLUGIN}, "Heads are 16 wide.* 64, 80, 96, 128 or 256"),
        (64, {"attention": AttentionForm.PLUGIN, "page_size": 20}, "--page-size is 16, 32, 64 or 128, not 20"),
        (64, {"page_size": 16}, "--page-size is for --attention plugin only"),
    ],
)
def test_a_plugin_form_that_cannot_be(
    tiny_checkpoint: Checkpoints, head_dim: int, options: dict[str, Any], reason: str
) -> None:
    checkpoint = tiny_checkpoint(head_dim=head_dim)
    with pytest.raises(InputError, match=reason):
        export_it(checkpoint, **options)
    assert not (checkpoint.parent / "out").exists()


def test_an_output_is_refused_or_replaced(tiny_checkpoint: Checkpoints) -> None:
    checkpoint = tiny_checkpoint()
    first = export_it(checkpoint)
    with pytest.raises(InputError, match="exists and is not empty"):
        export_it(checkpoint)
    assert read_facts(first.onnx_file).capacity == 64
    options = ExportOptions(cache=checkpoint.parent / "cache")
    again = export(checkpoint, first.folder, options, capacity=32, force=True)
    assert read_facts(again.onnx_file).capacity == 32


def test_a_failure_leaves_nothing(tiny_checkpoint: Checkpoints, small_disk: Path) -> None:
    checkpoint = tiny_checkpoint(vocab_size=8192)
    options = ExportOptions(cache=checkpoint.parent / "cache")
    with pytest.raises(BuildError, match=f"The disk that holds {small_disk} is full"):
        export(checkpoint, small_disk / "out", options, capacity=64)
    assert not list(small_disk.iterdir())
