"""Requests that were recorded elsewhere: when each came, and how long it and its answer were.

Two formats, told apart by the first line:

JSON lines, an object a line: `arrival`, seconds; `prompt`, a text, or `prompt_tokens`, how long one of ours shall be;
and optionally `output_tokens` and `priority`.

The CSV of Azure's LLM inference traces of 2023 and 2024 (https://github.com/Azure/AzurePublicDataset): the header
`TIMESTAMP,ContextTokens,GeneratedTokens`, times like `2023-11-16 18:15:46.6805900` (a hundred nanoseconds, no zone) or
with an offset such as `+00:00`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from trtbuild.errors import InputError
from trtbuild.files import read_text

AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
_AZURE_TIME = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:?\d\d)?")
_KEYS = ("arrival", "prompt", "prompt_tokens", "output_tokens", "priority")


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """One line. None: the line does not say."""

    arrival: float
    """Seconds after the trace's first request."""
    prompt: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    priority: int | None = None


class _Wrong(Exception):
    """What is wrong with a line."""


def read_trace(file: Path, speed: float = 1.0) -> tuple[TracedRequest, ...]:
    """The requests in the order of their arrival, the first one at 0; time runs `speed` times as fast.

    Raises InputError with file and line for a line that cannot be read.
    """
    lines = read_text(file, "--trace").removeprefix("\ufeff").splitlines()
    azure = bool(lines) and lines[0].strip() == AZURE_HEADER
    read: Callable[[str], TracedRequest] = _read_azure if azure else _read_json
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip() and not (azure and number == 1):
            try:
                found.append(read(line.strip()))
            except _Wrong as wrong:
                raise InputError(f"{file}:{number}: {wrong}.") from wrong
    if not found:
        raise InputError(f"{file} holds no request; it needs JSON lines, or Azure's CSV ({AZURE_HEADER}).")
    found.sort(key=lambda request: request.arrival)
    first = found[0].arrival
    return tuple(replace(request, arrival=(request.arrival - first) / speed) for request in found)


def _read_json(line: str) -> TracedRequest:
    try:
        data = json.loads(line)
    except ValueError as error:
        raise _Wrong(f"not JSON: {error}") from error
    if not isinstance(data, dict):
        raise _Wrong("not a JSON object")
    unknown = [key for key in data if key not in _KEYS]
    if unknown:
        raise _Wrong(f"unknown key {unknown[0]!r}; the keys are {', '.join(_KEYS)}")
    arrival: Any = data.get("arrival")
    if not _is_number(arrival) or arrival < 0:
        raise _Wrong("arrival must be seconds, 0 or more")
    if ("prompt" in data) == ("prompt_tokens" in data):
        raise _Wrong("one of prompt and prompt_tokens must be there")
    if "prompt" in data and not (isinstance(data["prompt"], str) and data["prompt"]):
        raise _Wrong("prompt must be a text")
    return TracedRequest(
        float(arrival),
        data.get("prompt"),
        _whole(data, "prompt_tokens", 1),
        _whole(data, "output_tokens", 1),
        _whole(data, "priority", 0),
    )


def _read_azure(line: str) -> TracedRequest:
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != 3:
        raise _Wrong(f"{len(cells)} cells where {AZURE_HEADER} has 3")
    time = _AZURE_TIME.fullmatch(cells[0])
    if time is None:
        raise _Wrong(f"{cells[0]!r} is no time such as 2023-11-16 18:15:46.6805900")
    if not cells[1].isdecimal() or not cells[2].isdecimal():
        raise _Wrong("ContextTokens and GeneratedTokens must be whole numbers")
    # A request without any token cannot be sent, and an answer without one not asked for.
    return TracedRequest(_seconds(time), prompt_tokens=max(1, int(cells[1])), output_tokens=max(1, int(cells[2])))


def _seconds(time: re.Match[str]) -> float:
    zone = (time[3] or "+00:00").replace("Z", "+00:00")
    zone = zone if ":" in zone else f"{zone[:3]}:{zone[3:]}"
    try:
        whole = datetime.fromisoformat(time[1] + zone)
    except ValueError as error:
        raise _Wrong(f"{time[0]!r} is no time: {error}") from error
    return (whole - datetime(1970, 1, 1, tzinfo=timezone.utc)).total_seconds() + float(time[2] or 0)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < float("inf")


def _whole(data: Mapping[str, Any], key: str, least: int) -> int | None:
    value = data.get(key)
    if value is None and key not in data:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise _Wrong(f"{key} must be a whole number from {least} on")
    return value
