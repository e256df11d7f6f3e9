"""OpenAI's form of chat completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trtbuild.frontend.forms import steps
from trtbuild.frontend.tokens import Tokens
from trtbuild.triton.generation import Chunk


class ChatForm:
    """A `Form`: an answer's first event has its role, its last one the reason why it ended."""

    id_prefix = "chatcmpl"
    object = "chat.completion"
    event_object = "chat.completion.chunk"

    def __init__(self, tokens: Tokens | None) -> None:
        """`tokens` if log probabilities are wanted."""
        self._tokens = tokens
        self._begun: set[int] = set()

    def events(self, index: int, chunk: Chunk) -> list[dict[str, Any]]:
        choices = []
        if index not in self._begun:
            self._begun.add(index)
            choices.append(_event(index, {"role": "assistant", "content": ""}))
        logprobs = self._logprobs([chunk])
        if chunk.text or (logprobs and logprobs["content"]):
            choices.append(_event(index, {"content": chunk.text}, logprobs))
        if chunk.finish_reason:
            choices.append(_event(index, {}, finish_reason=chunk.finish_reason))
        return choices

    def choice(self, index: int, chunks: Sequence[Chunk]) -> dict[str, Any]:
        text = "".join(chunk.text for chunk in chunks)
        return {
            "index": index,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": self._logprobs(chunks),
            "finish_reason": chunks[-1].finish_reason,
        }

    def _logprobs(self, chunks: Sequence[Chunk]) -> dict[str, Any] | None:
        if self._tokens is None:
            return None
        return {"content": [entry for chunk in chunks for entry in self._entries(chunk)], "refusal": None}

    def _entries(self, chunk: Chunk) -> list[dict[str, Any]]:
        return [
            {**self._entry(token, value), "top_logprobs": [self._entry(*pair) for pair in pairs]}
            for token, value, pairs in steps(chunk)
        ]

    def _entry(self, token: int, value: float) -> dict[str, Any]:
        assert self._tokens is not None
        return {
            "token": self._tokens.shown(token),
            "logprob": value,
            "bytes": list(self._tokens.shown_bytes(token)),
        }


def _event(
    index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None = None, finish_reason: str | None = None
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
