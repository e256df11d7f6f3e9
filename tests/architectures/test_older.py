"""What GPT-2, NeoX, GPT-J, OPT, BLOOM, MPT and Falcon files may say that their graphs cannot do, or must read."""

from __future__ import annotations

from typing import Any

import pytest

from tests.families.cases import alibi, gpt
from trtbuild.architectures import recipes
from trtbuild.architectures.config_reader import ConfigReader
from trtbuild.architectures.spec import DecoderSpec, Wiring
from trtbuild.errors import InputError

PUBLISHED = {real.name: real.config for real in (*alibi.REAL, *gpt.REAL)}


def read(name: str, **changes: Any) -> DecoderSpec:
    config = ConfigReader({**PUBLISHED[name], **changes}, "config.json")
    spec = recipes()[PUBLISHED[name]["model_type"]].read(config)
    config.check_all_read(())
    return spec


def mpt(**changes: Any) -> dict[str, Any]:
    return {"attn_config": {**PUBLISHED["mpt-7b"]["attn_config"], **changes}}


@pytest.mark.parametrize(
    ("name", "changes", "text"),
    [
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "'scale_attn_by_inverse_layer_idx' is true"),
        ("gpt2", {"add_cross_attention": True}, "'add_cross_attention' is true"),
        ("gpt2", {"n_head": 7}, "n_embd 768 is not a multiple of 7 heads"),
        ("gpt2", {"hidden_size": 512}, "'n_embd' and 'hidden_size' disagree"),
        ("gpt2", {"n_embd": None}, "the field 'n_embd' is missing"),
        ("gpt-j-6b", {"rotary_dim": 63}, "'rotary_dim' is 63 of a head's 256"),
        ("gpt-j-6b", {"rotary_dim": 512}, "'rotary_dim' is 512 of a head's 256"),
        ("opt-125m", {"activation_function": "tanh"}, "'tanh'"),
        ("bloom-560m", {"apply_residual_connection_post_layernorm": True}, "No published BLOOM has it so"),
        ("falcon-7b", {"new_decoder_architecture": True, "parallel_attn": False}, "without 'parallel_attn'"),
        ("falcon-7b", {"num_key_value_heads": 71}, "'num_key_value_heads' is 71, and 1 follows"),
        ("falcon-7b", {"num_attention_heads": 70}, "is not a multiple of 70 heads"),
        ("mpt-7b", {"no_bias": False}, "Only MPTs without biases are known"),
        ("mpt-7b", {"logit_scale": "inv_sqrt_d_model"}, "'logit_scale' is set"),
        ("mpt-7b", {"norm_type": "rmsnorm"}, "norm_type 'rmsnorm' is not known"),
        ("mpt-7b", mpt(alibi=False), "attn_config's 'alibi' is False"),
        ("mpt-7b", mpt(qk_ln=True), "attn_config's 'qk_ln' is True"),
        ("mpt-7b", mpt(attn_type="grouped_query_attention"), "attn_config's 'attn_type' is 'grouped_query_attention'"),
        ("mpt-7b", mpt(sliding_window_size=128), "attn_config has 'sliding_window_size' = 128"),
    ],
)  # fmt: skip
def test_refused(name: str, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match="config.json") as caught:
        read(name, **changes)
    assert text in str(caught.value)


def test_gpt_j_without_rotary_dim_rotates_the_whole_head() -> None:
    rope = read("gpt-j-6b", rotary_dim=None).layers[0].rope
    assert rope is not None
    assert rope.rotary_dim == 256


def test_neox_by_its_old_names() -> None:
    rope = read("pythia-160m", rotary_pct=1.0, rotary_emb_base=20000).layers[0].rope
    assert rope is not None
    assert (rope.rotary_dim, rope.theta) == (64, 20_000.0)
    assert read("pythia-160m").wiring is Wiring.PARALLEL
    assert read("pythia-160m", use_parallel_residual=False).wiring is Wiring.SEQUENTIAL


def test_falcon_by_its_oldest_names() -> None:
    assert read("falcon-40b", num_kv_heads=None, n_head_kv=8).attention.kv_heads == 8
    assert read("falcon-7b").attention.kv_heads == 1
    assert read("falcon-rw-1b").attention.kv_heads == 32
    for name, kv_heads in (("falcon-40b", 8), ("falcon-7b", 1), ("falcon-rw-1b", 32)):  # as transformers 5.25 saves it
        assert read(name, num_key_value_heads=kv_heads).attention.kv_heads == kv_heads
    assert read("falcon-7b").wiring is Wiring.PARALLEL_ONE_NORM
    assert read("falcon-40b").wiring is Wiring.PARALLEL


def test_falcon_scales_its_bias_with_the_scores() -> None:
    slopes = read("falcon-rw-1b").attention.alibi
    assert slopes is not None
    assert slopes[:4] == pytest.approx([2 ** (-exponent / 4) / 8 for exponent in (1, 2, 3, 4)])
