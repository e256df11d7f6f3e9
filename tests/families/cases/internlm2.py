from __future__ import annotations

from functools import partial

from tests.families.case import Case, Real
from tests.families.references import internlm2

CASES = (
    Case(
        "internlm2", "InternLM2, InternLM2.5", "q, k and v in one matrix, by group", save=internlm2.save,
        logits=internlm2.logits,
    ),
    Case(
        "internlm2-biases", "InternLM2 with biases", "biases, `linear` RoPE scaling",
        save=partial(internlm2.save, bias=True, rope_scaling={"type": "linear", "factor": 4.0}),
        logits=internlm2.logits,
    ),
)  # fmt: skip

REAL = (
    Real(
        "InternLM2.5-7B", 7_737_708_544,
        {
            **internlm2.CONFIG, "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
            "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "torch_dtype": "bfloat16",
            "vocab_size": 92544,
        },
    ),
)  # fmt: skip
