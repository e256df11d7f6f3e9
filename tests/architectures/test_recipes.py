"""config.json files as the hub has them, and ones that must be refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trtbuild.architectures.config_reader import ConfigReader
from trtbuild.architectures.families import recipes
from trtbuild.architectures.rope import inverse_frequencies
from trtbuild.architectures.rope_spec import LinearScaling, Llama3Scaling, Rope
from trtbuild.architectures.spec import DecoderSpec
from trtbuild.errors import InputError

LLAMA = {
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192,
    "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": True,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3",
    },
}  # fmt: skip
"""Llama 3.2 1B's."""


def read(config: dict[str, Any], ignore: tuple[str, ...] = ()) -> DecoderSpec:
    reader = ConfigReader(config, "config.json")
    spec = recipes()[config["model_type"]].read(reader)
    reader.check_all_read(ignore)
    return spec


def windows(spec: DecoderSpec) -> tuple[int | None, ...]:
    return tuple(layer.window for layer in spec.layers)


def without(config: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in names}


def test_llama_3_2_as_the_hub_has_it() -> None:
    spec = read(LLAMA)
    assert (len(spec.layers), spec.hidden, spec.vocab_size, spec.tied_embeddings) == (16, 2048, 128256, True)
    rope = Rope(5e5, 64, Llama3Scaling(32.0, 1.0, 4.0, 8192))
    assert {(layer.window, layer.rope) for layer in spec.layers} == {(None, rope)}


def test_the_form_of_transformers_5_reads_the_same() -> None:
    new = without(LLAMA, "rope_theta", "rope_scaling")
    new["rope_parameters"] = {"rope_theta": 500000.0, **LLAMA["rope_scaling"]}
    assert read(new) == read(LLAMA)


def test_both_forms_must_agree() -> None:
    config = {**LLAMA, "rope_parameters": {"rope_theta": 10000.0, **LLAMA["rope_scaling"]}}
    with pytest.raises(InputError, match="'rope_theta' is 500000 and 'rope_parameters' says 10000"):
        read(config)


def test_a_file_that_names_no_base_is_refused_unless_it_predates_the_field() -> None:
    """Llama 2's file of July 2023 says rope_scaling: null and no base; transformers read it with 10000."""
    config = {**without(LLAMA, "rope_theta"), "rope_scaling": None}
    with pytest.raises(InputError, match="the base of RoPE is unknown"):
        read(config)
    with pytest.raises(InputError, match="the base of RoPE is unknown"):
        read({**config, "transformers_version": "5.24.0"})
    assert read({**config, "transformers_version": "4.31.0.dev0"}).layers[0].rope == Rope(10_000.0, 64)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("hidden_act", "xielu", "the activation 'xielu' is not known"),
        ("rope_scaling", {"rope_type": "yarn2", "factor": 4.0}, "rope_type 'yarn2' is not known"),
        ("rope_scaling", {"rope_type": "linear"}, "RoPE's 'factor' is None, not a positive number"),
        ("rope_scaling", {"rope_type": "linear", "factor": 2.0, "mscale": 1.0}, "the parameter 'mscale' = 1.0"),
        ("logit_scale", 0.5, "the field 'logit_scale' = 0.5 is not one that this recipe understands"),
        ("num_key_value_heads", 5, "32 query heads are not a multiple of 5"),
        ("hidden_size", "2048", "'hidden_size' is '2048', not a int"),
        ("num_hidden_layers", True, "'num_hidden_layers' is True, not a int"),
    ],
)
def test_what_would_change_the_arithmetic_is_refused(field: str, value: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read({**LLAMA, field: value})


def test_a_field_that_the_user_vouches_for_passes() -> None:
    assert read({**LLAMA, "logit_scale": 0.5}, ignore=("logit_scale",)) == read(LLAMA)


def test_a_misspelt_field_is_named_beside_the_right_one() -> None:
    with pytest.raises(InputError, match="'rms_norm_eps' is missing.*did you mean 'rms_norm_epss'"):
        read({**without(LLAMA, "rms_norm_eps"), "rms_norm_epss": 1e-5})


def mistral(**changes: Any) -> dict[str, Any]:
    return {**without(LLAMA, "rope_scaling"), "model_type": "mistral", **changes}


def test_mistral_windows() -> None:
    """Mistral 7B v0.1 has 4096, v0.3 null; a file that leaves it out means transformers' default, 4096."""
    assert windows(read(mistral(sliding_window=4096))) == (4096,) * 16
    assert windows(read(mistral(sliding_window=None))) == (None,) * 16
    assert windows(read(mistral())) == (4096,) * 16


def test_mistral_takes_no_biases() -> None:
    with pytest.raises(InputError, match="attention_bias"):
        read(mistral(attention_bias=True))


def qwen(model_type: str, **changes: Any) -> dict[str, Any]:
    return {**without(LLAMA, "rope_scaling"), "model_type": model_type, **changes}


def test_qwen2_windows_count_only_when_they_are_switched_on() -> None:
    off = read(qwen("qwen2", sliding_window=32768, max_window_layers=4, use_sliding_window=False))
    on = read(qwen("qwen2", sliding_window=32768, max_window_layers=4, use_sliding_window=True))
    assert windows(off) == (None,) * 16
    assert windows(on) == (None,) * 4 + (32768,) * 12
    assert on.attention.qkv_bias and not on.attention.output_bias


def test_qwen3_has_norms_on_heads() -> None:
    spec = read(qwen("qwen3", head_dim=128))
    assert spec.attention.qk_norm and spec.attention.head_dim == 128
    assert spec.attention.scale == pytest.approx(128**-0.5)


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        ("default", {}),
        ("linear", {"factor": 4.0}),
        ("llama3", dict(LLAMA["rope_scaling"])),
    ],
)
def test_frequencies_are_those_of_transformers(kind: str, parameters: dict[str, Any]) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    parameters = {**parameters, "rope_type": kind, "rope_theta": 500000.0}
    config = LlamaConfig(hidden_size=512, num_attention_heads=8, head_dim=64, rope_parameters=parameters)
    want = LlamaRotaryEmbedding(config).inv_freq.numpy()
    scaling = {
        "default": None,
        "linear": LinearScaling(4.0),
        "llama3": Llama3Scaling(32.0, 1.0, 4.0, 8192),
    }[kind]
    np.testing.assert_allclose(inverse_frequencies(Rope(5e5, 64, scaling)), want, rtol=1e-6)


def test_llama3_scaling_by_hand() -> None:
    """Llama 3.1's rule: beyond 8192/1 positions a turn is divided by the factor, within 8192/4 it is kept."""
    plain = inverse_frequencies(Rope(5e5, 64))
    scaled = inverse_frequencies(Rope(5e5, 64, Llama3Scaling(32.0, 1.0, 4.0, 8192)))
    wavelengths = 2 * np.pi / plain
    np.testing.assert_allclose(scaled[wavelengths > 8192], plain[wavelengths > 8192] / 32)
    np.testing.assert_allclose(scaled[wavelengths < 2048], plain[wavelengths < 2048])
