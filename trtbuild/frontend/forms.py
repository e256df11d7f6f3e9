"""What chat and text completions have in common: the counting, and the envelope around their choices."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from trtbuild.triton.generation import Chunk


class Form(Protocol):
    """How one request's answers look; an object of its own for each request, since it knows how far they are."""

    id_prefix: str
    object: str
    """The kind of the whole document."""
    event_object: str
    """The kind of a stream's events."""

    def events(self, index: int, chunk: Chunk) -> list[dict[str, Any]]:
        """The choices that stream what `chunk` brought of answer `index`, one an event; none if it is nothing yet."""
        ...

    def choice(self, index: int, chunks: Sequence[Chunk]) -> dict[str, Any]:
        """Answer `index` as a whole."""
        ...


def steps(chunk: Chunk) -> list[tuple[int, float, tuple[tuple[int, float], ...]]]:
    """Of each token of `chunk`: its id, its log probability, and the most probable tokens with theirs."""
    top = chunk.top_log_probs or ((),) * len(chunk.token_ids)
    return list(zip(chunk.token_ids, chunk.log_probs, top, strict=True))


@dataclass(slots=True)
class Usage:
    """Tokens counted over a request's prompts and answers."""

    prompts: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By the prompt's place: its tokens, and those of them that were in the cache."""
    completion_tokens: int = 0

    def add(self, prompt: int, chunk: Chunk) -> None:
        """`prompt` is the place of the prompt that `chunk` answers. Of several answers the first one's cache counts."""
        self.prompts.setdefault(prompt, (chunk.prompt_tokens, chunk.cached_tokens))
        self.completion_tokens += len(chunk.token_ids)

    def document(self) -> dict[str, Any]:
        prompt_tokens = sum(tokens for tokens, _ in self.prompts.values())
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(cached for _, cached in self.prompts.values())},
        }


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every document and event of one request carries."""

    id: str
    created: int
    model: str

    @staticmethod
    def new(form: Form, model: str) -> Envelope:
        return Envelope(f"{form.id_prefix}-{uuid.uuid4().hex}", int(time.time()), model)

    def around(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """The document of the object `kind` with `choices`."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}
