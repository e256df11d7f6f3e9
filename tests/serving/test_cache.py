from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtbuild.serving.cache import SlotCache


def test_the_lowest_free_slot_is_given() -> None:
    cache = SlotCache(3, 10)
    assert [cache.allocate() for _ in range(4)] == [0, 1, 2, None]
    cache.free(2)
    cache.free(0)
    assert [cache.allocate(), cache.allocate(), cache.allocate()] == [0, 2, None]


def test_lengths_belong_to_the_owner() -> None:
    cache = SlotCache(2, 10)
    slot = cache.allocate()
    assert slot == 0
    cache.extend(0, 4)
    cache.extend(0, 6)
    assert cache.length(0) == 10 and cache.is_full(0) and not cache.is_full(1)
    with pytest.raises(ValueError, match="slot 0 holds 10 positions, 11 were wanted"):
        cache.extend(0, 1)
    assert cache.length(0) == 10
    cache.empty(0)
    assert cache.length(0) == 0 and cache.free_slots == 1
    with pytest.raises(KeyError):
        cache.empty(1)
    cache.free(0)
    assert cache.length(0) == 0
    with pytest.raises(KeyError):
        cache.free(0)
    with pytest.raises(KeyError):
        cache.extend(0, 1)


@given(st.lists(st.integers(0, 7), max_size=60))
def test_accounts_are_exact(actions: list[int]) -> None:
    cache, owned = SlotCache(4, 5), {}
    for action in actions:
        if action < 4 and action in owned:
            cache.free(action)
            del owned[action]
        elif action < 6:
            slot = cache.allocate()
            assert slot == min(set(range(4)) - set(owned), default=None)
            if slot is not None:
                owned[slot] = 0
        else:
            for slot in owned:
                if not cache.is_full(slot):
                    cache.extend(slot, 1)
                    owned[slot] += 1
        assert cache.free_slots == 4 - len(owned)
        assert [cache.length(slot) for slot in range(4)] == [owned.get(slot, 0) for slot in range(4)]
