from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.serving.conftest import byte_level_tokenizer
from trtbuild.serving.cache import SlotCache
from trtbuild.serving.sampling import Sampler, SamplingParams
from trtbuild.serving.scheduler import Decode, Prefill, Scheduler
from trtbuild.serving.sequence import Sequence, Status
from trtbuild.serving.text import Detokenizer, TokenBytes

TOKEN_BYTES = TokenBytes(byte_level_tokenizer())


def sequence(tokens: int) -> Sequence:
    prompt = np.zeros(tokens, np.int64)
    return Sequence(prompt, 100, Sampler(SamplingParams()), Detokenizer(TOKEN_BYTES), lambda output: None)


def make(
    *, slots: int = 2, capacity: int = 100, chunk: int = 4, waiting: int = 8, recompute_past: int | None = None
) -> tuple[Scheduler, SlotCache]:
    cache = SlotCache(slots, capacity)
    return Scheduler(cache, prefill_chunk=chunk, max_waiting=waiting, recompute_past=recompute_past), cache


def steps(scheduler: Scheduler, count: int) -> Iterator[str]:
    """Run `count` steps, each written as "slot:start-stop" for a prefill and "slot,slot" for a decode."""
    for _ in range(count):
        step = scheduler.schedule()
        if step is None:
            yield "idle"
            continue
        scheduler.commit(step)
        if isinstance(step, Prefill):
            yield f"{step.sequence.slot}:{step.start}-{step.stop}"
            if step.completes_prefix:
                scheduler.append(step.sequence, 0)
        else:
            yield ",".join(str(s.slot) for s in step.sequences)
            for s in step.sequences:
                scheduler.append(s, 0)


def test_a_long_prompt_alternates_with_decoding() -> None:
    scheduler, cache = make()
    scheduler.add(sequence(3))
    scheduler.add(sequence(10))
    assert list(steps(scheduler, 7)) == ["0:0-3", "0", "1:0-4", "0", "1:4-8", "0", "1:8-10"]
    assert list(steps(scheduler, 2)) == ["0,1", "0,1"]
    assert [cache.length(0), cache.length(1)] == [3 + 5, 10 + 2]


def test_short_prompts_share_the_place_of_a_chunk() -> None:
    scheduler, _ = make(slots=4)
    for tokens in (1, 2, 2, 2):
        scheduler.add(sequence(tokens))
    # Nothing decodes at first, so nobody waits for the first prompt; then 2 and 2 tokens fit a chunk of 4 with its 1.
    assert list(steps(scheduler, 6)) == ["0:0-1", "1:0-2", "0,1", "2:0-2", "3:0-2", "0,1,2,3"]


def test_slots_go_in_order_of_arrival() -> None:
    scheduler, cache = make(slots=2)
    first, second, third, fourth = (sequence(1) for _ in range(4))
    for s in (first, second, third, fourth):
        scheduler.add(s)
    list(steps(scheduler, 3))
    assert [s.status for s in (first, second, third, fourth)] == [Status.DECODE] * 2 + [Status.WAITING] * 2
    scheduler.finish(third)  # cancelled while waiting
    scheduler.finish(second)
    list(steps(scheduler, 1))
    assert (second.slot, fourth.slot, fourth.status) == (-1, 1, Status.DECODE)
    assert list(scheduler.sequences()) == [first, fourth]
    for s in (first, fourth):
        scheduler.finish(s)
    assert scheduler.is_idle and cache.free_slots == 2 and list(steps(scheduler, 1)) == ["idle"]


def test_waiting_is_bounded_beyond_the_free_slots() -> None:
    scheduler, _ = make(slots=2, waiting=1)
    for _ in range(3):
        assert scheduler.has_room
        scheduler.add(sequence(1))
    assert not scheduler.has_room
    with pytest.raises(OverflowError, match="3 sequences wait already"):
        scheduler.add(sequence(1))
    scheduler.schedule()
    assert not scheduler.has_room  # two of them have the slots now, and one place is taken


def test_a_sequence_that_grows_past_the_bound_is_prefilled_anew_beside_the_others() -> None:
    scheduler, cache = make(recompute_past=6)
    beside, grows = sequence(7), sequence(5)
    scheduler.add(beside)
    scheduler.add(grows)
    assert list(steps(scheduler, 6)) == ["0:0-4", "0:4-7", "0", "1:0-4", "0", "1:4-5"]
    # This step fills the sixth position of slot 1, and the token chosen after it is its seventh.
    assert list(steps(scheduler, 1)) == ["0,1"]
    assert (grows.slot, grows.status, len(grows.output), cache.length(1)) == (1, Status.PREFILL, 2, 0)
    assert list(steps(scheduler, 5)) == ["1:0-4", "0", "1:4-7", "0,1", "0,1"]
    assert (len(grows.output), cache.length(1)) == (5, 9)


def test_what_is_longer_from_the_start_is_never_prefilled_anew() -> None:
    scheduler, _ = make(slots=2, chunk=8, recompute_past=6)
    scheduler.add(sequence(7))
    assert list(steps(scheduler, 5)) == ["0:0-7", "0", "0", "0", "0"]
    scheduler.add(sequence(6))  # its first token is its seventh
    assert list(steps(scheduler, 4)) == ["1:0-6", "0", "1:0-7", "0,1"]


def test_a_sequence_that_ends_where_it_would_be_prefilled_anew_is_over() -> None:
    scheduler, cache = make(recompute_past=4)
    last = sequence(4)
    scheduler.add(last)
    assert list(steps(scheduler, 1)) == ["0:0-4"]
    scheduler.finish(last)
    assert scheduler.is_idle and cache.free_slots == 2 and last.status is Status.FINISHED


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 12)), min_size=1, max_size=12),
    st.integers(1, 6),
    st.none() | st.integers(1, 35),
)
def test_everybody_is_served_whole_and_decoding_never_pauses_for_long(
    work: list[tuple[int, int]], chunk: int, bound: int | None
) -> None:
    scheduler, cache = make(slots=3, chunk=chunk, waiting=20, recompute_past=bound)
    wanted = {}
    for prompt, answer in work:
        s = sequence(prompt)
        wanted[s] = answer
        scheduler.add(s)
    prefilled = dict.fromkeys(wanted, 0)
    admitted: list[Sequence] = []
    restarted: list[Sequence] = []
    since_decode = 0
    while (step := scheduler.schedule()) is not None:
        for s in wanted:
            if s.slot >= 0 and s not in admitted:
                admitted.append(s)
        if isinstance(step, Prefill):
            assert step.start == prefilled[step.sequence] == cache.length(step.sequence.slot)
            assert 0 < step.stop - step.start <= chunk
            prefilled[step.sequence] = step.stop
            decoding = any(s.status is Status.DECODE for s in wanted)
            since_decode = since_decode + step.stop - step.start if decoding else 0
            assert since_decode <= chunk
        else:
            assert isinstance(step, Decode)
            assert [s.slot for s in step.sequences] == sorted(s.slot for s in step.sequences)
            assert set(step.sequences) == {s for s in wanted if s.status is Status.DECODE}
            since_decode = 0
        scheduler.commit(step)
        ready = [step.sequence] if isinstance(step, Prefill) else step.sequences
        for s in ready:
            if s.status is Status.DECODE:
                scheduler.append(s, 0)
                if len(s.output) == wanted[s]:
                    scheduler.finish(s)
                elif s.status is Status.PREFILL:
                    assert len(s.prompt) + len(s.output) == len(s.prefix) == (bound or 0) + 1
                    restarted.append(s)
                    prefilled[s] = 0
    assert admitted == list(wanted)
    assert all(len(s.output) == answer for s, answer in wanted.items())
    # Those that begin within the bound and take another token after the one that brings them past it.
    assert len(restarted) == len(set(restarted))
    assert set(restarted) == {s for s in wanted if bound and len(s.prompt) <= bound < len(s.prompt) + wanted[s] - 1}
    for s in wanted:
        assert prefilled[s] == len(s.prompt) or prefilled[s] == (bound or 0) + 1
    assert cache.free_slots == 3
