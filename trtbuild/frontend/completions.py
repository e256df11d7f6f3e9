"""OpenAI's form of text completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trtbuild.frontend.forms import steps
from trtbuild.frontend.tokens import Offsets, Tokens
from trtbuild.triton.generation import Chunk


class CompletionForm:
    """A `Form`: log probabilities are four lists, one entry a token."""

    id_prefix = "cmpl"
    object = "text_completion"
    event_object = "text_completion"

    def __init__(self, tokens: Tokens | None, echo: Sequence[str], n: int) -> None:
        """`tokens` if log probabilities are wanted; `echo`, if not empty, has the prompt that each of `n` answers of
        each prompt begins with."""
        self._tokens = tokens
        self._echo = echo
        self._n = n
        self._begun: set[int] = set()
        self._offsets: dict[int, Offsets] = {}

    def events(self, index: int, chunk: Chunk) -> list[dict[str, Any]]:
        text = chunk.text
        if index not in self._begun:
            self._begun.add(index)
            text = self._prompt(index) + text
        logprobs = self._logprobs(index, [chunk])
        if not (text or chunk.finish_reason or (logprobs and logprobs["tokens"])):
            return []
        return [_choice(index, text, logprobs, chunk.finish_reason or None)]

    def choice(self, index: int, chunks: Sequence[Chunk]) -> dict[str, Any]:
        text = self._prompt(index) + "".join(chunk.text for chunk in chunks)
        return _choice(index, text, self._logprobs(index, chunks), chunks[-1].finish_reason)

    def _prompt(self, index: int) -> str:
        return self._echo[index // self._n] if self._echo else ""

    def _logprobs(self, index: int, chunks: Sequence[Chunk]) -> dict[str, Any] | None:
        if self._tokens is None:
            return None
        if index not in self._offsets:
            self._offsets[index] = Offsets(self._tokens, len(self._prompt(index)))
        offsets = self._offsets[index]
        taken = [step for chunk in chunks for step in steps(chunk)]
        return {
            "tokens": [self._shown(token) for token, _, _ in taken],
            "token_logprobs": [value for _, value, _ in taken],
            "top_logprobs": [
                {self._shown(other): other_value for other, other_value in (*pairs, (token, value))}
                for token, value, pairs in taken
            ],
            "text_offset": [offsets.push(token) for token, _, _ in taken],
        }

    def _shown(self, token: int) -> str:
        r"""As OpenAI writes it here: bytes:\xe2\x80 for a part of a character."""
        assert self._tokens is not None
        text = self._tokens.shown(token)
        return f"bytes:{text}" if self._tokens.is_part(token) else text


def _choice(index: int, text: str, logprobs: dict[str, Any] | None, finish_reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
