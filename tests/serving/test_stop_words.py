from __future__ import annotations

import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trtbuild.serving.stop_words import StopWords

LETTERS = st.text("ab😀", max_size=4)
WORDS = st.lists(st.text("ab😀", min_size=1, max_size=4), max_size=3).map(tuple)


def cut(pieces: list[str], words: tuple[str, ...], first: int = 0) -> str | None:
    """The text up to the stop word that is complete first, letter by letter; the first pieces end nothing."""
    text, ignored = "".join(pieces), len("".join(pieces[:first]))
    for end in range(ignored + 1, len(text) + 1):
        starts = [end - len(word) for word in words if text[:end].endswith(word)]
        if starts:
            return text[: min(starts)]
    return None


@settings(max_examples=300)
@given(st.lists(LETTERS, max_size=12), WORDS, st.integers(0, 12))
@example(["ab", "a", "bc"], ("ababc",), 0)
@example(["abcd"], ("bc", "abcd"), 0)
@example(["a", "b", "a"], ("ab", "b"), 2)
@example(["aa", "a"], ("aa",), 1)
def test_stop_words_cut_the_text_wherever_the_pieces_end(pieces: list[str], words: tuple[str, ...], first: int) -> None:
    stop, shown, text = StopWords(words), "", "".join(pieces)
    expected = cut(pieces, words, first)
    for place, piece in enumerate(pieces):
        shown += stop.push(piece, may_end=place >= first)
        # Nothing of a stop word is shown, and only what may yet become one is held back.
        assert (text if expected is None else expected).startswith(shown)
        if stop.found:
            break
        held = "".join(pieces[: place + 1])[len(shown) :]
        beginnings = [word[:length] for word in words for length in range(1, len(word))]
        assert held == max(filter((shown + held).endswith, beginnings), key=len, default="")
    shown += stop.finish()
    assert shown == (text if expected is None else expected)
    assert stop.found is (expected is not None)


@pytest.mark.parametrize(
    "words, pieces, shown",
    [
        (("END",), ["E", "N", "D"], ["", "", ""]),
        (("END",), ["E", "N", "d", "E"], ["", "", "ENd", "", "E"]),
        (("END",), ["xEN", "ENDy", "z"], ["x", "EN", ""]),
        (("aab",), ["a", "a", "a", "b"], ["", "", "a", ""]),
        # The one that is complete first wins; of two at the same place, the longer.
        (("bc", "abcd"), ["ab", "cd"], ["", "a"]),
        (("c", "abc"), ["ab", "cd"], ["", ""]),
    ],
)
def test_known_streams(words: tuple[str, ...], pieces: list[str], shown: list[str]) -> None:
    stop = StopWords(words)
    found = [stop.push(piece) for piece in pieces]
    if not stop.found:
        found.append(stop.finish())
    assert found == shown
    assert stop.push("more") == "" or not stop.found


def test_the_cost_of_a_character_depends_on_neither_words_nor_text() -> None:
    few, many = StopWords(("END",)), StopWords(tuple("a" * 999 + chr(1000 + i) for i in range(64)))
    times = []
    for stop in (few, many):
        start = time.perf_counter()
        for _ in range(3000):
            stop.push("aaab aaaa")
        times.append(time.perf_counter() - start)
    assert times[1] < 5 * times[0]  # 1.5 times
