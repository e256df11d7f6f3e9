"""HTTP/2 against a peer that sends the frames it is told to: what RFC 9113 allows a server, and what goes wrong."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hpack import Decoder, Encoder

from trtbuild.loadtest.http2 import Http2Connection, Http2Error, header_block

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS, ACK, PADDED, PRIORITY = 1, 4, 1, 8, 32
BLOCK = header_block([(b":method", b"POST"), (b"x", b"y" * 300)])


class Peer:
    """The server's end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self.encoder = Encoder()

    async def begin(self, **settings: int) -> None:
        """Take the preface, the client's settings and its window, and send the server's settings."""
        assert await self._reader.readexactly(24) == b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        kind, _, _, payload = await self.read()
        assert kind == SETTINGS and payload == struct.pack(">HIHI", 2, 0, 4, 2**31 - 1)
        assert await self.read() == (WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**31 - 1 - 65535))
        numbers = {"streams": 3, "window": 4, "frame": 5}
        self.send(SETTINGS, 0, 0, b"".join(struct.pack(">HI", numbers[k], v) for k, v in settings.items()))
        assert await self.read() == (SETTINGS, ACK, 0, b"")

    async def read(self) -> tuple[int, int, int, bytes]:
        head = await self._reader.readexactly(9)
        kind, flags, number = struct.unpack(">BBI", head[3:])
        return kind, flags, number, await self._reader.readexactly(int.from_bytes(head[:3], "big"))

    def send(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        self.writer.write(len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, number) + payload)

    def end(self, number: int) -> None:
        self.send(HEADERS, END_HEADERS | END_STREAM, number, self.encoder.encode([("grpc-status", "0")]))


class Seen:
    """A handler that notes what it is told."""

    def __init__(self) -> None:
        self.sent = False
        self.found: list[tuple[str, str]] = []
        self.content = b""
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def opened(self, now: float) -> None:
        self.sent = True

    def headers(self, headers: list[tuple[bytes, bytes]]) -> None:
        self.found += [(bytes(name).decode(), bytes(value).decode()) for name, value in headers]

    def data(self, now: float, data: bytes) -> None:
        self.content += data

    def closed(self, now: float, problem: str) -> None:
        self.over.set_result(problem)


def run(
    serve: Callable[[Peer], Awaitable[None]], use: Callable[[Http2Connection], Awaitable[None]], settle: bool = True
) -> None:
    """`serve` at one end and `use` at the other, both to their ends."""

    async def both() -> None:
        served: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await serve(Peer(reader, writer))
            except BaseException as error:
                served.set_exception(error)
            else:
                served.set_result(None)

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        _, connection = await asyncio.get_running_loop().create_connection(Http2Connection, *address[:2])
        if settle:
            await connection.settled()
        await asyncio.gather(use(connection), served)
        connection.close()
        server.close()

    asyncio.run(asyncio.wait_for(both(), 20))


def test_a_request_and_its_answer() -> None:
    """Padding, priorities and headers in several frames are all allowed, and a ping must be answered."""

    async def serve(peer: Peer) -> None:
        await peer.begin()
        kind, flags, number, block = await peer.read()
        assert (kind, flags, number) == (HEADERS, END_HEADERS, 1)
        assert Decoder().decode(block, raw=True) == [(b":method", b"POST"), (b"x", b"y" * 300)]
        assert await peer.read() == (DATA, END_STREAM, 1, b"question")
        block = peer.encoder.encode([(":status", "200"), ("a", "b")])
        peer.send(HEADERS, PADDED | PRIORITY, 1, b"\x03" + b"\0" * 5 + block[:2] + b"\0" * 3)
        peer.send(CONTINUATION, END_HEADERS, 1, block[2:])
        peer.send(DATA, PADDED, 1, b"\x02ans" + b"\0" * 2)
        peer.send(99, 0, 1, b"a frame of the future")
        peer.send(PING, 0, 0, b"12345678")
        assert await peer.read() == (PING, ACK, 0, b"12345678")
        peer.send(DATA, 0, 1, b"wer")
        peer.end(1)

    async def use(connection: Http2Connection) -> None:
        seen = Seen()
        connection.open(BLOCK, b"question", seen)
        assert seen.sent
        assert await seen.over == ""
        assert seen.content == b"answer"
        assert seen.found == [(":status", "200"), ("a", "b"), ("grpc-status", "0")]

    run(serve, use)


def test_the_servers_windows_and_frames_are_kept_to() -> None:
    """Ten bytes of window for a stream, then fifteen more by a new setting, then without end."""
    body = bytes(range(256)) * 400  # more than the connection's window of 65535 at first

    async def serve(peer: Peer) -> None:
        await peer.begin(window=10, frame=16384)
        await peer.read()
        assert await peer.read() == (DATA, 0, 1, body[:10])
        peer.send(SETTINGS, 0, 0, struct.pack(">HI", 4, 25))
        assert await peer.read() == (SETTINGS, ACK, 0, b"")
        assert await peer.read() == (DATA, 0, 1, body[10:25])
        received = body[:25]
        peer.send(WINDOW_UPDATE, 0, 1, struct.pack(">I", 2**20))
        while len(received) < 65535:
            _, flags, _, part = await peer.read()
            assert len(part) <= 16384 and not flags
            received += part
        assert received == body[:65535], "no more than the connection's window"
        peer.send(WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**20))
        while not flags:
            _, flags, _, part = await peer.read()
            received += part
        assert received == body
        peer.end(1)

    async def use(connection: Http2Connection) -> None:
        seen = Seen()
        connection.open(BLOCK, body, seen)
        assert await seen.over == ""

    run(serve, use)


def test_more_streams_than_the_server_takes_wait() -> None:
    async def serve(peer: Peer) -> None:
        await peer.begin(streams=1)
        assert (await peer.read())[2] == 1
        await peer.read()
        peer.end(1)
        assert (await peer.read())[2] == 3, "the second one was cancelled while it waited"
        assert (await peer.read())[3] == b"third"
        peer.end(3)

    async def use(connection: Http2Connection) -> None:
        first, second, third = Seen(), Seen(), Seen()
        connection.open(BLOCK, b"first", first)
        waiting = connection.open(BLOCK, b"second", second)
        connection.open(BLOCK, b"third", third)
        assert (first.sent, second.sent, third.sent) == (True, False, False)
        connection.cancel(waiting)
        assert await first.over == await third.over == ""
        assert not second.over.done()

    run(serve, use)


def test_a_cancelled_stream_is_reset_and_its_headers_still_read() -> None:
    """Header blocks that nobody waits for change the decoder's table all the same."""

    async def serve(peer: Peer) -> None:
        await peer.begin()
        for expected in (HEADERS, DATA):
            assert (await peer.read())[0] == expected
        assert await peer.read() == (RST_STREAM, 0, 1, struct.pack(">I", 8))
        peer.send(HEADERS, END_HEADERS, 1, peer.encoder.encode([("new", "entry")]))
        peer.send(DATA, 0, 1, b"nobody reads this")
        await peer.read()
        await peer.read()
        peer.send(HEADERS, END_HEADERS | END_STREAM, 3, peer.encoder.encode([("new", "entry")]))

    async def use(connection: Http2Connection) -> None:
        gone, seen = Seen(), Seen()
        connection.cancel(connection.open(BLOCK, b"x", gone))
        connection.open(BLOCK, b"y", seen)
        assert await seen.over == "" and seen.found == [("new", "entry")]
        assert gone.content == b"" and not gone.over.done()

    run(serve, use)


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        ((RST_STREAM, 0, 1, struct.pack(">I", 7)), "the server reset the stream (HTTP/2 error 7)"),
        ((GOAWAY, 0, 0, struct.pack(">II", 0, 0)), "the server is closing the connection"),
    ],
)
def test_streams_that_the_server_ends(frame: tuple[int, int, int, bytes], problem: str) -> None:
    async def serve(peer: Peer) -> None:
        await peer.begin()
        await peer.read()
        await peer.read()
        peer.send(*frame)

    async def use(connection: Http2Connection) -> None:
        seen = Seen()
        connection.open(BLOCK, b"x", seen)
        assert await seen.over == problem

    run(serve, use)


def test_a_connection_that_breaks_ends_every_stream() -> None:
    async def serve(peer: Peer) -> None:
        await peer.begin(streams=1)
        await peer.read()
        await peer.read()
        peer.writer.close()

    async def use(connection: Http2Connection) -> None:
        open_, waiting = Seen(), Seen()
        connection.open(BLOCK, b"x", open_)
        connection.open(BLOCK, b"y", waiting)
        assert await open_.over == await waiting.over == "the connection was lost (closed by the server)"
        with pytest.raises(Http2Error, match="the connection was lost"):
            connection.open(BLOCK, b"z", Seen())

    run(serve, use)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [(b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak HTTP/2"), (b"", "the connection was lost")],
)
def test_what_is_no_http2_server(answer: bytes, problem: str) -> None:
    async def serve(peer: Peer) -> None:
        peer.writer.write(answer)
        peer.writer.close()

    async def use(connection: Http2Connection) -> None:
        with pytest.raises(Http2Error, match=problem):
            await connection.settled()

    run(serve, use, settle=False)


def test_the_window_of_the_connection_is_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtbuild.loadtest.http2._RENEW", 5000)

    async def serve(peer: Peer) -> None:
        await peer.begin()
        await peer.read()
        await peer.read()
        for _ in range(3):
            peer.send(DATA, 0, 1, bytes(2000))
        assert await peer.read() == (WINDOW_UPDATE, 0, 0, struct.pack(">I", 6000))
        peer.end(1)

    async def use(connection: Http2Connection) -> None:
        seen = Seen()
        connection.open(BLOCK, b"x", seen)
        assert await seen.over == "" and len(seen.content) == 6000

    run(serve, use)


def test_long_literals() -> None:
    """Lengths around the prefix of seven bits, and of more than one byte behind it."""
    for length in (0, 1, 126, 127, 128, 254, 255, 300, 20_000):
        headers: list[Any] = [(b"name", b"v" * length)]
        assert Decoder().decode(header_block(headers), raw=True) == headers
