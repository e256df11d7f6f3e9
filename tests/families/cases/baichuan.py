from __future__ import annotations

from functools import partial

from tests.families.case import Case, Real
from tests.families.references import baichuan

CASES = (
    Case(
        "baichuan2-13b", "Baichuan 2 13B", "ALiBi, the head's rows brought to length 1", save=baichuan.save,
        logits=baichuan.logits,
    ),
    Case(
        "baichuan2-13b-heads", "Baichuan 2 13B", "ALiBi, heads that are no power of two",
        save=partial(baichuan.save, hidden_size=96, num_attention_heads=6), logits=baichuan.logits,
    ),
    Case(
        "baichuan2-7b", "Baichuan 2 7B", "RoPE, the head's rows brought to length 1",
        save=partial(baichuan.save, max_position_embeddings=256), logits=baichuan.logits,
    ),
    Case(
        "baichuan-13b", "Baichuan 13B", "ALiBi, a plain head", save=partial(baichuan.save, vocab_size=64000),
        logits=baichuan.logits,
    ),
)  # fmt: skip

REAL = (
    Real(
        "Baichuan2-13B", 13_896_668_160,
        {
            **baichuan.CONFIG, "hidden_size": 5120, "intermediate_size": 13696, "model_max_length": 4096,
            "num_attention_heads": 40, "num_hidden_layers": 40, "torch_dtype": "bfloat16", "vocab_size": 125696,
        },
    ),
    Real(
        "Baichuan2-7B", 7_505_973_248,
        {
            **baichuan.CONFIG, "hidden_size": 4096, "intermediate_size": 11008, "model_max_length": 4096,
            "max_position_embeddings": 4096, "num_attention_heads": 32, "num_hidden_layers": 32,
            "torch_dtype": "bfloat16", "vocab_size": 125696,
        },
    ),
)  # fmt: skip
