"""Resizing the cache under a set of profiles, what it costs, and which requests a set covers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtbuild.engine.coverage import check_coverage, select
from trtbuild.engine.profile_file import load_profiles
from trtbuild.engine.profiles import Profile, ProfileSet, Range, kv_cache_bytes
from trtbuild.errors import InputError


def fixed(value: int) -> Range:
    return Range(value, value, value)


def test_a_smaller_cache_keeps_proportions():
    decode, prefill = load_profiles("chat").with_cache(slots=4, capacity=1024).profiles
    assert (decode.batch, decode.tokens, decode.kv) == (Range(1, 2, 4), fixed(1), Range(1, 256, 1024))
    assert (prefill.batch, prefill.tokens, prefill.kv) == (fixed(1), Range(1, 128, 512), Range(1, 256, 1024))


def test_a_cache_below_the_chunk_cuts_the_chunk_and_keeps_it_inside_the_cache():
    prefill = load_profiles("chat").with_cache(capacity=200).profiles[1]
    assert prefill.tokens == Range(1, 128, 200)
    assert prefill.kv == Range(1, 128, 200)  # a quarter would be 50, less than the 128 tokens


def test_a_larger_cache_is_reached_by_the_profiles_that_reached_the_old_one():
    profiles = load_profiles("chat").with_cache(slots=16, capacity=8192)
    assert profiles.profiles[0].batch == Range(1, 8, 16)
    assert profiles.profiles[1].batch == fixed(1)
    assert profiles.profiles[1].tokens == Range(1, 128, 512)
    assert profiles.profiles[1].kv == Range(1, 2048, 8192)
    check_coverage(profiles)


def test_one_slot_and_one_position():
    profiles = load_profiles("chat").with_cache(slots=1, capacity=1)
    assert {values for p in profiles.profiles for values in (p.batch, p.tokens, p.kv)} == {fixed(1)}
    check_coverage(profiles)


def test_a_profile_that_begins_above_the_new_limit_is_refused():
    late = Profile("long", Range(1, 1, 8), fixed(1), Range(1025, 1500, 2048))
    profiles = replace(load_profiles("chat"), profiles=(late,))
    with pytest.raises(InputError, match="Profile 'long' of 'chat': cache begins at 1025, above the 1024 positions"):
        profiles.with_cache(capacity=1024)


@pytest.mark.parametrize(("slots", "capacity"), [(0, None), (None, 0), (-3, 5)])
def test_an_empty_cache_is_refused(slots, capacity):
    with pytest.raises(InputError, match="at least one slot and one position"):
        load_profiles("chat").with_cache(slots, capacity)


@st.composite
def profile_sets(draw: st.DrawFn) -> ProfileSet:
    """Sets that a profile file may hold, ranges that touch the cache's limits among them."""

    def ordered(least: tuple[int, int, int], most: int) -> Range:
        top = draw(st.sampled_from([most, draw(st.integers(least[2], most))]))
        opt = draw(st.integers(least[1], top))
        return Range(draw(st.integers(least[0], opt)), opt, top)

    slots, capacity = draw(st.integers(1, 40)), draw(st.integers(1, 300))
    made = []
    for number in range(draw(st.integers(1, 3))):
        tokens = ordered((1, 1, 1), capacity)
        made.append(Profile(str(number), ordered((1, 1, 1), slots), tokens, ordered(tokens, capacity)))
    return ProfileSet("any", slots, capacity, tuple(made))


@given(profile_sets(), st.integers(1, 80), st.integers(1, 600))
def test_resizing_never_breaks_an_order_or_leaves_the_cache(profiles, slots, capacity):
    assert all(profile.fault() is None for profile in profiles.profiles)
    try:
        resized = profiles.with_cache(slots, capacity)
    except InputError:
        assert any(p.batch.min > slots or p.tokens.min > capacity or p.kv.min > capacity for p in profiles.profiles)
        return
    for profile in resized.profiles:
        assert profile.fault() is None
        assert profile.batch.max <= slots
        assert profile.kv.max <= capacity


@given(profile_sets())
def test_the_same_cache_changes_nothing(profiles):
    assert profiles.with_cache(profiles.slots, profiles.capacity) == profiles


def test_cache_bytes_of_smollm2():
    # 30 layers x keys and values x 8 slots x 3 heads x 2048 positions x 64 x 2 bytes = 360 MiB.
    chat = load_profiles("chat")
    assert kv_cache_bytes(chat, 30, kv_heads=3, key_dim=64, value_dim=64, bytes_per_element=2) == 377_487_360


def test_cache_bytes_of_latents():
    # DeepSeek-V3: 61 layers x 8 slots x 2048 positions x (512 + 64) x 2 bytes, and no values.
    chat = load_profiles("chat")
    assert kv_cache_bytes(chat, 61, kv_heads=1, key_dim=576, value_dim=0, bytes_per_element=2) == 1_151_336_448


def test_the_smallest_profile_that_covers_is_selected():
    chat = load_profiles("chat")
    assert select(chat, batch=8, tokens=1, kv=2048) == 0
    assert select(chat, batch=1, tokens=1, kv=1) == 0
    assert select(chat, batch=1, tokens=2, kv=2) == 1
    short = Profile("short", Range(1, 4, 8), fixed(1), Range(1, 64, 128))
    assert select(replace(chat, profiles=(*chat.profiles, short)), batch=2, tokens=1, kv=128) == 2
    assert select(replace(chat, profiles=(*chat.profiles, short)), batch=2, tokens=1, kv=129) == 0


def test_scoring_requests_take_scoring_profiles():
    chat, scoring = load_profiles("chat"), load_profiles("batch-scoring")
    both = replace(chat, profiles=(*chat.profiles, *scoring.profiles))
    assert select(both, batch=1, tokens=100, kv=100) == 1
    assert select(both, batch=1, tokens=100, kv=100, all_logits=True) == 2


def test_a_request_that_nothing_covers_is_shown_beside_the_ranges():
    with pytest.raises(InputError) as caught:
        select(load_profiles("chat"), batch=2, tokens=7, kv=3000)
    assert str(caught.value).splitlines() == [
        "No profile of 'chat' covers this request:",
        "                         batch  tokens  cache",
        "  request                2      7       3000",
        "  decode (last logits)   1..8   1 !     1..2048 !",
        "  prefill (last logits)  1 !    1..512  1..2048 !",
    ]


def chat_with(**changes: dict[str, Range]) -> ProfileSet:
    chat = load_profiles("chat")
    return replace(chat, profiles=tuple(replace(p, **changes.get(p.name, {})) for p in chat.profiles))


@pytest.mark.parametrize(
    ("profiles", "phase", "request_row"),
    [
        (chat_with(decode={"batch": Range(1, 4, 7)}), "decode", "8 1 1"),
        (chat_with(decode={"batch": Range(2, 4, 8), "kv": Range(1, 5, 2047)}), "decode", "2 1 2048"),
        (chat_with(prefill={"kv": Range(9, 512, 2048)}), "prefill", "1 2 2"),
        (chat_with(prefill={"tokens": Range(3, 128, 512), "kv": Range(3, 512, 2048)}), "prefill", "1 2 2"),
        (chat_with(prefill={"kv": Range(1, 512, 1024)}), "prefill", "1 2 1025"),
    ],
)
def test_a_gap_is_found_and_shown(profiles, phase, request_row):
    with pytest.raises(InputError, match=f"no profile covers this {phase} request") as caught:
        check_coverage(profiles)
    shown = next(line for line in str(caught.value).splitlines() if line.strip().startswith("request"))
    assert " ".join(shown.split()[1:]) == request_row


def test_two_ranges_that_meet_leave_no_gap():
    chat = load_profiles("chat")
    decode, prefill = chat.profiles
    low, high = replace(decode, kv=Range(1, 512, 1024)), replace(decode, kv=Range(1025, 1500, 2048))
    check_coverage(replace(chat, profiles=(low, high, prefill)))
    with pytest.raises(InputError, match="leave a gap"):
        check_coverage(replace(chat, profiles=(low, replace(high, kv=Range(1026, 1500, 2048)), prefill)))


def test_scoring_needs_every_batch_and_no_decode():
    scoring = load_profiles("batch-scoring")
    check_coverage(scoring)
    score = scoring.profiles[0]
    with pytest.raises(InputError, match="this scoring request"):
        check_coverage(replace(scoring, profiles=(replace(score, batch=Range(1, 4, 7)),)))


def test_no_single_row_means_no_prompt():
    chat = load_profiles("chat")
    wide = replace(chat.profiles[1], batch=Range(2, 2, 8))
    with pytest.raises(InputError, match="No profile of 'chat' admits a batch of 1"):
        check_coverage(replace(chat, profiles=(replace(chat.profiles[0], batch=Range(2, 4, 8)), wide)))


@given(profile_sets())
def test_coverage_agrees_with_trying_every_request(profiles):
    small = profiles.with_cache(min(profiles.slots, 4), min(profiles.capacity, 12)) if _fits(profiles) else None
    if small is None or all(profile.batch.min > 1 for profile in small.profiles):
        return
    requests = [(rows, 1, kv) for rows in range(1, small.slots + 1) for kv in range(1, small.capacity + 1)]
    chunk = small.prefill_chunk
    requests += [(1, tokens, kv) for tokens in range(1, chunk + 1) for kv in range(tokens, small.capacity + 1)]
    complete = all(any(profile.covers(*request) for profile in small.profiles) for request in requests)
    try:
        check_coverage(small)
    except InputError:
        assert not complete
    else:
        assert complete


def _fits(profiles: ProfileSet) -> bool:
    return all(p.batch.min <= 4 and p.tokens.min <= 12 and p.kv.min <= 12 for p in profiles.profiles)
