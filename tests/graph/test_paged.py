"""The plugin form against transformers, with heads of 64, over shuffled and poisoned pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto

from tests.families.case import all_cases
from tests.families.models import Reference, save_checkpoint
from tests.graph.harness import Decoder, read_binding, write_graph
from tests.graph.paged_harness import PagedDecoder, mixed, play, write_paged_graph
from trtbuild.architectures.spec import Attention
from trtbuild.dtypes import DType
from trtbuild.errors import InputError
from trtbuild.graph.decoder import GraphOptions, author_decoder
from trtbuild.graph.facts import read_facts, read_native_facts
from trtbuild.graph.operator import refuse_without_kernel, strip_functions
from trtbuild.graph.save import save_graph
from trtbuild.graph.widen import widen
from trtbuild.quantize.rtn import Int4Options, quantize_to_int4

HEADS_OF_64: dict[str, dict[str, Any]] = {
    "llama2": {"head_dim": 64},
    "gpt-neox": {"hidden_size": 256},  # RoPE on a quarter of a head
    "gptj": {"n_embd": 256, "rotary_dim": 32},  # of neighbours
    "bloom-6": {"hidden_size": 384},  # ALiBi
    "mpt": {"d_model": 256},
    "falcon-rw": {"hidden_size": 512},
    "falcon-7b": {"hidden_size": 512},  # one key/value head
    "gemma2": {"head_dim": 64},  # soft cap, window
    "mistral": {"head_dim": 64},  # window
    "qwen3": {"head_dim": 64},  # norms of q and k
}
STEPS = 6
LENGTHS = (5, 37, 21)


@pytest.fixture(scope="module", params=HEADS_OF_64)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Reference]]:
    case = next(case for case in all_cases() if case.name == request.param)
    case = replace(case, fields={**case.fields, **HEADS_OF_64[case.name]})
    folder = tmp_path_factory.mktemp(case.name) / case.name
    save_checkpoint(case, folder)
    yield folder, Reference(case, folder)


def tokens_of(length: int, seed: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(3, 500, length)


def assert_near(got: NDArray[np.float32], want: NDArray[np.float32]) -> None:
    """Within 1e-4 of the largest logit."""
    assert got.shape == want.shape
    assert np.abs(got - want).max() < 1e-4 * np.abs(want).max()


def test_prefill_then_steps(model: tuple[Path, Reference]) -> None:
    folder, reference = model
    row = tokens_of(40 + STEPS, 1)
    decoder = PagedDecoder(write_paged_graph(folder))
    (got,) = play(decoder, [row], [{0: 40}, *({0: 1} for _ in range(STEPS))])
    assert_near(got, reference.logits(row))


def test_mixed_batches(model: tuple[Path, Reference]) -> None:
    folder, reference = model
    rows = [tokens_of(length + STEPS, 2 + length) for length in LENGTHS]
    got = play(PagedDecoder(write_paged_graph(folder)), rows, mixed(LENGTHS, STEPS - 1), padding=3)
    for row, logits in zip(rows, got, strict=True):
        assert_near(logits, reference.logits(row[: len(logits)]))


Checkpoints = Callable[..., Path]


def llama(tiny_checkpoint: Checkpoints, **fields: Any) -> Path:
    return tiny_checkpoint(head_dim=64, vocab_size=256, **fields)


def test_sequences_that_share_their_first_pages(tiny_checkpoint: Checkpoints) -> None:
    """The second begins behind a prefix of two pages that only the first has computed, and writes none of them."""
    file = write_paged_graph(llama(tiny_checkpoint))
    decoder = PagedDecoder(file)
    prefix, one, other = (np.random.default_rng(seed).integers(3, 200, n) for seed, n in ((0, 32), (1, 9), (2, 5)))
    decoder.step({0: np.concatenate([prefix, one])})
    decoder.pages[1], decoder.lengths[1] = decoder.pages[0][:2], 32
    shared = [pages.numpy()[decoder.pages[0][:2]].copy() for pages in decoder.pool.values()]
    got = decoder.step({1: other, 0: one[:1]})[1]
    alone = PagedDecoder(file, seed=5).step({0: np.concatenate([prefix, other])})
    np.testing.assert_allclose(got, alone[0][32:], atol=1e-4)
    for before, pages in zip(shared, decoder.pool.values(), strict=True):
        np.testing.assert_array_equal(pages.numpy()[decoder.pages[0][:2]], before)


@pytest.mark.parametrize("page_size", [16, 64])
def test_fp16_is_as_the_native_form(tiny_checkpoint: Checkpoints, page_size: int) -> None:
    """Both round at other places: 0.5% of the largest logit."""
    checkpoint, tokens = llama(tiny_checkpoint), np.random.default_rng(0).integers(3, 200, 40)
    want = Decoder(write_graph(checkpoint, dtype=DType.F16)).step(tokens[None], [0])[0]
    file = write_paged_graph(checkpoint, dtype=DType.F16, page_size=page_size)
    (got,) = play(PagedDecoder(file), [tokens], [{0: 33}, {0: 1}, {0: 6}])
    assert np.abs(got - want).max() < 5e-3 * np.abs(want).max()


def test_int4_is_as_the_native_form(tiny_checkpoint: Checkpoints, tmp_path: Path) -> None:
    checkpoint, tokens = llama(tiny_checkpoint), np.random.default_rng(0).integers(3, 200, 20)
    binding = read_binding(checkpoint)
    done = quantize_to_int4(binding, Int4Options(DType.F32, 32), tmp_path / "model.int4.safetensors", {})
    files = [tmp_path / name for name in ("native.onnx", "paged.onnx")]
    for file, page_size in zip(files, (None, 16), strict=True):
        save_graph(author_decoder(done.binding, GraphOptions(DType.F32, 64, page_size), done.quantised), file)
    native, paged = Decoder(files[0]), PagedDecoder(files[1])
    assert_near(paged.step({0: tokens})[0], native.step(tokens[None], [0])[0])


def author(checkpoint: Path, dtype: DType = DType.F32) -> ModelProto:
    return author_decoder(read_binding(checkpoint), GraphOptions(dtype, 64, 16), metadata={"a": "1"}).model


def test_what_enters_and_leaves(tiny_checkpoint: Checkpoints) -> None:
    graph = author(llama(tiny_checkpoint), DType.F16).graph
    assert [i.name for i in graph.input] == [
        "input_ids", "position_ids", "logits_positions", "block_table", "cu_seqlens", "past_lengths", "kv_pages.0",
        "kv_pages.1",
    ]  # fmt: skip
    assert [o.name for o in graph.output] == ["logits", "kv_pages_out.0", "kv_pages_out.1"]
    pages = next(i for i in graph.input if i.name == "kv_pages.1").type.tensor_type
    assert pages.elem_type == TensorProto.FLOAT16
    assert [dim.dim_value for dim in pages.shape.dim] == [0, 2, 2, 16, 64]


def test_positions_are_an_input_only_where_something_needs_them(tiny_checkpoint: Checkpoints) -> None:
    """With ALiBi nothing does, and TensorRT would drop the input."""
    fields = dict.fromkeys(("intermediate_size", "num_key_value_heads", "head_dim", "max_position_embeddings"))
    graph = author(tiny_checkpoint("BloomConfig", **fields, n_layer=2, n_head=4)).graph
    assert "position_ids" not in {i.name for i in graph.input}


def test_the_node_is_the_plugins(tiny_checkpoint: Checkpoints) -> None:
    """Fields as plugins/src/fields.cpp reads them."""
    model = author(llama(tiny_checkpoint))
    node = next(node for node in model.graph.node if node.op_type == "RopeAlibiAttention")
    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    assert attributes == {
        "num_heads": 4, "num_kv_heads": 2, "head_dim": 64, "rotary_dim": 64, "interleaved": 0, "window": 0,
        "scale": 0.125, "soft_cap": 0.0, "plugin_version": b"1", "plugin_namespace": b"trtbuild",
    }  # fmt: skip
    assert (node.name, node.domain, node.overload) == ("/model/layers.0/attn/RopeAlibiAttention", "trtbuild", "rope")
    assert [(f.domain, f.name, f.overload) for f in model.functions] == [("trtbuild", "RopeAlibiAttention", "rope")]


def test_each_kind_of_layer_has_its_definition(tiny_checkpoint: Checkpoints) -> None:
    """Gemma 2 has a window on every other layer."""
    model = author(tiny_checkpoint("Gemma2Config", attn_logit_softcapping=5.0))
    assert [f.overload for f in model.functions] == ["rope+soft_cap", "rope+window+soft_cap"]


def test_stripped_for_tensorrt(tiny_checkpoint: Checkpoints) -> None:
    model = author(llama(tiny_checkpoint))
    other = onnx.helper.make_function("mine", "F", ["a"], ["b"], [], [onnx.helper.make_opsetid("", 24)])
    model.functions.append(other)
    assert strip_functions(model) == 1
    assert [function.name for function in model.functions] == ["F"]
    nodes = [node for node in model.graph.node if node.op_type == "RopeAlibiAttention"]
    assert [(node.domain, node.overload) for node in nodes] == [("trtbuild", ""), ("trtbuild", "")]
    assert strip_functions(model) == 0


def test_the_checker_agrees_and_names_are_unique(tiny_checkpoint: Checkpoints, tmp_path: Path) -> None:
    checkpoint = llama(tiny_checkpoint)
    graph = author_decoder(read_binding(checkpoint), GraphOptions(DType.F32, 64, 16))
    save_graph(graph, tmp_path / "copied" / "model.onnx", copy_weights=True)
    onnx.checker.check_model(str(tmp_path / "copied" / "model.onnx"), full_check=True)
    names = [node.name for node in graph.model.graph.node]
    assert len(names) == len(set(names))
    assert author(checkpoint).SerializeToString(deterministic=True) == author(checkpoint).SerializeToString(
        deterministic=True
    )


def test_facts_of_both_forms(tiny_checkpoint: Checkpoints) -> None:
    checkpoint = llama(tiny_checkpoint)
    file = write_paged_graph(checkpoint, page_size=32, capacity=96)
    facts = read_facts(file)
    assert (facts.layers, facts.kv_heads, facts.key_dim, facts.value_dim) == (2, 2, 64, 64)
    assert (facts.page_size, facts.capacity, facts.vocab_size, facts.dtype) == (32, 96, 256, DType.F32)
    with pytest.raises(InputError, match="plugin form.*--attention native"):
        read_native_facts(file)
    assert read_native_facts(write_graph(checkpoint)).page_size is None


def test_what_fp16_cannot_hold_may_not_reach_the_pages(tiny_checkpoint: Checkpoints) -> None:
    model = author(llama(tiny_checkpoint), DType.F16)
    with pytest.raises(InputError, match="kept in the KV cache"):
        widen(model, {"/model/layers.0/attn/k_proj/MatMul/output_0"})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"head_dim": 48}, "Heads are 48 wide"),
        ({"heads": 320, "kv_heads": 320, "alibi": (0.5,) * 320}, "up to 256 heads"),
    ],
)
def test_what_has_no_kernel(changes: dict[str, Any], reason: str) -> None:
    spec = replace(Attention(8, 2, 64, 0.125), **changes)
    with pytest.raises(InputError, match=f"{reason}.*--attention native"):
        refuse_without_kernel(spec, 64)


def test_a_page_size_that_has_no_kernel() -> None:
    with pytest.raises(InputError, match="16, 32, 64 or 128, not 48"):
        refuse_without_kernel(Attention(8, 2, 64, 0.125), 48)
