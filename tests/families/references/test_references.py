"""The references against values derived by hand, and against transformers' Llama given the same weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from tests.families.references import baichuan, internlm2
from tests.families.references.common import Array, attend, read_checkpoint

TOKENS = np.random.default_rng(1).integers(0, 512, (2, 24))


def llama(
    config: Mapping[str, Any], weights: Mapping[str, NDArray[Any]], mask: Array | None = None, **settings: Any
) -> Array:
    """Logits [2, 24, vocab] of transformers' Llama, with RoPE; or, with an additive mask [heads, n, n], without."""
    from transformers import LlamaConfig, LlamaForCausalLM

    same = (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "rms_norm_eps",
    )  # fmt: skip
    settings = {"max_position_embeddings": 256, **settings, **{name: config[name] for name in same}}
    model = LlamaForCausalLM._from_config(LlamaConfig(**settings), attn_implementation="eager").eval()
    model.load_state_dict({name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in weights.items()})
    given: dict[str, Any] = {}
    if mask is not None:
        given["attention_mask"] = torch.from_numpy(mask)[None].expand(len(TOKENS), *mask.shape)
        given["position_ids"] = torch.zeros(TOKENS.shape, dtype=torch.long)
    with torch.no_grad():
        result: Array = model(torch.from_numpy(TOKENS), **given).logits.numpy()
    return result


def renamed(weights: Mapping[str, NDArray[Any]], names: Mapping[str, str]) -> dict[str, NDArray[Any]]:
    """The tensors whose names hold one of `names`' keys, with its value in the key's place."""
    return {
        name.replace(old, new): value for name, value in weights.items() for old, new in names.items() if old in name
    }


@pytest.mark.parametrize(
    ("overrides", "settings"),
    [
        ({}, {}),
        ({"bias": True, "rope_scaling": None}, {"attention_bias": True}),
        ({"num_attention_heads": 8, "num_key_value_heads": 2}, {}),
        ({"max_position_embeddings": 16}, {"rope_type": "dynamic", "factor": 2.0, "max_position_embeddings": 16}),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, {"rope_type": "linear", "factor": 4.0}),
    ],
    ids=["plain", "bias", "8 heads on 2", "dynamic beyond 16", "linear"],
)
def test_internlm2_is_llama_with_other_names(
    tmp_path: Path, overrides: dict[str, Any], settings: dict[str, Any]
) -> None:
    internlm2.save(tmp_path, **overrides)
    config, tensors = read_checkpoint(tmp_path)
    weights = renamed(
        tensors,
        {
            "tok_embeddings": "embed_tokens", "attention.wo": "self_attn.o_proj", "feed_forward.w1": "mlp.gate_proj",
            "feed_forward.w3": "mlp.up_proj", "feed_forward.w2": "mlp.down_proj", "attention_norm": "input_layernorm",
            "ffn_norm": "post_attention_layernorm", "model.norm": "model.norm", "output": "lm_head",
        },
    )  # fmt: skip
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config["hidden_size"] // heads
    for name in [name for name in tensors if "wqkv" in name]:
        rows = iter(np.split(tensors[name], heads + 2 * kv_heads))
        parts: dict[str, list[NDArray[Any]]] = {"q": [], "k": [], "v": []}
        for _ in range(kv_heads):
            for part in "q" * (heads // kv_heads) + "kv":
                parts[part].append(next(rows))
        for part, blocks in parts.items():
            weights[name.replace("attention.wqkv", f"self_attn.{part}_proj")] = np.concatenate(blocks)
            assert all(len(block) == head_dim for block in blocks)
    rope = {"rope_theta": 1e6, "rope_type": "default"}
    rope |= {name: settings.pop(name) for name in ("rope_type", "factor") if name in settings}
    expected = llama(config, weights, num_key_value_heads=kv_heads, rope_parameters=rope, **settings)
    assert np.abs(expected).max() > 5
    np.testing.assert_allclose(internlm2.logits(tmp_path, TOKENS), expected, atol=5e-4)


def test_internlm2_keeps_each_kv_head_with_its_queries() -> None:
    q, k, v = internlm2.ungroup(np.arange(16, dtype=np.float32), kv_heads=2, head_dim=2)
    assert q.tolist() == [0, 1, 2, 3, 8, 9, 10, 11]
    assert k.tolist() == [4, 5, 12, 13]
    assert v.tolist() == [6, 7, 14, 15]


@pytest.mark.parametrize(
    ("n", "second"),
    [(8, 1 / 100), (9, 1 / (100 * 1.25)), (16, 1 / (100 * 3))],
)
def test_internlm2_dynamic_base_grows_beyond_what_was_trained(n: int, second: float) -> None:
    """Heads of 4, factor 2, trained 8: base 10^4 times (2n/8 - 1)^(4/2), of which the second frequency has the root."""
    config = {
        "rope_theta": 10000, "max_position_embeddings": 8, "rope_scaling": {"type": "dynamic", "factor": 2.0},
    }  # fmt: skip
    frequencies, positions = internlm2.rope(config, 4, n)
    np.testing.assert_allclose(frequencies, [1, second], rtol=1e-6)
    assert positions.tolist() == list(range(n))


def bloom_mask(heads: int) -> Array:
    """ALiBi of transformers' Bloom, which adds slope * the key's position, and causality. [heads, 24, 24]."""
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    n = TOKENS.shape[1]
    alibi: Array = build_alibi_tensor(torch.ones(1, n), heads, torch.float32).numpy()
    mask: Array = alibi + np.triu(np.full((n, n), np.finfo(np.float32).min), 1)
    return mask


def baichuan_as_llama(tensors: Mapping[str, NDArray[Any]], *, norm_head: bool) -> dict[str, NDArray[Any]]:
    weights = {name: value for name, value in tensors.items() if "W_pack" not in name}
    for name in [name for name in tensors if "W_pack" in name]:
        for part, rows in zip("qkv", np.split(tensors[name], 3), strict=True):
            weights[name.replace("W_pack", f"{part}_proj")] = rows
    if norm_head:
        head = torch.from_numpy(tensors["lm_head.weight"])
        weights["lm_head.weight"] = torch.nn.functional.normalize(head).numpy()
    return weights


@pytest.mark.parametrize(
    "sizes",
    [{}, {"hidden_size": 96, "num_attention_heads": 6}, {"hidden_size": 96, "num_attention_heads": 12}],
    ids=["4 heads", "6 heads", "12 heads"],
)
def test_baichuan_13b_is_llama_with_alibi_for_rope(tmp_path: Path, sizes: dict[str, int]) -> None:
    baichuan.save(tmp_path, **sizes)
    config, tensors = read_checkpoint(tmp_path)
    weights = baichuan_as_llama(tensors, norm_head=True)
    expected = llama(config, weights, bloom_mask(config["num_attention_heads"]))
    assert np.abs(expected).max() > 5
    np.testing.assert_allclose(baichuan.logits(tmp_path, TOKENS), expected, atol=5e-4)


@pytest.mark.parametrize(("vocabulary", "norm_head"), [(512, True), (64000, False)], ids=["Baichuan 2", "Baichuan 1"])
def test_baichuan_7b_is_llama(tmp_path: Path, vocabulary: int, norm_head: bool) -> None:
    baichuan.save(tmp_path, max_position_embeddings=256, vocab_size=vocabulary)
    config, tensors = read_checkpoint(tmp_path)
    expected = llama(config, baichuan_as_llama(tensors, norm_head=norm_head))
    np.testing.assert_allclose(baichuan.logits(tmp_path, TOKENS), expected, atol=5e-4)


@pytest.mark.parametrize(
    ("heads", "exponents"),
    [
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
        (40, [*(head / 4 for head in range(1, 33)), *(head / 8 for head in range(1, 16, 2))]),
    ],
)
def test_alibi_slopes(heads: int, exponents: list[float]) -> None:
    """8 heads as in the paper, 12 as in its code, 40 as Baichuan 2 13B has."""
    np.testing.assert_allclose(baichuan.alibi_slopes(heads), [2**-exponent for exponent in exponents], rtol=1e-6)


def test_alibi_is_added_to_scaled_scores() -> None:
    """q.k is 8 for the first key and 0 for the second, scaled by 1/2; the first is one position away, at slope 3."""
    q = np.array([[[[0, 0, 0, 0], [2, 2, 0, 0]]]], np.float32)
    k = np.array([[[[2, 2, 0, 0], [0, 0, 2, 2]]]], np.float32)
    v = np.array([[[[1, 0, 0, 0], [0, 1, 0, 0]]]], np.float32)
    first, second = attend(q, k, v, np.array([3], np.float32))[0, 0]
    assert first.tolist() == [1, 0, 0, 0]
    np.testing.assert_allclose(second, [np.e / (np.e + 1), 1 / (np.e + 1), 0, 0], rtol=1e-6)


@pytest.mark.parametrize(("vocabulary", "factor"), [(512, 1), (64000, 3)], ids=["Baichuan 2", "Baichuan 1"])
def test_length_of_an_output_row_counts_in_baichuan_1_only(tmp_path: Path, vocabulary: int, factor: int) -> None:
    baichuan.save(tmp_path, vocab_size=vocabulary)
    before = baichuan.logits(tmp_path, TOKENS[:1, :4])
    shard = (
        tmp_path / json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]["lm_head.weight"]
    )
    tensors = load_file(shard)
    tensors["lm_head.weight"][7] *= 3
    save_file(tensors, shard)
    after = baichuan.logits(tmp_path, TOKENS[:1, :4])
    np.testing.assert_allclose(after[..., 7], factor * before[..., 7], rtol=1e-5)
    np.testing.assert_array_equal(np.delete(after, 7, axis=-1), np.delete(before, 7, axis=-1))


@pytest.mark.parametrize(
    ("reference", "overrides"),
    [(internlm2, {}), (baichuan, {}), (baichuan, {"max_position_embeddings": 256})],
    ids=["InternLM2", "Baichuan 13B", "Baichuan 7B"],
)
def test_tokens_see_the_past_in_order_and_not_the_future(
    tmp_path: Path, reference: Any, overrides: dict[str, Any]
) -> None:
    reference.save(tmp_path, **overrides)
    changed, swapped = TOKENS.copy(), TOKENS.copy()
    changed[:, -1] = (changed[:, -1] + 1) % 512
    swapped[:, [0, 1]] = swapped[:, [1, 0]]
    expected = reference.logits(tmp_path, TOKENS)
    after = reference.logits(tmp_path, changed)
    np.testing.assert_allclose(after[:, :-1], expected[:, :-1], atol=1e-5)
    assert np.abs(after[:, -1] - expected[:, -1]).max() > 1
    assert np.abs(reference.logits(tmp_path, swapped)[:, 2:] - expected[:, 2:]).max() > 0.1


@pytest.mark.parametrize("reference", [internlm2, baichuan], ids=["InternLM2", "Baichuan"])
def test_checkpoints_have_the_published_names(tmp_path: Path, reference: Any) -> None:
    reference.save(tmp_path / "a", torch_dtype="bfloat16")
    reference.save(tmp_path / "b", torch_dtype="bfloat16")
    index = json.loads((tmp_path / "a" / "model.safetensors.index.json").read_text())
    shapes = {}
    for file in set(index["weight_map"].values()):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
        for name, tensor in load_file(tmp_path / "a" / file).items():
            assert index["weight_map"][name] == file
            assert tensor.dtype == torch.bfloat16
            shapes[name] = tuple(tensor.shape)
    assert len(set(index["weight_map"].values())) == 2
    assert set(shapes) == set(index["weight_map"])
    if reference is internlm2:
        assert shapes["model.layers.1.attention.wqkv.weight"] == ((4 + 2 * 2) * 16, 64)
        assert shapes["model.tok_embeddings.weight"] == shapes["output.weight"] == (512, 64)
    else:
        assert shapes["model.layers.1.self_attn.W_pack.weight"] == (3 * 64, 64)
        assert shapes["model.embed_tokens.weight"] == shapes["lm_head.weight"] == (512, 64)
