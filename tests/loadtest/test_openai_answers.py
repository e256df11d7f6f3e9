"""Server-sent events of several servers' kinds, from a peer that says what it is told to."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from trtbuild.loadtest.exchange import Exchange
from trtbuild.loadtest.openai_target import OpenAiTarget
from trtbuild.loadtest.record import Outcome
from trtbuild.loadtest.target import Asking
from trtbuild.loadtest.workload import PlannedRequest

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def event(choice: dict[str, Any] | None, **more: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [choice] if choice else [], **more}).encode() + b"\n\n"


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (*parts, b""))


def asked(*answers: bytes, close: bool = False) -> tuple[list[Exchange], int]:
    """What comes of as many requests, one after the other, and over how many connections."""

    async def work() -> tuple[list[Exchange], int]:
        left, connections = list(answers), 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            while left:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                await reader.readexactly(int(head.split("Content-Length: ")[1].split("\r\n")[0]))
                writer.write(left.pop(0))
                if close:
                    break
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        target = OpenAiTarget(f"http://{host}:{port}/v1", "m", Asking())
        found = []
        for index in range(len(answers)):
            over = asyncio.get_running_loop().create_future()
            exchange = Exchange(PlannedRequest(index, 0.0, "x", 1, 5, 0, 0), 0.0, over.set_result)
            target.send(exchange)
            found.append(await asyncio.wait_for(over, 10))
        await target.close()
        server.close()
        return found, connections

    return asyncio.run(work())


def test_events_without_usage_count_as_a_token_each_and_the_last_one_corrects_them() -> None:
    """As llama.cpp and OpenAI send them: a role first, texts of several tokens, the usage at the end."""
    answer = chunked(
        event({"delta": {"role": "assistant", "content": ""}, "finish_reason": None}),
        event({"delta": {"content": "one two"}, "finish_reason": None}),
        event({"delta": {"content": " three"}, "finish_reason": None}),
        event({"delta": {}, "finish_reason": "stop"}),
        event(None, usage={"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 3}}),
        b"data: [DONE]\n\n",
    )
    (exchange,), _ = asked(HEAD + answer)
    assert exchange.outcome is Outcome.COMPLETED and exchange.finish_reason == "stop"
    assert exchange.tokens == [0, 1, 1, 2] and exchange.received == 4
    assert (exchange.prompt_tokens, exchange.cached_tokens) == (9, 3)


def test_usage_in_every_event_is_exact() -> None:
    """As vLLM and trtbuild's front send it when asked to."""
    answer = chunked(
        event({"text": "one", "finish_reason": None}, usage={"prompt_tokens": 2, "completion_tokens": 1}),
        event({"text": " two three", "finish_reason": "length"}, usage={"prompt_tokens": 2, "completion_tokens": 4}),
    )
    (exchange,), _ = asked(HEAD + answer)
    assert exchange.tokens == [1, 3] and exchange.outcome is Outcome.COMPLETED


def test_events_in_pieces_with_other_line_ends_and_comments() -> None:
    whole = (
        b": ping\r\n\r\ndata:"
        + json.dumps({"choices": [{"text": "a", "finish_reason": "stop"}]}).encode()
        + b"\r\n\r\n"
    )
    (exchange,), _ = asked(HEAD + chunked(*(whole[place : place + 1] for place in range(len(whole)))))
    assert exchange.tokens == [1] and exchange.outcome is Outcome.COMPLETED


def test_a_connection_is_kept_for_the_next_request() -> None:
    """And if the server closes it meanwhile, the request is sent on another one."""
    answer = HEAD + chunked(event({"text": "a", "finish_reason": "stop"}))
    found, connections = asked(answer, answer, answer)
    assert [exchange.outcome for exchange in found] == [Outcome.COMPLETED] * 3 and connections == 1
    found, connections = asked(answer, answer, close=True)
    assert [exchange.outcome for exchange in found] == [Outcome.COMPLETED] * 2 and connections == 2


@pytest.mark.parametrize(
    ("status", "body", "outcome", "message"),
    [
        (429, b'{"error": {"message": "full"}}', Outcome.REFUSED, "HTTP 429: full"),
        (503, b"busy", Outcome.REFUSED, "HTTP 503: busy"),
        (503, b'{"error": {"message": "late", "code": "queue_timeout"}}', Outcome.TIMED_OUT, "HTTP 503: late"),
        (504, b"", Outcome.TIMED_OUT, "HTTP 504: "),
        (400, b'{"error": {"message": "no field x"}}', Outcome.FAILED, "HTTP 400: no field x"),
        (500, b'{"error": "plain"}', Outcome.FAILED, "HTTP 500: plain"),
    ],
)
def test_statuses(status: int, body: bytes, outcome: Outcome, message: str) -> None:
    (exchange,), _ = asked(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))
    assert (exchange.outcome, exchange.message) == (outcome, message)


@pytest.mark.parametrize(
    ("content", "outcome", "message"),
    [
        (HEAD + chunked(event({"text": "a", "finish_reason": None})), Outcome.FAILED, "before the answer's end"),
        (HEAD + chunked(b'data: {"error": {"message": "it broke"}}\n\n'), Outcome.FAILED, "it broke"),
        (HEAD + chunked(b"data: {nonsense\n\n"), Outcome.FAILED, "not of OpenAI's form"),
        (HEAD + chunked(b'data: {"choices": [3]}\n\n'), Outcome.FAILED, "not of OpenAI's form"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", Outcome.FAILED, "What came is not HTTP"),
        (HEAD + b"1000\r\nhalf", Outcome.LOST, "the connection was lost (closed by the server)"),
    ],
)
def test_what_goes_wrong(content: bytes, outcome: Outcome, message: str) -> None:
    (exchange,), _ = asked(content, close=True)
    assert exchange.outcome is outcome and message in exchange.message
