"""The attention kernels' own sources on the CPU against float64: every address checked, outputs poisoned before."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.plugins.cases import MIXED, Case, check, expected, problem
from tests.plugins.emulator import KERNELS, PLUGINS, Emulator, built
from trtbuild.graph.operator import HEAD_DIMS, MOST_ALIBI_HEADS, PAGE_SIZES


@pytest.fixture(scope="module")
def emulator() -> Emulator:
    return Emulator()


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_head_sizes_and_types(emulator: Emulator, head_dim: int, dtype: str) -> None:
    check(Case(MIXED, head_dim=head_dim, rotary_dim=head_dim, dtype=dtype, padding=3), emulator)


@pytest.mark.parametrize("page_size", [16, 32, 64, 128])
@pytest.mark.parametrize("multiprocessors", [1, 132], ids=["whole", "split"])
def test_every_length_of_a_decoding_sequence(emulator: Emulator, page_size: int, multiprocessors: int) -> None:
    """From one position to 300: around every border of pages, tiles and splits."""
    pasts = tuple((past, 1) for past in range(300))
    parts = (pasts,) if multiprocessors == 1 else (pasts[:4] + pasts[256:], pasts)
    for part in parts:
        check(Case(part, heads=2, kv_heads=1, page_size=page_size, multiprocessors=multiprocessors), emulator)


def test_one_long_sequence_is_split(emulator: Emulator) -> None:
    """Twenty splits and their merge, of which one, the last, is short."""
    given = problem(Case(((2600, 1),), heads=2, kv_heads=1, multiprocessors=132))
    room = emulator.library.trtbuild_attention_workspace(given.fields)
    assert room == 2 * 21 * (64 + 2) * 4
    check(given.case, emulator)


@pytest.mark.parametrize("past", [0, 1, 15, 16, 17, 63, 64, 65])
def test_prompts_around_every_border(emulator: Emulator, past: int) -> None:
    news = (2, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129)
    check(Case(tuple((past, new) for new in news), heads=1, kv_heads=1), emulator)


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_a_long_prompt(emulator: Emulator, dtype: str) -> None:
    check(Case(((0, 300), (77, 223)), heads=2, kv_heads=1, page_size=32, dtype=dtype), emulator)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (3, 3), (9, 3), (8, 1), (16, 2), (12, 1), (71, 1)])
def test_groups(emulator: Emulator, heads: int, kv_heads: int) -> None:
    """Groups that fill the eight columns of an mma, fill them in part, and take several."""
    check(Case(((40, 1), (0, 3), (290, 1)), heads=heads, kv_heads=kv_heads, multiprocessors=16), emulator)


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("heads", [12, 40])
def test_alibi(emulator: Emulator, heads: int, dtype: str) -> None:
    check(Case(((200, 1), (10, 20)), heads=heads, kv_heads=heads, rotary_dim=0, alibi=True, dtype=dtype), emulator)


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary_dim", [0, 2, 6, 16, 20, 32, 64, 80])
def test_rope_of_a_part_of_the_head(emulator: Emulator, rotary_dim: int, interleaved: bool, dtype: str) -> None:
    """Parts that are whole vectors of 16 bytes, and parts that are not."""
    case = Case(((9, 1), (2, 5)), head_dim=80, rotary_dim=rotary_dim, interleaved=interleaved, dtype=dtype, padding=1)
    check(case, emulator)


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
@pytest.mark.parametrize("window", [1, 5, 16, 17, 64, 100, 1000])
def test_windows(emulator: Emulator, window: int, dtype: str) -> None:
    """Pages behind the window hold nothing of the sequence: their entries in the table are out of range."""
    case = Case(((250, 1), (150, 90), (0, 130), (30, 1)), heads=2, kv_heads=1, window=window, dtype=dtype)
    check(case, emulator)
    check(replace(case, multiprocessors=64, page_size=64), emulator)


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("soft_cap", [0.5, 30.0])
def test_soft_caps(emulator: Emulator, soft_cap: float, dtype: str) -> None:
    check(Case(MIXED, soft_cap=soft_cap, dtype=dtype), emulator)


def test_large_scores_do_not_overflow(emulator: Emulator) -> None:
    """Queries and keys of size 30: scores of tens of thousands, of which one weighs everything."""
    for dtype in ("fp16", "bf16", "fp32"):
        given = problem(Case(((40, 1), (3, 20)), dtype=dtype))
        for name in ("qkv", "kv_pages"):
            given.arrays[name][...] = (given.arrays[name].astype(np.float32) * 30).astype(given.arrays[name].dtype)
        want, _ = expected(given)
        got, _ = emulator(given)
        size = np.abs(want).max()
        np.testing.assert_allclose(got.astype(np.float64), want, atol=2e-2 * size)


@pytest.mark.parametrize(
    "sequences", [(), ((0, 0),), ((5, 0), (0, 0), (70, 0))], ids=["no sequence", "an empty one", "several"]
)
def test_nothing_to_do(emulator: Emulator, sequences: tuple[tuple[int, int], ...]) -> None:
    check(Case(sequences), emulator)
    check(Case(sequences, padding=4 if sequences else 0), emulator)


def test_more_sequences_than_a_warp_looks_at(emulator: Emulator) -> None:
    random = np.random.default_rng(0)
    sequences = tuple((int(random.integers(0, 40)), int(random.choice([0, 1, 1, 2, 70]))) for _ in range(100))
    check(Case(sequences, heads=1, kv_heads=1, padding=2), emulator)


def test_inputs_that_nobody_filled_do_no_harm(emulator: Emulator) -> None:
    """TensorRT may time a plugin on any bytes: whatever lengths and pages they say, no other memory is touched."""
    random = np.random.default_rng(0)
    emulator.library.simt_tolerate(1)
    try:
        for number in range(40):
            dtype = ("fp16", "bf16", "fp32")[number % 3]
            given = problem(Case(((20, 70), (5, 1), (0, 0), (3, 2)), dtype=dtype, multiprocessors=64, seed=number))
            for name in ("block_table", "cu_seqlens", "past_lengths"):
                array, high = given.arrays[name], (1 << 31) - 1 if number % 2 else 100
                array[...] = random.integers(-high - 1, high, array.shape)
            emulator(given)
    finally:
        emulator.library.simt_tolerate(0)


SEQUENCE = st.tuples(st.integers(0, 150), st.sampled_from([0, 1, 1, 2, 5, 16, 63, 64, 65, 90]))


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    sequences=st.lists(SEQUENCE, min_size=1, max_size=6),
    kv_heads=st.integers(1, 3),
    group=st.sampled_from([1, 2, 4, 7, 9]),
    head_dim=st.sampled_from([64, 80, 96, 128, 256]),
    page_size=st.sampled_from([16, 32, 64, 128]),
    rotary=st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    interleaved=st.booleans(),
    window=st.sampled_from([0, 0, 1, 20, 70]),
    soft_cap=st.sampled_from([0.0, 0.0, 20.0]),
    alibi=st.booleans(),
    dtype=st.sampled_from(["fp16", "bf16", "fp32"]),
    padding=st.integers(0, 3),
    multiprocessors=st.sampled_from([1, 8, 132]),
    seed=st.integers(0, 1 << 20),
)
def test_any_problem(emulator: Emulator, sequences: list[tuple[int, int]], **shape: object) -> None:
    values = dict(shape)
    group, rotary = int(str(values.pop("group"))), float(str(values.pop("rotary")))
    heads = int(str(values["kv_heads"])) * group
    rotary_dim = int(int(str(values["head_dim"])) * rotary) // 2 * 2
    check(Case(tuple(sequences), heads=heads, rotary_dim=rotary_dim, **values), emulator)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"type": 3}, "type is none of"),
        ({"tokens": -1}, "tokens or batch is below zero"),
        ({"pages": 0}, "there is no page"),
        ({"max_pages": 1 << 28}, "max_pages * page_size is above"),
        ({"page_size": 48}, "page_size is none of 16, 32, 64 and 128"),
        ({"tokens": 5_000_000}, "more than 32767 sequences or 4194304 tokens"),
        ({"heads": 1 << 15, "kv_heads": 1 << 15}, "heads is above 16384"),
        ({"kv_heads": 3}, "kv_heads does not divide heads"),
        ({"kv_heads": 0}, "kv_heads does not divide heads"),
        ({"head_dim": 72}, "head_dim is none of 64, 80, 96, 128 and 256"),
        ({"rotary_dim": 66}, "rotary_dim is odd, or not between"),
        ({"rotary_dim": 31}, "rotary_dim is odd"),
        ({"window": -1}, "window is below zero"),
        ({"scale": 0.0}, "scale is not a positive number"),
        ({"scale": float("nan")}, "scale is not a positive number"),
        ({"soft_cap": float("inf")}, "soft_cap is below zero or no number"),
        ({"heads": 258}, "more than 256 heads with ALiBi"),
        ({"batch": 32768}, "more than 32767 sequences"),
        ({"multiprocessors": 0}, "multiprocessors is below one"),
    ],
)
def test_wrong_parameters_are_named(emulator: Emulator, changes: dict[str, float], message: str) -> None:
    fields = problem(Case(((0, 1),), alibi=True)).fields
    assert emulator.check(fields) is None
    for name, value in changes.items():
        setattr(fields, name, value)
    found = emulator.check(fields)
    assert found is not None and message in found
    assert emulator.library.trtbuild_attention_run(fields, None) == 1


def test_the_exporter_refuses_what_the_kernels_refuse(emulator: Emulator) -> None:
    """Its lists and theirs are written in two languages."""

    def taken(name: str, values: range) -> tuple[int, ...]:
        found = []
        for value in values:
            fields = problem(Case(((0, 1),), rotary_dim=0, alibi=True)).fields
            setattr(fields, name, value)
            found += [value] if emulator.check(fields) is None else []
        return tuple(found)

    assert taken("head_dim", range(8, 513, 8)) == HEAD_DIMS
    assert taken("page_size", range(8, 513, 8)) == PAGE_SIZES
    assert taken("heads", range(2, 513, 2))[-1] == MOST_ALIBI_HEADS


def test_the_workspace_does_not_grow_with_the_sequences(emulator: Emulator) -> None:
    """At 16 times the tokens and 64 times the context it is what it was; a bias tensor would be 1024 times as large."""
    short = problem(Case(((4000, 1), (0, 64)), multiprocessors=132)).fields
    long = problem(Case(((4000, 1), (0, 64)), multiprocessors=132)).fields
    long.tokens, long.max_pages = long.tokens * 16, long.max_pages * 64
    rooms = [emulator.library.trtbuild_attention_workspace(fields) for fields in (short, long)]
    blocks = 132 * 3 * 2
    assert rooms[0] <= rooms[1] <= (blocks + 2 * 2) * 2 * (64 + 2) * 4


@pytest.mark.parametrize(
    ("header", "line", "message"),
    [
        (
            "prefill.cuh",
            "        sync_threads();\n    }\n\n    TRTBUILD_UNROLL",
            "that a copy is under way|no barrier between",
        ),
        (
            "prefill.cuh",
            "        sync_threads();\n        int const first = tile",
            "under way|no barrier|nothing was written",
        ),
        ("decode.cuh", "    sync_threads();\n    for (int i = thread_index()", "no barrier|nothing was written"),
        ("fp32.cuh", "    sync_warp();\n", "no barrier|nothing was written"),
    ],
    ids=["before the next tile", "after the copies", "before the merge", "before the query is read"],
)
def test_a_missing_barrier_is_found(tmp_path: Path, header: str, line: str, message: str) -> None:
    """The kernels with one barrier taken out: each is needed, and the emulator sees that it is."""
    shutil.copytree(PLUGINS / "include", tmp_path / "include")
    file = tmp_path / "include" / "trtbuild" / header
    text = file.read_text()
    assert text.count(line) == 1
    file.write_text(text.replace(line, line.split("\n", 1)[1]))
    sources = [source for source in KERNELS if source.stem in ("attention", "head_dim_64")]
    (tmp_path / "others.cu").write_text(
        '#include "trtbuild/head_dim.h"\n'
        + "".join(
            f"template <> int trtbuild::{kind}_of<{size}>(Problem const&, void*) {{ return 1; }}\n"
            for kind in ("decode", "prefill")
            for size in (80, 96, 128, 256)
        )
    )
    library = built([*sources, tmp_path / "others.cu"], [tmp_path / "include", PLUGINS / "emulator"])
    case = Case(((0, 200), (300, 1)), heads=1, kv_heads=1, dtype="fp32" if header == "fp32.cuh" else "fp16")
    with pytest.raises(AssertionError, match=message):
        check(case, Emulator(library))


def test_decoding_reads_the_cache_once_for_a_group_of_heads(emulator: Emulator) -> None:
    """Four query heads share each read: 1.05 times the keys and values are read; each head for itself would be four."""
    case = Case(((1023, 1),) * 4, heads=32, kv_heads=8, head_dim=128, rotary_dim=128, page_size=64, multiprocessors=132)
    given = problem(case)
    emulator(given)
    read, written, products = emulator.counts()
    cache = 4 * 1024 * 2 * 8 * 128 * 2
    assert cache <= read < 1.06 * cache
    # The least is 4 tokens' output, keys and values; rotated queries and the splits' parts come to it.
    assert written < 0.04 * cache
    # For 16 positions and 16 dimensions: two mma of 8 positions with the queries, one with the weights.
    assert products == 4 * 8 * (1024 // 16) * (128 // 16) * 3


def test_a_prompt_multiplies_what_it_sees(emulator: Emulator) -> None:
    """Of each warp's 16 queries, the tiles of 64 positions below and on the diagonal: 10 of 16 squares of 64 x 64, two
    products of 16 x 8 x 16 each."""
    case = Case(((0, 256),), heads=8, kv_heads=2, head_dim=128, rotary_dim=128, page_size=64)
    emulator(problem(case))
    assert emulator.counts()[2] == 8 * 10 * 2 * (64 * 64 * 128) // (16 * 8 * 16)
