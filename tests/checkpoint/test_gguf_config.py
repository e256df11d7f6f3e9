from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checkpoint.gguf_files import HIDDEN, KV_HEADS, MLP, metadata, weights, write_gguf
from trtbuild.checkpoint.gguf import open_gguf
from trtbuild.checkpoint.gguf.rope import llama3_factors
from trtbuild.errors import InputError


@pytest.fixture
def convert(tmp_path: Path) -> Any:
    """The config.json that a small GGUF becomes."""

    def run(architecture: str = "llama", *, tensors: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
        path = write_gguf(
            tmp_path / "model.gguf", metadata(architecture, **changes), tensors or weights(), architecture=architecture
        )
        return dict(open_gguf(path, cache=tmp_path / "cache").config)

    return run


def qkv_bias(**more: int) -> dict[str, Any]:
    sizes = {"attn_q": HIDDEN, "attn_k": HIDDEN // 2, "attn_v": HIDDEN // 2, **more}
    return weights() | {f"blk.0.{name}.bias": np.ones(size, np.float32) for name, size in sizes.items()}


def test_llama(convert: Any) -> None:
    assert convert() == {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "rms_norm_eps": 0.5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        "vocab_size": 260,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "eos_token_id": 258,
        "dtype": "float32",
    }


def test_a_head_of_its_own(convert: Any) -> None:
    head = {"output.weight": weights()["token_embd.weight"]}
    assert convert(tensors=weights() | head)["tie_word_embeddings"] is False


def test_defaults_of_llama_cpp(convert: Any) -> None:
    config = convert(llama__attention__head_count_kv=None, llama__rope__freq_base=None)
    assert config["num_key_value_heads"] == 4
    assert config["rope_parameters"]["rope_theta"] == 10000.0


def test_mistral_is_a_llama_with_a_window(convert: Any) -> None:
    config = convert(llama__attention__sliding_window=32)
    assert (config["model_type"], config["sliding_window"]) == ("mistral", 32)
    assert config["architectures"] == ["MistralForCausalLM"]


def test_a_head_dim_that_is_not_hidden_over_heads(convert: Any) -> None:
    keys = {"attention__key_length": 32, "attention__value_length": 32, "rope__dimension_count": 32}
    assert convert(**{f"llama__{key}": value for key, value in keys.items()})["head_dim"] == 32


def test_qwen2_has_biases_without_saying_so(convert: Any) -> None:
    config = convert("qwen2", tensors=qkv_bias())
    assert config["model_type"] == "qwen2"
    assert "attention_bias" not in config
    with pytest.raises(InputError, match="biases on nothing"):
        convert("qwen2")


def test_qwen3(convert: Any) -> None:
    norms = {f"blk.0.attn_{name}_norm.weight": np.ones(16, np.float32) for name in "qk"}
    config = convert("qwen3", tensors=weights() | norms)
    assert (config["model_type"], config["attention_bias"]) == ("qwen3", False)


def test_llama_biases(convert: Any) -> None:
    assert convert(tensors=qkv_bias(attn_output=HIDDEN))["attention_bias"] is True
    mlp = {f"blk.0.ffn_{name}.bias": np.ones(MLP, np.float32) for name in ("gate", "up", "down")}
    assert convert(tensors=weights() | mlp)["mlp_bias"] is True
    with pytest.raises(InputError, match=r"biases on attn_k, attn_q, attn_v, which LlamaForCausalLM cannot express"):
        convert(tensors=qkv_bias())


def test_linear_scaling(convert: Any) -> None:
    expected = {"rope_type": "linear", "rope_theta": 500000.0, "factor": 4.0}
    assert convert(llama__rope__scaling__type="linear", llama__rope__scaling__factor=4.0)["rope_parameters"] == expected
    assert convert(llama__rope__scale_linear=4.0)["rope_parameters"] == expected
    off = convert(llama__rope__scaling__type="none", llama__rope__scaling__factor=4.0)
    assert off["rope_parameters"]["rope_type"] == "default"


def rope_freqs(values: Any) -> dict[str, Any]:
    return weights() | {"rope_freqs.weight": np.asarray(values, np.float32)}


def test_llama3_factors_are_those_of_transformers() -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    for factor in (8.0, 32.0):
        config = LlamaConfig(
            hidden_size=512,
            num_attention_heads=4,
            head_dim=128,
            max_position_embeddings=131072,
            rope_parameters={
                "rope_type": "llama3",
                "rope_theta": 500000.0,
                "factor": factor,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
        )
        scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, None)
        plain = 500000.0 ** (-np.arange(0, 128, 2) / 128)
        np.testing.assert_allclose(plain / scaled.numpy(), llama3_factors(500000.0, 128, factor, 8192), rtol=1e-5)


@pytest.mark.parametrize(("factor", "original"), [(8.0, 8192), (32.0, 8192), (4.0, 2048)])
def test_llama3_scaling_is_told_from_its_factors(factor: float, original: int, convert: Any) -> None:
    values = llama3_factors(500000.0, 64, factor, original)
    config = convert(
        tensors=rope_freqs(values),
        llama__attention__key_length=64,
        llama__attention__value_length=64,
        llama__rope__scaling__original_context_length=original,
    )
    assert config["rope_parameters"] == {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": original,
    }


def test_factors_of_one_are_no_scaling(convert: Any) -> None:
    assert convert(tensors=rope_freqs(np.ones(8)))["rope_parameters"]["rope_type"] == "default"


@pytest.mark.parametrize(
    "values", [np.linspace(1, 8, 8), [1, 1, 8], np.ones(7) * 2, np.zeros(8), [np.inf] * 8, [np.nan] * 8]
)
def test_other_factors_are_refused(values: Any, convert: Any) -> None:
    with pytest.raises(InputError, match=r"rope_freqs.weight is not the scaling of Llama 3\.1"):
        convert(tensors=rope_freqs(values))


REFUSED = {
    "a key that may change the arithmetic": ({"llama__logit_scale": 0.5}, r"llama\.logit_scale = 0\.5 is not one"),
    "experts": ({"llama__expert_count": 8}, "expert_count = 8"),
    "YaRN": ({"llama__rope__scaling__type": "yarn"}, "rope.scaling.type = 'yarn'"),
    "YaRN's attention factor": ({"llama__rope__scaling__attn_factor": 1.2}, "attn_factor"),
    "partial RoPE": ({"llama__rope__dimension_count": 8}, "dimension_count = 8 differs"),
    "keys and values that differ": (
        {"llama__attention__key_length": 16, "llama__attention__value_length": 8},
        "value_length = 8 differs",
    ),
    "no layers": ({"llama__block_count": None}, r"no key llama\.block_count"),
    "heads per layer": ({"llama__attention__head_count": [4, 2]}, r"head_count = \[4, 2\] is not an integer"),
    "zero heads": ({"llama__attention__head_count": 0}, "head_count = 0 is not an integer from 1 up"),
    "theta 0": ({"llama__rope__freq_base": 0.0}, "freq_base = 0.0 is not a number above 0"),
    "epsilon NaN": ({"llama__attention__layer_norm_rms_epsilon": float("nan")}, "epsilon = nan is not a number"),
    "eos beyond the vocabulary": ({"tokenizer__ggml__eos_token_id": 260}, "eos_token_id is 260, .* 260 tokens"),
    "an adapter": ({"general__type": "adapter"}, "holds a GGUF 'adapter'"),
    "a part": ({"split__count": 3}, "one of 3 parts. Join them first"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_what_cannot_be_said_exactly_is_refused(fault: str, convert: Any) -> None:
    changes, message = REFUSED[fault]
    with pytest.raises(InputError, match=message):
        convert(**changes)


def test_neutral_values_are_taken(convert: Any) -> None:
    config = convert(
        llama__expert_count=0,
        llama__rope__scaling__attn_factor=1.0,
        llama__rope__scaling__finetuned=True,
        llama__attention__head_count_kv=[KV_HEADS],
    )
    assert config["num_key_value_heads"] == KV_HEADS


def test_an_unknown_architecture_is_refused_with_the_known_ones(convert: Any) -> None:
    with pytest.raises(InputError, match=r"architecture 'gemma2'. Known in a GGUF are llama, qwen2, qwen3"):
        convert("gemma2")


def test_a_window_in_qwen_is_refused(convert: Any) -> None:
    with pytest.raises(InputError, match="sliding_window = 32 is not part of qwen2"):
        convert("qwen2", tensors=qkv_bias(), qwen2__attention__sliding_window=32)


def test_an_unknown_tensor_is_refused(convert: Any) -> None:
    with pytest.raises(InputError, match=r"tensor 'blk.0.attn_sinks.weight', which trtbuild does not know"):
        convert(tensors=weights() | {"blk.0.attn_sinks.weight": np.ones(4, np.float32)})
