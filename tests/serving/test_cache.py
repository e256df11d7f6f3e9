from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtbuild.serving.cache import Copy, KVCache, Table
from trtbuild.serving.errors import OutOfPages
from trtbuild.serving.eviction import LruK


def filled(cache: KVCache, tokens: list[int], now: float = 0.0) -> tuple[Table, list[Copy]]:
    """A table whose tokens are all in the cache."""
    table = Table(tokens)
    copies = cache.open(table, now)
    table.length = len(tokens)
    cache.register(table)
    return table, copies


def used(cache: KVCache, tokens: list[int], now: float = 0.0, priority: int = 1) -> None:
    """A request came and went."""
    cache.close(filled(cache, tokens, now)[0], now, priority)


def test_full_pages_are_shared_and_the_last_one_is_copied_before_it_is_written() -> None:
    cache = KVCache(8, 32)
    first, _ = filled(cache, list(range(100)))
    second = Table([*range(90), 7, 7])
    copies = cache.open(second, 0.0)
    assert first.pages == [0, 1, 2, 3] and second.pages == [0, 1, 4] and second.length == 80
    assert copies == [Copy(2, 4, 16)]
    cache.check([first, second])
    cache.close(first, 0.0, 1)
    cache.close(second, 0.0, 1)
    cache.check([])
    assert cache.available == 8 and cache.held == 4  # page 3 had no whole block


def test_the_last_token_is_never_taken_from_the_cache() -> None:
    cache = KVCache(8, 32)
    used(cache, list(range(64)))
    table = Table(list(range(64)))
    cache.open(table, 0.0)
    assert table.length == 48


def test_blocks_are_alike_only_behind_the_same_beginning_and_salt() -> None:
    cache = KVCache(8, 32)
    used(cache, [1] * 48)
    for tokens, salt in (([2] * 16 + [1] * 32, b""), ([1] * 48, b"long")):
        table = Table(tokens, salt)
        cache.open(table, 0.0)
        assert table.length == 0
        cache.close(table, 0.0, 1)
    table = Table([1] * 48)
    cache.open(table, 0.0)
    assert table.length == 32


def test_a_slot_that_nobody_uses_is_taken_over_and_one_in_use_is_copied() -> None:
    cache = KVCache(3, 128)
    first, copies = filled(cache, list(range(64)))
    assert first.pages == [0] and copies == []
    second, copies = filled(cache, [*range(48), 9, 9])
    assert second.pages == [1] and copies == [Copy(0, 1, 48)]
    cache.close(first, 1.0, 1)
    third, copies = filled(cache, [*range(64), 5])
    assert third.pages == [0] and copies == [] and third.length == 65
    cache.check([second, third])


def test_a_long_slot_is_not_given_up_for_a_short_beginning_while_there_is_room() -> None:
    cache = KVCache(2, 128)
    used(cache, list(range(120)))
    other, copies = filled(cache, [*range(32), 9, 9])
    assert copies == [Copy(0, 1, 32)] and other.pages == [1]
    again = Table(list(range(112)))
    assert cache.open(again, 0.0) == [] and again.length == 96 and again.pages == [0]
    cache.close(again, 0.0, 1)
    last, copies = filled(cache, [*range(32), 8, 8])
    assert last.pages == [0] and copies == []  # no other page: better to take it over than to lose it all


def test_slots_in_use_stay_together_and_what_is_held_moves_for_it() -> None:
    """Five slots hold a prompt each, the first the oldest. The last is used again; another prompt comes: it takes the
    slot beside it, whose prompt moves to the oldest's."""
    cache = KVCache(5, 128, together=True)
    prompts = [[number] * 40 for number in range(5)]
    tables = [filled(cache, prompt, float(number))[0] for number, prompt in enumerate(prompts)]
    for number, table in enumerate(tables):
        cache.close(table, float(number), 1)
    again = Table([*prompts[4], 9])
    assert cache.open(again, 5.0) == [] and again.pages == [4]
    other = Table([7] * 20)
    assert cache.open(other, 5.0) == [Copy(3, 0, 32)] and other.pages == [3]
    cache.check([again, other])
    moved = Table([*prompts[3], 9])
    assert cache.open(moved, 6.0) == [] and moved.pages == [0] and moved.length == 32
    last = Table([8] * 20)  # between those in use any is near enough: the oldest
    assert cache.open(last, 6.0) == [] and last.pages == [1]
    cache.check([again, other, moved, last])


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_what_a_table_finds_is_what_was_written(data: st.DataObject) -> None:
    """A memory that does what the bookkeeping says, of slots or pages: of every table, the filled positions hold its
    own tokens."""
    slots = data.draw(st.booleans())
    pages, size = (6, 128) if slots else (24, 32)
    cache = KVCache(pages, size, together=slots and data.draw(st.booleans()))
    memory = np.full((pages, size), -1)
    source = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    tables: list[Table] = []
    for now in range(150):
        if tables and source.random() < 0.45:
            table = tables.pop(source.integers(len(tables)))
            if source.random() < 0.1:
                cache.discard(table)
            else:
                cache.close(table, now, int(source.integers(1, 4)))
        else:
            table = Table((source.integers(0, 3) + np.arange(source.integers(1, 120)) // 48).tolist())
            try:
                copies = cache.open(table, now)
            except OutOfPages:
                continue
            for copy in copies:
                memory[copy.target, : copy.rows] = memory[copy.source, : copy.rows]
            for position in range(table.length, len(table.tokens)):
                memory[table.pages[position // size], position % size] = table.tokens[position]
            table.length = len(table.tokens)
            cache.register(table)
            tables.append(table)
        cache.check(tables)
        for table in tables:
            written = memory[table.pages].ravel()[: table.length]
            assert written.tolist() == table.tokens[: table.length]


def test_without_room_nothing_changes() -> None:
    cache = KVCache(4, 16)
    first, _ = filled(cache, list(range(40)))
    table = Table(list(range(33)) + [7] * 30)
    with pytest.raises(OutOfPages, match="2 pages are needed and 1 of 4 can be had"):
        cache.open(table, 0.0)
    assert table.pages == []
    cache.check([first])


def test_reuse_can_be_switched_off() -> None:
    cache = KVCache(4, 100, reuse=False)
    used(cache, list(range(64)))
    table = Table(list(range(64)))
    cache.open(table, 0.0)
    assert table.length == 0 and cache.held == 0
    with pytest.raises(ValueError, match="pages of 100 positions are not made of blocks of 16"):
        KVCache(4, 100)


def test_hashes_do_not_collide_where_pythons_do() -> None:
    """hash(-1) == hash(-2) in Python, and hash of a tuple follows from its items'."""
    cache = KVCache(4, 16)
    used(cache, [-1] * 16 + [5])
    table = Table([-2] * 16 + [5])
    cache.open(table, 0.0)
    assert table.length == 0


def test_pages_used_twice_outlive_those_used_once() -> None:
    """LRU-2: a long prompt that comes once does not push out what two requests began with."""
    cache = KVCache(6, 16)
    used(cache, [1] * 33, now=1.0)
    used(cache, [1] * 33, now=2.0)
    used(cache, [2] * 49, now=3.0)
    assert cache.held == 5
    used(cache, [3] * 33, now=4.0)
    shared, once = Table([1] * 33), Table([2] * 49)
    cache.open(shared, 5.0)
    assert shared.length == 32
    cache.close(shared, 5.0, 1)
    cache.open(once, 5.0)
    assert once.length == 16  # its last two pages went, and not its first


def test_an_urgent_requests_pages_may_be_older() -> None:
    """Ages over weights: with a weight of 2 a level, 60 s of priority 1 count as much as 30 s of priority 2."""
    queue = LruK(window=10.0)
    queue.add(1, 0.0, priority=1, depth=0)
    queue.add(2, 25.0, priority=2, depth=0)
    assert queue.oldest(30.0) == 1  # 40 against 30
    queue.add(3, 15.0, priority=3, depth=0)
    assert queue.oldest(30.0) == 3  # 100
    queue.take(3)
    queue.take(1)
    assert queue.oldest(30.0) == 2 and len(queue) == 1


def test_uses_before_the_window_do_not_count() -> None:
    queue = LruK(window=10.0)
    for page, times in ((1, (0.0, 8.0)), (2, (9.0,)), (3, (7.0, 12.0))):
        for now in times:
            queue.use(page, now, 1, 0)
        queue.add(page, times[-1], 1, 0)
        queue.take(page)
    for page, now in ((1, 8.5), (3, 12.5)):
        queue.add(page, now, 1, 0)
    queue.add(2, 9.5, 1, 0)
    # At 13: every page has two uses within the window; 1's second to last is the oldest.
    assert queue.oldest(13.0) == 1
    # At 19.2 page 1's is out of the window: it counts as used once, at 8.5.
    assert queue.oldest(19.2) == 1
    queue.take(1)
    assert queue.oldest(30.0) == 2


def test_a_page_that_comes_and_goes_leaves_no_trail() -> None:
    queue = LruK()
    queue.add(0, 0.0, 1, 0)
    for turn in range(10_000):
        queue.add(1, float(turn), 1, 0)
        queue.take(1)
    assert sum(len(heap) for heaps in (queue._hot, queue._cold) for heap in heaps.values()) < 200
