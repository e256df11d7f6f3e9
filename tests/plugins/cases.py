"""Random problems for the attention kernels, whoever runs them, with what must come out."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.plugins.reference import attention_reference

DTYPES: dict[str, tuple[int, Any]] = {"fp32": (0, np.float32), "fp16": (1, np.float16)}
with contextlib.suppress(ImportError):  # a bare machine with a GPU may lack it
    import ml_dtypes

    DTYPES["bf16"] = 2, ml_dtypes.bfloat16

TOLERANCE = {"fp32": 6e-6, "fp16": 2.5e-3, "bf16": 2e-2}
"""Of outputs whose values are of order 1: weights and outputs are rounded to the type, sums are not."""

Array = NDArray[Any]


class Attention(ctypes.Structure):
    """TrtbuildAttention of plugins/include/trtbuild/attention.h."""

    POINTERS = "qkv kv_pages block_table cu_seqlens past_lengths rope_cos_sin output workspace".split()
    _fields_ = [
        *[(name, ctypes.c_void_p) for name in POINTERS],
        *[
            (name, ctypes.c_int32)
            for name in (
                "type tokens batch max_pages pages page_size heads kv_heads head_dim rotary_dim interleaved window"
            ).split()
        ],
        ("scale", ctypes.c_float),
        ("soft_cap", ctypes.c_float),
        ("has_alibi", ctypes.c_int32),
        ("alibi_slopes", ctypes.c_float * 256),
        ("multiprocessors", ctypes.c_int32),
    ]


def declared(library: ctypes.CDLL) -> ctypes.CDLL:
    """The C API's types, which ctypes must be told."""
    pointer = ctypes.POINTER(Attention)
    library.trtbuild_attention_check.restype = ctypes.c_char_p
    library.trtbuild_attention_check.argtypes = [pointer]
    library.trtbuild_attention_workspace.restype = ctypes.c_size_t
    library.trtbuild_attention_workspace.argtypes = [pointer]
    for name in ("attention_run", "rope_and_write", "decode", "prefill"):
        getattr(library, f"trtbuild_{name}").argtypes = [pointer, ctypes.c_void_p]
    return library


MIXED = ((20, 70), (5, 1), (0, 0), (3, 2), (130, 1), (0, 17))
"""Part of a prompt after others, a token, nothing, two tokens, a token of a longer one, a prompt."""


@dataclass(frozen=True)
class Case:
    """The shape of a problem; `sequences` are (cached positions, new tokens)."""

    sequences: tuple[tuple[int, int], ...]
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    page_size: int = 16
    rotary_dim: int = 64
    interleaved: bool = False
    window: int = 0
    soft_cap: float = 0.0
    alibi: bool = False
    dtype: str = "fp16"
    padding: int = 0
    multiprocessors: int = 4
    seed: int = 0


@dataclass
class Problem:
    """Inputs, and buffers for outputs that hold NaN where nothing was written."""

    case: Case
    arrays: dict[str, Array]
    fields: Attention


def slopes(heads: int) -> Array:
    """ALiBi's, by the paper's two formulas (Press et al. 2022, and their code for other numbers than powers of two)."""
    power = 2 ** int(np.floor(np.log2(heads)))
    own = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    other = [2 ** (-8 * (i + 1) / (2 * power)) for i in range(0, 2 * (heads - power), 2)]
    return np.asarray(own + other, np.float32)


def aligned(shape: tuple[int, ...], dtype: Any) -> Array:
    """Zeros at a multiple of 64 bytes, with nothing of ours behind them."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 64, np.uint8)
    begin = -raw.ctypes.data % 64
    return raw[begin : begin + size].view(dtype).reshape(shape)


def poison(shape: tuple[int, ...], dtype: Any) -> Array:
    array = aligned(shape, dtype)
    array.reshape(-1).view(np.uint8)[:] = 0xFF
    return array


def problem(case: Case) -> Problem:
    """Pages in random order, those of unused positions poisoned, block tables with nonsense after their last page."""
    random = np.random.default_rng(case.seed)
    number, dtype = DTYPES[case.dtype]
    batch, heads, wide = len(case.sequences), case.heads + 2 * case.kv_heads, case.head_dim
    lengths = [past + new for past, new in case.sequences]
    needed = [-(-length // case.page_size) for length in lengths]
    max_pages, pages = max([1, *needed]) + 1, sum(needed) + 3
    tokens = sum(new for _, new in case.sequences) + case.padding

    def values(*shape: int) -> Array:
        array = aligned(shape, dtype)
        array[...] = random.standard_normal(shape).astype(np.float32).astype(dtype)
        return array

    pool = poison((pages, 2, case.kv_heads, case.page_size, wide), dtype)
    table = aligned((batch, max_pages), np.int32)
    table[...] = random.choice([-1, 1 << 30, pages], table.shape)
    order = iter(random.permutation(pages))
    for index, (past, _) in enumerate(case.sequences):
        for place in range(needed[index]):
            table[index, place] = page = next(order)
            rows = np.clip(past - place * case.page_size, 0, case.page_size)
            pool[page, :, :, :rows] = values(2, case.kv_heads, int(rows), wide)
    if case.window:  # what no token sees may be another's by now
        for index, (past, new) in enumerate(case.sequences):
            gone = max(0, past - case.window + 1) // case.page_size
            if new:
                table[index, :gone] = 1 << 30
    starts = aligned((batch + 1,), np.int32)
    starts[1:] = np.cumsum([new for _, new in case.sequences])
    pasts = aligned((batch,), np.int32)
    pasts[:] = [past for past, _ in case.sequences]
    angles = random.uniform(0, 2 * np.pi, (tokens, case.rotary_dim // 2))
    cos_sin = aligned((tokens, case.rotary_dim), np.float32)
    cos_sin[...] = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    arrays = {
        "qkv": values(tokens, heads * wide), "kv_pages": pool, "block_table": table, "cu_seqlens": starts,
        "past_lengths": pasts, "rope_cos_sin": cos_sin, "output": poison((tokens, case.heads * wide), dtype),
    }  # fmt: skip
    fields = Attention(
        type=number, tokens=tokens, batch=batch, max_pages=max_pages, pages=pages, page_size=case.page_size,
        heads=case.heads, kv_heads=case.kv_heads, head_dim=wide, rotary_dim=case.rotary_dim,
        interleaved=case.interleaved, window=case.window, scale=wide**-0.5 * 1.5, soft_cap=case.soft_cap,
        has_alibi=case.alibi, multiprocessors=case.multiprocessors,
    )  # fmt: skip
    if case.alibi:
        fields.alibi_slopes[: case.heads] = slopes(case.heads).tolist()
    return Problem(case, arrays, fields)


def expected(given: Problem) -> tuple[Array, Array]:
    """The outputs and the pages after the step, in float64."""
    case, arrays = given.case, given.arrays
    output, pages = attention_reference(
        arrays["qkv"],
        arrays["kv_pages"],
        arrays["block_table"],
        arrays["cu_seqlens"],
        arrays["past_lengths"],
        heads=case.heads,
        kv_heads=case.kv_heads,
        head_dim=case.head_dim,
        rope_cos_sin=arrays["rope_cos_sin"] if case.rotary_dim else None,
        interleaved=case.interleaved,
        scale=given.fields.scale,
        soft_cap=case.soft_cap,
        window=case.window,
        alibi_slopes=slopes(case.heads) if case.alibi else None,
    )
    return np.asarray(output), np.asarray(pages)


Run = Callable[[Problem], tuple[Array, Array]]
"""What runs the kernels: it returns the outputs and the pages after the step."""


def check(case: Case, run: Run) -> None:
    """Outputs within the type's rounding, new keys and values where they belong, not a bit changed anywhere else."""
    given = problem(case)
    want, want_pages = expected(given)
    before = given.arrays["kv_pages"].copy()
    got, pages = run(given)
    as_float = got.astype(np.float64)
    assert np.isfinite(as_float).all(), f"{int((~np.isfinite(as_float)).sum())} outputs are not finite"
    np.testing.assert_allclose(as_float, want.astype(np.float64), rtol=0, atol=TOLERANCE[case.dtype])
    written = np.zeros(pages.shape, bool)
    for index, (past, new) in enumerate(case.sequences):
        for position in range(past, past + new):
            page = given.arrays["block_table"][index, position // case.page_size]
            written[page, :, :, position % case.page_size] = True
    bits = {2: np.uint16, 4: np.uint32}[pages.dtype.itemsize]
    assert np.array_equal(pages.view(bits)[~written], before.view(bits)[~written]), "a page changed that is not ours"
    new_rows, want_rows = (array[written].astype(np.float64) for array in (pages, want_pages))
    np.testing.assert_allclose(
        new_rows, want_rows, rtol=2.0 ** -{"fp32": 21, "fp16": 9, "bf16": 6}[case.dtype], atol=1e-6
    )
