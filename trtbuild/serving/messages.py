"""A chat as JSON text -> messages for the model's chat template."""

from __future__ import annotations

import json
from typing import Any

from .errors import RequestError


def parse_messages(text: str) -> list[dict[str, Any]]:
    """The messages of a chat, a JSON list as in OpenAI's API.

    `content` may be a list of text parts, which are joined by line ends, as vLLM does for templates that take strings;
    any model's does. It may be missing where an assistant has `tool_calls`. What else a message has is left to the
    template. Raises RequestError.
    """
    try:
        messages = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"messages is not JSON: {error}") from error
    if not isinstance(messages, list) or not messages:
        raise RequestError('messages must be a JSON list such as [{"role": "user", "content": "Hello"}].')
    return [_message(f"messages[{place}]", message) for place, message in enumerate(messages)]


def _message(where: str, message: Any) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise RequestError(f"{where} is not an object with role and content.")
    if not isinstance(message.get("role"), str):
        raise RequestError(f"{where} has no role that is a string.")
    if message.get("content") is None and message.get("tool_calls"):
        return message
    return {**message, "content": _content(where, message.get("content"))}


def _content(where: str, content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{where} has no content that is a string or a list of text parts.")
    return "\n".join(_part(f"{where}.content[{place}]", part) for place, part in enumerate(content))


def _part(where: str, part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind != "text":
        described = f"of the type {str(kind)[:60]!r}" if kind is not None else "without a type"
        raise RequestError(f'{where} is {described}; this model takes {{"type": "text", "text": …}} only.')
    if not isinstance(part.get("text"), str):
        raise RequestError(f"{where} has no text that is a string.")
    return str(part["text"])
