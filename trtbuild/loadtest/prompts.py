"""Prompts of a wanted length, cut from a text.

Every prompt begins with a word of its own, so that no two share a beginning that a prefix cache would know, unless a
shared prefix is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import numpy as np

from trtbuild.errors import InputError
from trtbuild.files import read_text
from trtbuild.yaml_file import built_in_folder

CountTokens = Callable[[str], int]

TOKENS_PER_WORD = 1.3
"""Of English prose, about: for a server whose tokenizer is not at hand."""
_FILLER = " the"
"""One token for nearly every tokenizer."""
_TRIES = 6
_LEAST_WITH_TAG = 12
"""Shorter prompts have no room for a word of their own, which may take eight tokens."""


def count_by_words(text: str) -> int:
    """How many tokens `text` has, by its words."""
    return math.ceil(len(text.split()) * TOKENS_PER_WORD)


def load_text(file: Path | None) -> str:
    """The text that prompts are cut from: `file`, or the calibration's prose. Raises InputError."""
    text = read_text(file or built_in_folder("calibration") / "prose.txt", "--text")
    if not text.split():
        raise InputError(f"--text {file} holds no words.")
    return text


class PromptMaker:
    """Cuts prompts from `text`, whose lines of --- only divide it."""

    def __init__(self, text: str, count_tokens: CountTokens) -> None:
        self._words = [word for word in text.split() if word.strip("-")] or text.split()
        self._count = count_tokens

    def make(self, rng: np.random.Generator, tokens: int, prefix: str = "") -> str:
        """A text that has `tokens` tokens, or nearly so, beside those of `prefix`, with which it begins."""
        begin = int(rng.integers(len(self._words)))
        tag = f"{rng.integers(2**32):08x}" if tokens >= _LEAST_WITH_TAG else ""
        if not prefix:
            return self._fitted(tag, begin, tokens)
        prefix = f"{prefix}\n\n"
        return self._fitted(prefix + tag, begin, tokens + self._count(prefix))

    def _fitted(self, head: str, begin: int, tokens: int) -> str:
        """Words from `begin` on behind `head`: as many as fit, then fillers."""
        words = max(1, int((tokens - self._count(head)) / self._tokens_per_word))
        best = ""
        for _ in range(_TRIES):
            text = self._joined(head, begin, words)
            left = tokens - self._count(text)
            if left >= 0 and len(text) > len(best):
                best = text
            if 0 <= left < self._tokens_per_word:
                break
            words = max(1, words + math.floor(left / self._tokens_per_word))
        best = best or head or _FILLER.strip()
        return best + _FILLER * max(0, tokens - self._count(best))

    def _joined(self, head: str, begin: int, words: int) -> str:
        """The text goes round when it ends."""
        taken = [self._words[place % len(self._words)] for place in range(begin, begin + words)]
        return " ".join([head, *taken] if head else taken)

    @cached_property
    def _tokens_per_word(self) -> float:
        sample = self._words[:2000]
        return max(0.5, self._count(" ".join(sample)) / len(sample))
