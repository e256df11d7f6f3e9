"""Problems that are run on a GPU, by pytest or, where there is none, by scripts/gpu-check."""

from __future__ import annotations

from tests.plugins.cases import MIXED, Case

LENGTHS = tuple((past, 1) for past in range(300))
CASES = [
    *[
        Case(MIXED, head_dim=head_dim, rotary_dim=head_dim, dtype=dtype, padding=3)
        for head_dim in (64, 80, 96, 128, 256)
        for dtype in ("fp16", "bf16", "fp32")
    ],
    *[Case(LENGTHS, heads=2, kv_heads=1, page_size=page_size, multiprocessors=132) for page_size in (16, 32, 64, 128)],
    *[Case(tuple((past, new) for new in (2, 16, 63, 64, 65, 129)), heads=8) for past in (0, 1, 17, 64, 1000)],
    *[
        Case(((4000, 1), (0, 3), (290, 1)), heads=heads, kv_heads=kv)
        for heads, kv in ((9, 3), (8, 1), (71, 1), (32, 8))
    ],
    *[Case(((200, 1), (10, 20)), heads=heads, kv_heads=heads, rotary_dim=0, alibi=True) for heads in (12, 40)],
    *[Case(MIXED, head_dim=80, rotary_dim=dim, interleaved=pairs) for dim in (6, 20, 32) for pairs in (False, True)],
    *[Case(((250, 1), (150, 90), (0, 130)), window=window, page_size=16) for window in (1, 17, 100)],
    *[Case(MIXED, soft_cap=cap, head_dim=256, rotary_dim=256) for cap in (0.5, 30.0)],
    *[Case(MIXED * 4, seed=seed, multiprocessors=132) for seed in range(10)],
]
