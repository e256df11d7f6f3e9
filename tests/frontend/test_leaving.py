"""Clients that leave or stop reading, and a Triton that goes away."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.frontend.conftest import MODEL, Front, running_front
from trtbuild.frontend.options import FrontendOptions, served_models
from trtbuild.triton.server import TritonServer

pytestmark = pytest.mark.slow  # the package starts a server


def script(**steps: Any) -> str:
    return json.dumps(steps)


LONG = script(say=["x" * 16384], repeat=2000)
"""An answer of 32 MB, more than sockets hold."""


@contextlib.contextmanager
def connected(front: Front, receive_buffer: int = 0, **body: Any) -> Iterator[socket.socket]:
    """A connection over which the request was sent."""
    content = json.dumps({"model": MODEL, **body}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    )
    with socket.socket() as connection:
        if receive_buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.settimeout(20)
        connection.connect((front.host, front.port))
        connection.sendall(head.encode() + b"\r\n\r\n" + content)
        yield connection


def read_all(connection: socket.socket) -> bytes:
    """The rest of a chunked response."""
    pieces = [b""]
    while (piece := connection.recv(1 << 20)) and not (pieces[-1][-8:] + piece).endswith(b"\r\n0\r\n\r\n"):
        pieces.append(piece)
    return b"".join([*pieces, piece])


def outcome(front: Front, before: int) -> str:
    """What the scripted model wrote of the first request that ended after `before` others."""
    deadline = time.monotonic() + 5
    while len(lines := front.events.read_text().splitlines()) <= before:
        assert time.monotonic() < deadline, "the model still generates"
        time.sleep(0.02)
    return lines[before]


@pytest.fixture
def ended(front: Front) -> int:
    """How many requests have ended."""
    return len(front.events.read_text().splitlines()) if front.events.exists() else 0


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_before_the_first_token_stops_the_model(front: Front, ended: int, stream: bool) -> None:
    with connected(front, prompt=script(wait=60), stream=stream):
        time.sleep(0.3)
    assert outcome(front, ended) == "0 cancelled"


def test_leaving_in_the_middle_stops_the_model(front: Front, ended: int) -> None:
    with connected(front, prompt=script(say=["a"] * 1000, pause=0.05), stream=True) as connection:
        assert b"200 OK" in connection.recv(4096)
        time.sleep(0.3)
    sent, how = outcome(front, ended).split()
    assert how == "cancelled" and 2 <= int(sent) < 30


def test_leaving_with_several_prompts_stops_them_all(front: Front, ended: int) -> None:
    with connected(front, prompt=[script(wait=60)] * 3):
        time.sleep(0.3)
    assert [outcome(front, ended + number) for number in range(3)] == ["0 cancelled"] * 3


def test_closing_a_stream_of_the_openai_client_stops_the_model(front: Front, ended: int) -> None:
    client = OpenAI(base_url=front.url, api_key="-")
    message = {"role": "user", "content": script(say=["a"] * 1000, pause=0.05)}
    stream = client.chat.completions.create(model=MODEL, messages=[message], stream=True)
    assert [next(stream).choices[0].delta.content for _ in range(3)] == ["", "a", "a"]
    stream.close()
    assert outcome(front, ended).endswith("cancelled")


def test_a_reader_that_is_slow_fills_no_memory_and_holds_up_nobody(front: Front, ended: int) -> None:
    """Nothing is read at first: what is under way stays in buffers of bounded size."""
    before = resident_bytes(os.getpid())
    with connected(front, receive_buffer=4096, prompt=LONG, stream=True) as slow:
        assert outcome(front, ended) == "2000 stop", "Triton keeps the rest"
        begin = time.monotonic()
        assert front.request("POST", "/v1/completions", {"model": MODEL, "prompt": "the"})[0] == 200
        assert time.monotonic() - begin < 2
        assert resident_bytes(os.getpid()) - before < 12e6
        assert len(read_all(slow)) > 2000 * 16384


def test_leaving_what_waits_to_be_read_leaves_nothing_in_triton(front: Front, triton: TritonServer, ended: int) -> None:
    """Without `_catch_up` each such client costs tritonserver 2.51 its whole answer, 40 MB, for good."""
    resident = []
    for number in range(2):
        with connected(front, receive_buffer=4096, prompt=LONG, stream=True):
            assert outcome(front, ended + number) == "2000 stop"
        time.sleep(1)
        resident.append(resident_bytes(triton.process.pid))
    assert resident[1] - resident[0] < 15e6


def resident_bytes(process: int) -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_triton_killed_in_a_stream_and_started_again(scripted: Path) -> None:
    server = TritonServer(scripted).start()
    options = FrontendOptions(server.grpc_url, server.metrics_url, served_models(scripted))
    with running_front(options) as front:
        with connected(front, prompt=script(say=["a"] * 1000, pause=0.05), stream=True) as connection:
            assert b"200 OK" in connection.recv(4096)
            os.killpg(server.process.pid, signal.SIGKILL)
            last = read_all(connection).split(b"\r\n")[-4]
        error = json.loads(last.removeprefix(b"data: "))["error"]
        assert (error["type"], error["code"]) == ("server_error", "server_unavailable")
        server.kill()

        assert front.request("GET", "/health")[0] == 503
        assert front.request("GET", "/metrics")[0] == 503
        error = front.error("/v1/completions", {"model": MODEL, "prompt": "the"}, 503)
        assert error["code"] == "server_unavailable"

        with TritonServer(scripted, ports=server._ports):
            deadline = time.monotonic() + 10
            while front.request("GET", "/health")[0] != 200:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            assert front.request("POST", "/v1/completions", {"model": MODEL, "prompt": "the"})[0] == 200


def test_a_triton_that_is_not_there_yet(options: FrontendOptions, scripted: Path) -> None:
    with running_front(FrontendOptions("127.0.0.1:1", "127.0.0.1:1", served_models(scripted))) as front:
        assert front.request("GET", "/health")[0] == 503
        assert front.request("GET", "/v1/models")[0] == 200
        error = front.error("/v1/completions", {"model": MODEL, "prompt": "the", "stream": True}, 503)
        assert "The Triton server cannot answer: failed to connect" in error["message"]
