"""`verify` on small random models and on the real one; it must notice a wrong graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.graph.harness import read_binding, with_rope, write_graph
from trtbuild.architectures.spec import Attention
from trtbuild.checkpoint import open_checkpoint
from trtbuild.dtypes import DType
from trtbuild.errors import InputError
from trtbuild.exporting import export
from trtbuild.graph.decoder import GraphOptions, author_decoder
from trtbuild.graph.save import save_graph
from trtbuild.options import AttentionForm, ExportOptions, Precision
from trtbuild.verify import VerifyResult, verify
from trtbuild.verify.onnx_decoder import OnnxDecoder
from trtbuild.verify.prompts import PROMPTS
from trtbuild.verify.reference import Reference

VOCABULARY = 49152  # that of the tokenizer


def run(checkpoint: Path, precision: Precision, tokens: int = 8, capacity: int = 128) -> VerifyResult:
    out = checkpoint.parent / f"{checkpoint.name}-{precision.value}"
    options = ExportOptions(precision, cache=checkpoint.parent / "cache")
    result = export(checkpoint, out, options, capacity=capacity)
    return verify(result.onnx_file, open_checkpoint(checkpoint, cache=options.cache), tokens=tokens)


def test_fp32_agrees_token_for_token(tiny_checkpoint: Callable[..., Path]) -> None:
    result = run(tiny_checkpoint(vocab_size=VOCABULARY), Precision.FP32)
    assert result.distance.largest < 1e-3
    assert result.same_prompts == len(result.prompts) == 10


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16])
def test_the_plugin_form_by_its_definition(tiny_checkpoint: Callable[..., Path], precision: Precision) -> None:
    """On pages in random order that hold NaN: FP32 token for token, BF16 as far off as in the native form."""
    checkpoint = tiny_checkpoint(vocab_size=VOCABULARY, head_dim=64, dtype="bfloat16")
    options = ExportOptions(precision, cache=checkpoint.parent / "cache", attention=AttentionForm.PLUGIN, page_size=16)
    graph = export(checkpoint, checkpoint.parent / "paged", options).onnx_file
    result = verify(graph, open_checkpoint(checkpoint, cache=options.cache), tokens=16)
    if precision is Precision.FP32:
        assert result.distance.largest < 1e-3
        assert result.same_prompts == len(result.prompts) == 10
    else:
        assert 1e-3 < result.distance.largest < 2.0
        assert result.distance.kl_mean < 0.05


def test_bf16_is_emulated_and_costs_what_bf16_costs(tiny_checkpoint: Callable[..., Path]) -> None:
    """Eight bits of mantissa: visibly off, far from wrong."""
    result = run(tiny_checkpoint(vocab_size=VOCABULARY, dtype="bfloat16"), Precision.BF16)
    assert 1e-3 < result.distance.largest < 2.0
    assert result.distance.kl_mean < 0.05


def test_bf16_emulation_is_torchs_bf16(tiny_checkpoint: Callable[..., Path]) -> None:
    """The same model run by torch in BF16 is as far from FP32, and nearer to the emulation than FP32 is."""
    import torch
    from transformers import AutoModelForCausalLM

    checkpoint = tiny_checkpoint(dtype="bfloat16")
    tokens = np.random.default_rng(0).integers(0, 512, (1, 40))
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16, attn_implementation="eager")
    with torch.no_grad():
        in_torch = model(torch.from_numpy(tokens)).logits.float().numpy()[0]
    exact = Reference(open_checkpoint(checkpoint, cache=checkpoint.parent)).logits(tokens[0].tolist())
    emulated = OnnxDecoder(write_graph(checkpoint, dtype=DType.BF16)).step(tokens, [0])[0]
    cost_in_torch, cost_emulated = np.abs(in_torch - exact).mean(), np.abs(emulated - exact).mean()
    assert 0.5 < cost_emulated / cost_in_torch < 2


@pytest.mark.parametrize("fault", ["theta", "epsilon", "scale"])
def test_a_wrong_graph_is_noticed(tiny_checkpoint: Callable[..., Path], fault: str) -> None:
    """The faults of neighbouring exporters: RoPE's base, the norm's epsilon, the attention's scale."""
    checkpoint = tiny_checkpoint(vocab_size=VOCABULARY)
    binding = read_binding(checkpoint)
    spec = binding.spec
    assert isinstance(spec.attention, Attention)
    wrong = {
        "theta": with_rope(spec, theta=1e6),
        "epsilon": replace(spec, norm=replace(spec.norm, epsilon=0.1)),
        "scale": replace(spec, attention=replace(spec.attention, scale=1.0)),
    }[fault]
    file = checkpoint.parent / "broken" / "model.onnx"
    save_graph(author_decoder(replace(binding, spec=wrong), GraphOptions(DType.F32, 128)), file)
    result = verify(file, open_checkpoint(checkpoint, cache=checkpoint.parent / "cache"), tokens=4, prompts=PROMPTS[:2])
    assert result.distance.kl_mean > 1e-3


def test_another_models_graph_is_refused(tiny_checkpoint: Callable[..., Path]) -> None:
    first, second = tiny_checkpoint(), tiny_checkpoint(num_hidden_layers=3)
    result = export(first, first.parent / "out", ExportOptions(Precision.FP32, cache=first.parent / "cache"))
    with pytest.raises(InputError, match="was made from another checkpoint"):
        verify(result.onnx_file, open_checkpoint(second, cache=first.parent / "cache"))


@pytest.mark.slow
def test_smollm2_in_fp32(smollm2: Path, tmp_path: Path) -> None:
    """The real model: logits within 5e-4 of transformers', 64 greedy tokens the same on ten prompts."""
    options = ExportOptions(Precision.FP32, cache=tmp_path / "cache")
    result = export(smollm2, tmp_path / "out", options, capacity=256)
    verified = verify(result.onnx_file, open_checkpoint(smollm2, cache=options.cache), tokens=64)
    assert verified.distance.largest < 5e-4
    assert verified.same_prompts == 10
