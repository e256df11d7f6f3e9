from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtbuild.serving.cache import KVCache
from trtbuild.serving.config import Level
from trtbuild.serving.errors import Unavailable
from trtbuild.serving.scheduler import Plan, Policy, Scheduler
from trtbuild.serving.sequence import Sequence, Status

LEVELS = (Level(8, 10.0), Level(8, 100.0), Level(8, 1000.0))
POLICY = Policy(batch=2, prefill=32, tokens=64, levels=LEVELS, least_prefill=4, mixes=True)
SLOT = 128


def make(pages: int = 2, page_size: int = SLOT, reuse: bool = True, **changes: Any) -> Scheduler:
    policy = replace(POLICY, **changes)
    return Scheduler(KVCache(pages, page_size, reuse=reuse, together=not policy.mixes), policy)


def sequence(tokens: int | list[int], limit: int = 100, **fields: Any) -> Sequence:
    """Prompts given by their length begin with different tokens."""
    if isinstance(tokens, int):
        sequence.seed = getattr(sequence, "seed", 0) + 1  # type: ignore[attr-defined]
        tokens = [sequence.seed, *range(tokens - 1)]  # type: ignore[attr-defined]
    return Sequence(tokens, limit, **fields)


def step(scheduler: Scheduler, now: float = 0.0, seconds: float = 0.0) -> Plan | None:
    """Plan, run and commit a step; every complete row gets token 7."""
    plan = scheduler.plan(now)
    scheduler.check()
    if plan is not None:
        complete = [row.sequence for row in plan.rows if row.completes]
        scheduler.commit(plan, now + seconds)
        for each in complete:
            scheduler.append(each, 7)
            if each.remaining <= 0:
                scheduler.finish(each)
        scheduler.check()
    return plan


def rows(plan: Plan | None) -> list[tuple[int, int, int]]:
    """(order of arrival, start, tokens) of each row."""
    assert plan is not None
    return [(row.sequence.order, row.start, row.size) for row in plan.rows]


def test_a_long_prompt_goes_beside_the_answers_in_chunks() -> None:
    scheduler = make()
    scheduler.add(sequence(3))
    scheduler.add(sequence(70))
    assert rows(step(scheduler)) == [(1, 0, 3), (2, 0, 29)]
    assert rows(step(scheduler)) == [(2, 29, 32), (1, 3, 1)]
    assert rows(step(scheduler)) == [(2, 61, 9), (1, 4, 1)]
    assert rows(step(scheduler)) == [(1, 5, 1), (2, 70, 1)]


def test_a_crumb_of_a_prompt_waits_for_the_next_step() -> None:
    scheduler = make()
    scheduler.add(sequence(29))
    scheduler.add(sequence(70))
    assert rows(step(scheduler)) == [(1, 0, 29)]  # 3 are left, and 4 are the least
    assert rows(step(scheduler)) == [(2, 0, 32), (1, 29, 1)]


def test_the_most_urgent_is_next_and_within_a_priority_the_earliest_deadline() -> None:
    scheduler = make(pages=1, batch=1)
    first = sequence(2, limit=1, priority=1)
    for each in (
        first,
        sequence(2, limit=1, priority=3),
        sequence(2, limit=1, priority=2),
        sequence(2, limit=1, priority=2, deadline=5.0),
    ):
        scheduler.add(each)
    ran = [rows(step(scheduler))[0][0] for _ in range(4)]
    assert ran == [1, 4, 3, 2] and step(scheduler) is None and scheduler.is_idle


def test_one_that_waited_too_long_for_its_objective_lets_others_pass_and_is_told_in_the_end() -> None:
    """A tenth of a second is left for prompts of the second priority; the third knows no objective."""
    levels = (LEVELS[0], Level(8, 5.0, ttft_objective=0.5), LEVELS[2])
    scheduler = make(pages=1, batch=1, levels=levels)
    first = sequence(2)
    late, overtaking = sequence(2, limit=1, priority=2), sequence(2, limit=1, priority=2, arrival=0.2)
    latest, least = sequence(2, priority=2), sequence(2, priority=3)
    for each in (first, late, overtaking, latest, least):
        scheduler.add(each)
    step(scheduler, 0.0)
    scheduler.finish(first)
    assert rows(step(scheduler, 0.41)) == [(3, 0, 2)]
    assert rows(step(scheduler, 0.42)) == [(2, 0, 2)]
    assert len(scheduler.waiting) == 2 and scheduler.expire(4.9) == [] and scheduler.expire(5.1) == [latest]
    assert rows(step(scheduler, 5.2)) == [(5, 0, 2)]


def test_more_than_may_wait_are_refused_by_priority() -> None:
    scheduler = make()
    for _ in range(8):
        scheduler.add(sequence(2, priority=3))
    with pytest.raises(Unavailable, match="8 requests of priority 3 wait already"):
        scheduler.add(sequence(2, priority=3))
    scheduler.add(sequence(2, priority=1))
    step(scheduler)
    scheduler.add(sequence(2, priority=3))  # one of the eight runs


def test_who_is_not_started_in_time_is_told() -> None:
    scheduler = make(pages=1, batch=1)
    running, short, long = sequence(2), sequence(2, deadline=3.0), sequence(2, priority=1)
    scheduler.add(running)
    step(scheduler, now=1.0)
    scheduler.add(short)
    assert scheduler.expire(2.9) == []
    assert scheduler.expire(3.1) == [short] and short.status is Status.FINISHED
    long.arrival = 4.0
    scheduler.add(long)
    assert long.deadline == 14.0  # its level's timeout
    assert scheduler.expire(1000.0) == [long]  # a clock that jumps ends the wait, and not what runs
    assert running.status is Status.RUNNING and scheduler.expire(-5.0) == []
    assert rows(step(scheduler, now=-5.0)) == [(1, 2, 1)]


def test_the_more_urgent_takes_the_place_of_the_less_urgent() -> None:
    scheduler = make(reuse=False)
    low = [sequence(20, priority=3), sequence(30, priority=3)]
    for each in low:
        scheduler.add(each)
    step(scheduler), step(scheduler)
    scheduler.add(sequence(10, priority=1))
    assert rows(step(scheduler)) == [(3, 0, 10), (2, 30, 1)]  # the shorter one is cheaper to compute again
    assert low[0].status is Status.WAITING and scheduler.preemptions == 1
    while step(scheduler):
        pass
    assert all(each.generated == 100 for each in low) and scheduler.cache.available == 2


def test_a_place_that_falls_free_at_once_is_waited_for() -> None:
    scheduler = make(pages=1, batch=1, reuse=False)
    low = sequence(32, limit=6, priority=3)
    scheduler.add(low)
    step(scheduler, now=0.0, seconds=3.2)
    for i in range(3):
        step(scheduler, now=4.0 + i, seconds=0.1)
    scheduler.add(sequence(2, priority=1))
    # Two tokens are left: 0.2 s, and computing it again would take 3.5 s.
    assert rows(step(scheduler, now=8.0, seconds=0.1)) == [(1, 35, 1)]
    assert rows(step(scheduler, now=8.1, seconds=0.1)) == [(1, 36, 1)]
    assert rows(step(scheduler, now=8.2, seconds=0.1)) == [(2, 0, 2)] and scheduler.preemptions == 0


@pytest.mark.parametrize(("limit", "waits"), [(20, True), (100, False)])
def test_nobody_is_preempted_for_one_that_keeps_to_its_objective_all_the_same(limit: int, waits: bool) -> None:
    """An answer's token takes 0.1 s. Of an objective of 5 s one may wait 2.5: for 16 tokens, and not for 96."""
    levels = (replace(LEVELS[0], ttft_objective=5.0), *LEVELS[1:])
    scheduler = make(pages=8, batch=1, reuse=False, levels=levels)
    low = sequence(2, limit=limit, priority=3)
    scheduler.add(low)
    step(scheduler, now=0.0, seconds=0.01)
    for i in range(3):
        step(scheduler, now=1.0 + i, seconds=0.1)
    scheduler.add(sequence(2, priority=1, arrival=10.0))
    step(scheduler, now=10.0, seconds=0.1)
    assert (low.status is Status.RUNNING) is waits and scheduler.preemptions == (not waits)
    if waits:  # nothing was computed for a while: 1.5 s are needed, and 1.4 are left
        step(scheduler, now=11.1)
        assert low.status is Status.WAITING and scheduler.preemptions == 1


def test_what_was_preempted_goes_on_from_what_is_left_in_the_cache() -> None:
    scheduler = make(pages=12, page_size=16, batch=1)
    low = sequence(40, priority=3)
    scheduler.add(low)
    for _ in range(9):
        step(scheduler)
    assert len(low.tokens) == 40 + 8  # 32, 8 and 7 tokens in the cache
    scheduler.add(sequence(8, limit=1, priority=1))
    step(scheduler)
    assert low.status is Status.WAITING
    assert rows(step(scheduler))[0] == (1, 32, 16)


def test_one_that_waited_too_long_is_started_out_of_turn_and_stays() -> None:
    scheduler = make(pages=1, batch=1, patience=30.0)
    low = sequence(2, limit=3, priority=3)
    scheduler.add(low)
    now = 0.0
    while low.started is None:
        scheduler.add(sequence(2, limit=3, priority=1, arrival=now))
        assert now < 60, "it starves"
        for _ in range(3):
            now += 1.0
            step(scheduler, now)
    assert 30 < low.started < 35
    scheduler.add(sequence(2, limit=3, priority=1, arrival=now))
    while low.status is Status.RUNNING:
        step(scheduler, now)
    assert low.generated == 3 and low.preemptions == 0


def test_the_budget_halves_over_the_objective_and_grows_back() -> None:
    scheduler = make(pages=4, page_size=4096, batch=4, prefill=512, tokens=600, itl_objective=0.1, least_prefill=16)
    scheduler.add(sequence(4, limit=100_000))
    step(scheduler)
    scheduler.add(sequence(4000))
    taken = []
    now = 0.0
    for _ in range(6):
        plan = scheduler.plan(now)
        assert plan is not None
        taken.append(plan.prefill)
        now += 0.001 * (plan.prefill + 1)  # a millisecond for each token
        scheduler.commit(plan, now)
        for row in [row for row in plan.rows if row.completes]:
            scheduler.append(row.sequence, 7)
    assert taken == [512, 256, 128, 64, 64, 64]
    for _ in range(16):
        step(scheduler, now)
    assert scheduler.budget.tokens == 64 + (512 - 16) // 16


def test_in_the_native_form_an_answer_waits_for_a_more_urgent_prompt_but_not_for_long() -> None:
    scheduler = make(pages=2, mixes=False, itl_objective=0.1, prefill=8)
    scheduler.add(sequence(4, priority=2))
    step(scheduler)
    scheduler.add(sequence(120, priority=1, arrival=0.0))
    assert rows(step(scheduler, now=0.1)) == [(2, 0, 8)]
    assert rows(step(scheduler, now=0.3)) == [(2, 8, 8)]
    assert rows(step(scheduler, now=0.5)) == [(2, 16, 8), (1, 4, 1)]  # 0.4 s: two objectives for its priority
    scheduler = make(pages=2, mixes=False, itl_objective=0.1, prefill=8)
    scheduler.add(sequence(4))
    step(scheduler)
    scheduler.add(sequence(60))
    assert rows(step(scheduler)) == [(2, 0, 8), (1, 4, 1)]  # of one priority, neither waits


def test_without_pages_the_newest_gives_way() -> None:
    scheduler = make(pages=4, page_size=16, batch=4, reuse=False)
    old, new = sequence(30), sequence(30)
    scheduler.add(old), scheduler.add(new)
    for _ in range(5):
        step(scheduler)
    assert (old.status, new.status) == (Status.RUNNING, Status.WAITING)
    assert scheduler.preemptions == 1


def test_keys_for_another_length_are_computed_again_and_not_shared() -> None:
    scheduler = make(pages=8, page_size=16, recompute_past=34)
    prompt = list(range(33))
    first = sequence(list(prompt), limit=5)
    scheduler.add(first)
    assert rows(step(scheduler)) == [(1, 0, 32)]
    assert [rows(step(scheduler)) for _ in range(2)] == [[(1, 32, 1)], [(1, 33, 1)]]
    assert first.table.length == 0 and len(first.tokens) == 35
    assert rows(step(scheduler)) == [(1, 0, 32)]  # nothing of the shorter kind fits
    other = sequence(list(prompt), limit=1)
    scheduler.add(other)
    step(scheduler)
    assert other.cached == 32  # but a shorter one finds it


def test_a_failed_sequence_leaves_nothing_to_be_found() -> None:
    scheduler = make(pages=8, page_size=16)
    prompt = list(range(40))
    first = sequence(list(prompt))
    scheduler.add(first)
    step(scheduler)
    assert scheduler.fail(first) == [0, 1, 2]
    scheduler.check()
    second = sequence(list(prompt))
    scheduler.add(second)
    assert rows(step(scheduler)) == [(2, 0, 32)] and second.cached == 0


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_whatever_comes_everything_ends_and_the_books_are_right(data: st.DataObject) -> None:
    """Random arrivals of every priority, cancellations, failures and a clock that jumps, over slots or pages."""
    paged = data.draw(st.booleans())
    pages, size = (data.draw(st.integers(8, 20)), 16) if paged else (data.draw(st.integers(1, 4)), SLOT)
    levels = tuple(replace(level, ttft_objective=data.draw(st.sampled_from([None, 0.1, 5.0]))) for level in LEVELS)
    scheduler = make(pages, size, batch=data.draw(st.integers(1, 5)), mixes=paged, patience=5.0, levels=levels)
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    alive: list[Sequence] = []
    now, total = 0.0, 0
    for tick in range(400):
        now += float(generator.choice([0.0, 0.01, 1.0, -3.0], p=[0.3, 0.6, 0.09, 0.01]))
        if tick < 150 and generator.random() < 0.3:
            tokens = generator.integers(0, 3, generator.integers(1, 100)).tolist()
            each = sequence(tokens, int(generator.integers(1, 20)), priority=int(generator.integers(1, 4)), arrival=now)
            try:
                scheduler.add(each)
                alive.append(each)
                total += 1
            except Unavailable:
                pass
        scheduler.expire(now)
        if alive and generator.random() < 0.05:
            scheduler.finish(alive[generator.integers(len(alive))])
        if scheduler.running and generator.random() < 0.02:
            scheduler.fail(scheduler.running[0])
        plan = step(scheduler, now, 0.01)
        if plan is not None:
            assert plan.prefill <= POLICY.prefill and len({id(row.sequence) for row in plan.rows}) == len(plan.rows)
            assert sum(row.size for row in plan.rows) <= POLICY.tokens
        alive = [each for each in alive if each.status is not Status.FINISHED]
    for _ in range(5000):
        if not alive:
            break
        step(scheduler, now, 0.01)
        now += 0.02
        alive = [each for each in alive if each.status is not Status.FINISHED]
    assert not alive and scheduler.is_idle and scheduler.cache.available == pages
