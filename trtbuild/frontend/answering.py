"""From what is asked to the document, or the events, of the answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from trtbuild.frontend.asking import Asked
from trtbuild.frontend.forms import Envelope, Form, Usage
from trtbuild.frontend.responses import DONE, event_bytes
from trtbuild.frontend.triton import Triton
from trtbuild.triton.generation import Chunk


async def answer_events(triton: Triton, asked: Asked, form: Form, envelope: Envelope) -> AsyncGenerator[bytes, None]:
    """Server-sent events, one or several at a time. Raises ApiError."""
    usage = Usage()
    async with aclosing(triton.stream_all(asked.model.name, asked.generations, envelope.id)) as chunks:
        async for prompt, chunk in chunks:
            usage.add(prompt, chunk)
            choices = form.events(prompt * asked.n + chunk.sequence_index, chunk)
            if choices:
                more = _usage_so_far(asked, usage)
                yield b"".join(event_bytes(envelope.around(form.event_object, [choice]) | more) for choice in choices)
    if asked.include_usage:
        yield event_bytes(envelope.around(form.event_object, []) | {"usage": usage.document()})
    yield DONE


async def answer_document(triton: Triton, asked: Asked, form: Form, envelope: Envelope) -> dict[str, Any]:
    """The whole answer. Raises ApiError."""
    usage = Usage()
    answers: defaultdict[int, list[Chunk]] = defaultdict(list)
    async with aclosing(triton.stream_all(asked.model.name, asked.generations, envelope.id)) as chunks:
        async for prompt, chunk in chunks:
            usage.add(prompt, chunk)
            answers[prompt * asked.n + chunk.sequence_index].append(chunk)
    choices = [form.choice(index, answers[index]) for index in sorted(answers)]
    return envelope.around(form.object, choices) | {"usage": usage.document()}


def _usage_so_far(asked: Asked, usage: Usage) -> dict[str, Any]:
    """The field of an event that is not the last; OpenAI's is null, and absent if usage is not wanted at all."""
    if asked.continuous_usage:
        return {"usage": usage.document()}
    return {"usage": None} if asked.include_usage else {}
