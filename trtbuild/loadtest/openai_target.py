"""OpenAI's API over HTTP/1.1: server-sent events, a connection for each request that runs, kept for the next one.

How many tokens an event brought is told by `usage` in every event where the server writes it (vLLM's and trtbuild's
`continuous_usage_stats`); elsewhere an event with text counts as one token, until the last event's `usage` says how
many there were in all.
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.parse
from collections.abc import Callable
from functools import partial
from typing import Any

from trtbuild.errors import InputError
from trtbuild.loadtest.exchange import Exchange
from trtbuild.loadtest.record import Outcome
from trtbuild.loadtest.target import CONNECT_SECONDS, Asking, require

_NO_ROOM = (429, 503)
_TOO_LATE = (408, 504)
_LATE_CODES = ("queue_timeout", "timeout")
_FULL_CODES = ("queue_full", "rate_limit_exceeded", "server_overloaded")


class OpenAiTarget:
    """A Target."""

    def __init__(self, url: str, model: str, asking: Asking, api_key: str | None = None) -> None:
        """`url` is the base, "http://localhost:9000/v1". Raises InputError if it is none, or a part is missing."""
        require("httptools", "OpenAI's API")
        parts = urllib.parse.urlsplit(url)
        if not parts.hostname:
            raise InputError(f"{url!r} is no address of an API; write it like http://localhost:9000/v1.")
        self.label = url
        self._tls = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port or (443 if self._tls else 80)
        self._model = model
        self._asking = asking
        path = parts.path.rstrip("/") + ("/chat/completions" if asking.chat else "/completions")
        key = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
        self._head = (
            f"POST {path} HTTP/1.1\r\nHost: {parts.netloc.rpartition('@')[2]}\r\nContent-Type: application/json\r\n"
            f"Accept: text/event-stream\r\n{key}"
        )
        self._idle: list[_Connection] = []
        self._opening: set[asyncio.Task[None]] = set()

    async def connect(self) -> None:
        self._idle.append(await self._opened())

    async def close(self) -> None:
        for task in self._opening:
            task.cancel()
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    def send(self, exchange: Exchange) -> None:
        request = self._request(exchange)
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                # A server may close a kept connection at any moment: that is no answer, and the request is sent again.
                connection.begin(request, exchange, partial(self._send_anew, request, exchange))
                return
        self._send_anew(request, exchange)

    def _send_anew(self, request: bytes, exchange: Exchange) -> None:
        task = asyncio.get_running_loop().create_task(self._send_on_new(request, exchange))
        exchange.began(partial(self._give_up, task))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    @staticmethod
    def _give_up(task: asyncio.Task[None]) -> None:
        task.cancel()

    async def _send_on_new(self, request: bytes, exchange: Exchange) -> None:
        try:
            connection = await self._opened()
        except OSError as error:
            exchange.end(time.perf_counter(), Outcome.LOST, str(error))
        else:
            connection.begin(request, exchange)

    async def _opened(self) -> _Connection:
        making = asyncio.get_running_loop().create_connection(
            lambda: _Connection(self._idle), self._host, self._port, ssl=self._tls or None
        )
        try:
            _, connection = await asyncio.wait_for(making, CONNECT_SECONDS)
        except asyncio.TimeoutError as error:
            raise OSError(f"it did not answer within {CONNECT_SECONDS:g} s") from error
        return connection

    def _request(self, exchange: Exchange) -> bytes:
        planned, asking = exchange.request, self._asking
        body: dict[str, Any] = {
            "model": self._model,
            "max_tokens": planned.output_tokens,
            "seed": planned.seed,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        if asking.chat:
            body["messages"] = [{"role": "user", "content": planned.prompt}]
        else:
            body["prompt"] = planned.prompt
        optional = {
            "ignore_eos": asking.ignore_eos or None,
            "temperature": asking.temperature,
            "top_k": asking.top_k,
            "top_p": asking.top_p,
            "priority": planned.priority or None,
            "timeout": asking.queue_timeout,
        }
        body |= {name: value for name, value in optional.items() if value is not None}
        content = json.dumps(body).encode()
        return f"{self._head}Content-Length: {len(content)}\r\n\r\n".encode() + content


class _Connection(asyncio.Protocol):
    """One request at a time; goes to `idle` when it may be used again."""

    def __init__(self, idle: list[_Connection]) -> None:
        self._idle = idle
        self._transport: Any = None
        self._parser: Any = None
        self._exchange: Exchange | None = None
        self._now = 0.0
        self._rest = b""
        self._problem: tuple[Outcome, str] | None = None
        self._anew: Callable[[], None] | None = None
        self.is_open = False

    def begin(self, request: bytes, exchange: Exchange, anew: Callable[[], None] | None = None) -> None:
        """`anew` is called if the connection ends before anything was answered."""
        import httptools

        self._parser = httptools.HttpResponseParser(self)
        self._exchange, self._rest, self._problem, self._anew = exchange, b"", None, anew
        exchange.began(self.close)
        self._transport.write(request)
        exchange.sent = time.perf_counter()

    def close(self) -> None:
        self.is_open = False
        self._exchange = None
        if self._transport is not None:
            self._transport.abort()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        import httptools

        self._now = time.perf_counter()
        self._anew = None
        if self._exchange is None:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(Outcome.FAILED, f"What came is not HTTP: {error}")
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self._now = time.perf_counter()
        if self._anew is not None and self._exchange is not None:
            self._exchange = None
            self._anew()
        self._end(Outcome.LOST, f"the connection was lost ({error or 'closed by the server'})")

    # What the parser calls.

    def on_body(self, data: bytes) -> None:
        if self._exchange is None:
            return
        if self._parser.get_status_code() != 200:
            self._rest += data
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip())

    def on_message_complete(self) -> None:
        exchange, status = self._exchange, self._parser.get_status_code()
        if exchange is None:
            return
        if status != 200:
            self._end(*_refusal(status, self._rest))
        elif self._problem is not None:
            self._end(*self._problem)
        elif exchange.finish_reason:
            self._end(Outcome.COMPLETED, "")
        else:
            self._end(Outcome.FAILED, "The server ended the stream before the answer's end.")
        if self._parser.should_keep_alive() and self.is_open:
            self._idle.append(self)
        else:
            self.close()

    def _event(self, content: bytes) -> None:
        exchange = self._exchange
        if content == b"[DONE]" or exchange is None or exchange.outcome is not None:
            return
        try:
            event = json.loads(content)
            if "error" in event:
                self._problem = _problem(event["error"])
                return
            self._read(event, exchange)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            self._problem = Outcome.FAILED, f"An event is not of OpenAI's form ({error!r}): {content[:200]!r}"

    def _read(self, event: dict[str, Any], exchange: Exchange) -> None:
        usage, choices = event.get("usage") or {}, event.get("choices") or []
        total = usage.get("completion_tokens")
        if usage:
            exchange.prompt_tokens = usage.get("prompt_tokens") or 0
            exchange.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        if choices:
            choice = choices[0]
            text = choice.get("text") or (choice.get("delta") or {}).get("content")
            new = int(bool(text)) if total is None else total - exchange.received
            exchange.responded(self._now, new, choice.get("finish_reason") or "")
        elif total is not None:
            exchange.corrected(total)

    def _end(self, outcome: Outcome, message: str) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.end(self._now, outcome, message)


def _refusal(status: int, content: bytes) -> tuple[Outcome, str]:
    """What a response with an error's status means."""
    try:
        outcome, message = _problem(json.loads(content)["error"])
    except (ValueError, TypeError, KeyError):
        outcome, message = Outcome.FAILED, content[:200].decode("utf-8", "replace")
    if outcome is Outcome.FAILED and status in _NO_ROOM:
        outcome = Outcome.REFUSED
    elif status in _TOO_LATE:
        outcome = Outcome.TIMED_OUT
    return outcome, f"HTTP {status}: {message}"


def _problem(error: Any) -> tuple[Outcome, str]:
    """What OpenAI's error object means."""
    if not isinstance(error, dict):
        return Outcome.FAILED, str(error)
    outcome = Outcome.FAILED
    if error.get("code") in _LATE_CODES:
        outcome = Outcome.TIMED_OUT
    elif error.get("code") in _FULL_CODES:
        outcome = Outcome.REFUSED
    return outcome, str(error.get("message") or error)
