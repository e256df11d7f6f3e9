"""Finds stop words in a text that comes in pieces, and holds back what may yet become one."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class StopWords:
    """Finds the stop word that is complete first; of several complete at the same character, the longest.

    An automaton (Aho and Corasick 1975, Efficient String Matching) whose state is the longest end of the text that
    begins a stop word, so a character costs the same whatever the words and the text are.
    """

    __slots__ = ("_complete", "_depth", "_fallback", "_held", "_next", "_state", "found")

    def __init__(self, words: Sequence[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        """For each state, the state that a character leads to; state 0 is the empty text."""
        self._depth = [0]
        """For each state, its number of characters."""
        self._complete = [0]
        """For each state, the length of the longest stop word that it ends with."""
        self._fallback = [0]
        """For each state, that of the longest shorter end of its text that begins a stop word."""
        for word in words:
            self._add(word)
        self._link()
        self._state = 0
        self._held = ""
        self.found = False

    def push(self, text: str, *, may_end: bool = True) -> str:
        """The text that is safe to show now that `text` has come; once `found`, nothing more is.

        A word counts if it is complete in a `text` that `may_end`, wherever it began.
        """
        if self.found:
            return ""
        if not self._next[0]:
            return text
        seen = self._held + text
        for place, character in enumerate(text, start=len(self._held) + 1):
            self._state = self._after(self._state, character)
            length = self._complete[self._state]
            if length and may_end:
                self.found = True
                self._held = ""
                return seen[: place - length]
            while not self._next[self._state]:  # complete, and nothing longer begins with it
                self._state = self._fallback[self._state]
        safe = len(seen) - self._depth[self._state]
        self._held = seen[safe:]
        return seen[:safe]

    def finish(self) -> str:
        """What was held back: the text ended before it became a stop word."""
        held, self._held, self._state = self._held, "", 0
        return held

    def _after(self, state: int, character: str) -> int:
        """The state that `character` leads to from `state`."""
        while state and character not in self._next[state]:
            state = self._fallback[state]
        return self._next[state].get(character, 0)

    def _add(self, word: str) -> None:
        state = 0
        for character in word:
            if character not in self._next[state]:
                self._next[state][character] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._complete.append(0)
                self._fallback.append(0)
            state = self._next[state][character]
        self._complete[state] = len(word)

    def _link(self) -> None:
        """Set the fallbacks of all states, the shorter ones first, since each builds on them."""
        waiting = deque([0])
        while waiting:
            state = waiting.popleft()
            for character, longer in self._next[state].items():
                waiting.append(longer)
                self._fallback[longer] = self._after(self._fallback[state], character) if state else 0
                self._complete[longer] = max(self._complete[longer], self._complete[self._fallback[longer]])
