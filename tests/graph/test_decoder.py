"""What every authored graph is like, whatever its family (tests/families has those)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from tests.graph.harness import Decoder, read_binding, write_graph
from trtbuild.dtypes import DType
from trtbuild.graph.decoder import GraphOptions, author_decoder
from trtbuild.graph.save import save_graph


def reference(checkpoint: Path, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        return model(torch.from_numpy(tokens), use_cache=False).logits.numpy()


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
