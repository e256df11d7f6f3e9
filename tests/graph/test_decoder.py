"""Authored graphs against transformers' own forward pass, on random weights whose logits are of order 10."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from tests.graph.harness import Decoder, read_binding, write_graph
from trtbuild.dtypes import DType
from trtbuild.graph.attention import AttentionForm
from trtbuild.graph.decoder import GraphOptions, author_decoder
from trtbuild.graph.save import save_graph

LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama2": ("LlamaConfig", {"num_key_value_heads": 4}),
    "llama3": ("LlamaConfig", {"rope_parameters": LLAMA3}),
    "llama-linear": ("LlamaConfig", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}),
    "llama-biases": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    "llama-wide-heads": ("LlamaConfig", {"head_dim": 32, "hidden_act": "gelu_pytorch_tanh"}),
    "smollm-tied": ("LlamaConfig", {"tie_word_embeddings": True, "num_attention_heads": 8, "num_key_value_heads": 1}),
    "mistral-window": ("MistralConfig", {"sliding_window": 8}),
    "qwen2": ("Qwen2Config", {"tie_word_embeddings": True}),
    "qwen2-window": (
        "Qwen2Config",
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3Config", {"head_dim": 32}),
}


def reference(checkpoint: Path, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        return model(torch.from_numpy(tokens), use_cache=False).logits.numpy()


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest, tiny_checkpoint: Callable[..., Path]) -> Path:
    config_class, overrides = FAMILIES[request.param]
    if config_class == "Qwen2Config":
        overrides = {**overrides, "head_dim": None}
    return tiny_checkpoint(config_class, **overrides)


def test_logits_are_those_of_transformers(family: Path) -> None:
    """Prefill, then 24 steps; three lengths in different slots; prefill in chunks: all past every window and border."""
    tokens = np.random.default_rng(1).integers(0, 512, (3, 48))
    want = reference(family, tokens)
    assert 3 < np.abs(want).max() < 100
    decoder = Decoder(write_graph(family), slots=3)

    np.testing.assert_allclose(decoder.step(tokens[:1, :24], [0], slice(0, 1)), want[:1, :24], atol=1e-3)
    for position in range(24, 48):
        logits = decoder.step(tokens[:1, position : position + 1], [position], slice(0, 1))
        np.testing.assert_allclose(logits[0, 0], want[0, position], atol=1e-3)

    lengths = [5, 17, 30]
    for slot, length in enumerate(lengths):
        for start in range(0, length, 7):
            chunk = tokens[slot : slot + 1, start : min(start + 7, length)]
            logits = decoder.step(chunk, [start], slice(slot, slot + 1))
            np.testing.assert_allclose(logits[0], want[slot, start : start + chunk.shape[1]], atol=1e-3)
    for extra in range(12):
        at = [length + extra for length in lengths]
        logits = decoder.step(np.stack([tokens[slot, [position]] for slot, position in enumerate(at)]), at)
        for slot, position in enumerate(at):
            np.testing.assert_allclose(logits[slot, 0], want[slot, position], atol=1e-3)


def test_written_out_attention_is_the_same(family: Path) -> None:
    tokens = np.random.default_rng(2).integers(0, 512, (2, 20))
    fused = Decoder(write_graph(family), slots=2).step(tokens, [0, 0])
    written_out = Decoder(write_graph(family, form=AttentionForm.WRITTEN_OUT), slots=2).step(tokens, [0, 0])
    np.testing.assert_allclose(written_out, fused, atol=2e-4)


def test_fp16_is_finite_and_near(family: Path) -> None:
    tokens = np.random.default_rng(3).integers(0, 512, (1, 40))
    got, want = Decoder(write_graph(family, dtype=DType.F16)).step(tokens, [0]), reference(family, tokens)
    assert np.isfinite(got).all()
    assert np.abs(got - want).max() < 0.02 * np.abs(want).max()


def test_bf16_weights_are_cast_where_they_are_used(tiny_checkpoint: Callable[..., Path]) -> None:
    checkpoint = tiny_checkpoint(dtype="bfloat16")
    tokens = np.random.default_rng(4).integers(0, 512, (1, 12))
    got = Decoder(write_graph(checkpoint)).step(tokens, [0])
    np.testing.assert_allclose(got, reference(checkpoint, tokens), atol=1e-3)


def test_every_value_has_a_shape_and_the_checker_agrees(tiny_checkpoint: Callable[..., Path]) -> None:
    checkpoint = tiny_checkpoint()
    file = checkpoint.parent / "copied" / "model.onnx"
    save_graph(author_decoder(read_binding(checkpoint), GraphOptions(DType.F32, 64)), file, copy_weights=True)
    onnx.checker.check_model(str(file), full_check=True)
    inferred = onnx.shape_inference.infer_shapes(onnx.load(file), strict_mode=True).graph
    shaped = {value.name for value in (*inferred.value_info, *inferred.output)}
    assert {output for node in inferred.node for output in node.output} <= shaped


def test_node_names_are_unique_and_path_like(tiny_checkpoint: Callable[..., Path]) -> None:
    graph = author_decoder(read_binding(tiny_checkpoint()), GraphOptions(DType.BF16, 64)).model.graph
    names = [node.name for node in graph.node]
    assert len(names) == len(set(names))
    assert "/model/layers.0/attn/q_proj/MatMul" in names
    assert "/model/layers.1/mlp/down_proj/MatMul" in names


def test_same_inputs_give_the_same_bytes(tiny_checkpoint: Callable[..., Path]) -> None:
    binding = read_binding(tiny_checkpoint())
    first, second = (
        author_decoder(binding, GraphOptions(DType.F16, 64), metadata={"b": "2", "a": "1"}).model for _ in range(2)
    )
    assert first.SerializeToString(deterministic=True) == second.SerializeToString(deterministic=True)
    assert [(p.key, p.value) for p in first.metadata_props] == [("a", "1"), ("b", "2")]
