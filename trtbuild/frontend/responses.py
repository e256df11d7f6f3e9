"""Sending an answer: one document, or server-sent events; and giving the request up when the client leaves.

Starlette's own streaming response notices a client that left only when it next sends something, which may be after a
long prompt, or minutes in a queue, that nobody waits for any more.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from logging import getLogger
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from trtbuild.frontend.errors import ApiError

CATCH_UP_SECONDS = 2.0
_LOOK_SECONDS = 0.02
_BACKLOG = 10
"""More events than that between two looks are no model's speed, but what was waiting to be read."""

_log = getLogger("trtbuild.frontend")


def json_bytes(document: Any) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def event_bytes(document: Any) -> bytes:
    """A server-sent event. JSON has no bare line break, so it is one line."""
    return b"data: " + json_bytes(document) + b"\n\n"


DONE = b"data: [DONE]\n\n"


def error_response(error: ApiError) -> Response:
    return Response(json_bytes(error.body()), error.status, error.headers, "application/json")


class DocumentResponse(Response):
    """Waits for a document; an ApiError becomes its own response."""

    def __init__(self, work: Coroutine[Any, Any, Any], headers: dict[str, str]) -> None:
        super().__init__(headers=headers)
        self._work = work
        self._more_headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _while_connected(receive, self._answer(scope, receive, send))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            content = json_bytes(await self._work)
            response = Response(content, headers=self._more_headers, media_type="application/json")
        except Exception as error:
            response = error_response(as_api_error(error))
        await response(scope, receive, send)


class EventResponse(Response):
    """Streams events. What goes wrong before the first one is a response of its own, with its status; what goes wrong
    after it is an event of the stream, and the last one."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], headers: dict[str, str]) -> None:
        # X-Accel-Buffering tells nginx to pass each event on at once.
        super().__init__(headers={**headers, "Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._sent = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _while_connected(receive, self._stream(scope, receive, send), self._catch_up)

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events) as events:
            try:
                event = await anext(events)
            except Exception as error:
                await error_response(as_api_error(error))(scope, receive, send)
                return
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._send_event(send, event)
            try:
                async for event in events:
                    await self._send_event(send, event)
            except Exception as error:
                await self._send_event(send, event_bytes(as_api_error(error).body()))
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_event(self, send: Send, event: bytes) -> None:
        """Returns when the connection has room for more, so a reader that is slow holds up the answer and no memory."""
        await send({"type": "http.response.body", "body": event, "more_body": True})
        self._sent += 1

    async def _catch_up(self, working: asyncio.Future[None]) -> None:
        """Let an answer that nobody reads any more go on while it is only what Triton had ready.

        Sending does nothing then, so that takes no time. tritonserver 2.51 never frees the responses of a stream that
        is cancelled when its last one waits behind others to be sent, and takes 30 s to stop.
        """
        deadline = time.monotonic() + CATCH_UP_SECONDS
        sent = -_BACKLOG
        while not working.done() and self._sent - sent >= _BACKLOG and time.monotonic() < deadline:
            sent = self._sent
            await asyncio.wait((working,), timeout=_LOOK_SECONDS)


def as_api_error(error: Exception) -> ApiError:
    """`error` itself, or, for one that is a fault of this program, what a client may know of it."""
    if isinstance(error, ApiError):
        return error
    _log.error("A request failed.", exc_info=error)
    return ApiError(500, "The server failed at this request; its log says why.", kind="server_error")


async def _while_connected(
    receive: Receive,
    work: Coroutine[Any, Any, None],
    before_cancelling: Callable[[asyncio.Future[None]], Awaitable[None]] | None = None,
) -> None:
    """Do `work`; when the client leaves, cancel it after `before_cancelling`."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_until_left(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if before_cancelling is not None:
            await before_cancelling(working)
        if working.done():
            working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
