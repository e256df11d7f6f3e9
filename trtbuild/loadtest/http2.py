"""As much of HTTP/2 as gRPC over plain TCP needs of a client (RFC 9113), without a task or a thread for what arrives.

grpc.aio takes about 160 µs of CPU time for each response that it reads, at 1,200 a second, and this 52
(scripts/bench_loadtest.py): what reading the socket costs, and 7 µs. The rest is left to the server that is to be
measured, and the time of a response is taken when it was read.

The server's header blocks are decoded by `hpack` (RFC 7541); the client's are written without compression.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
_END_STREAM = _ACK = 0x1
_END_HEADERS, _PADDED, _PRIORITY = 0x4, 0x8, 0x20
_ENABLE_PUSH, _MAX_STREAMS, _INITIAL_WINDOW, _MAX_FRAME = 2, 3, 4, 5
_CANCEL = 8
_DEFAULT_WINDOW, _LARGEST_WINDOW = 2**16 - 1, 2**31 - 1
_RENEW = 2**30
"""The connection's window is renewed when so much of it is used; no stream ever uses up its own."""
_OUR_MAX_FRAME = 2**14
_FRAME = struct.Struct(">HBBBI")


class StreamHandler(Protocol):
    """What becomes of one stream. Called from within the event loop, at once; `now` is time.perf_counter()."""

    def opened(self, now: float) -> None:
        """The request was handed to the socket."""

    def headers(self, headers: list[tuple[bytes, bytes]]) -> None:
        """A block of headers: the response's, or its trailers."""

    def data(self, now: float, data: bytes) -> None:
        """Content, read at `now`."""

    def closed(self, now: float, problem: str) -> None:
        """Nothing more comes. `problem` is empty if the server ended the stream properly."""


class Http2Error(Exception):
    """The connection cannot be used."""


class Stream:
    """A request and its place on the connection; `number` is 0 until the server's limit lets it begin."""

    __slots__ = ("block", "handler", "number", "unsent", "window")

    def __init__(self, block: bytes, body: bytes, handler: StreamHandler) -> None:
        self.block = block
        self.unsent = body
        self.handler = handler
        self.number = 0
        self.window = 0


class Http2Connection(asyncio.Protocol):
    """One connection with any number of streams. Made, used and closed in one event loop."""

    def __init__(self) -> None:
        from hpack import Decoder

        self._decoder: Any = Decoder()
        self._transport: Any = None
        self._settled = asyncio.get_running_loop().create_future()
        self._buffer = bytearray()
        self._block = b""
        self._streams: dict[int, Stream] = {}
        self._waiting: deque[Stream] = deque()
        self._next_number = 1
        self._received = 0
        self._window = self._stream_window = _DEFAULT_WINDOW
        self._max_frame, self._max_streams = 2**14, 2**31
        self.problem = "it is not connected"
        """Why no stream can be opened; empty while one can."""

    async def settled(self) -> None:
        """Wait for the server's first settings. Raises Http2Error if it closes the connection or speaks otherwise."""
        await self._settled

    def open(self, block: bytes, body: bytes, handler: StreamHandler) -> Stream:
        """Send a request: `header_block`'s bytes, and `body`. Raises Http2Error if the connection is gone."""
        if self.problem:
            raise Http2Error(self.problem)
        stream = Stream(block, body, handler)
        self._waiting.append(stream)
        self._begin_waiting()
        return stream

    def cancel(self, stream: Stream) -> None:
        """Give a stream up; nothing is called for it any more."""
        if self._streams.pop(stream.number, None) is not None:
            self._send(_RST_STREAM, 0, stream.number, struct.pack(">I", _CANCEL))
            self._begin_waiting()
        elif stream in self._waiting:
            self._waiting.remove(stream)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.problem = ""
        settings = struct.pack(">HIHI", _ENABLE_PUSH, 0, _INITIAL_WINDOW, _LARGEST_WINDOW)
        self._transport.write(_PREFACE)
        self._send(_SETTINGS, 0, 0, settings)
        self._send(_WINDOW_UPDATE, 0, 0, struct.pack(">I", _LARGEST_WINDOW - _DEFAULT_WINDOW))

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        buffer = self._buffer
        buffer += data
        place, end = 0, len(buffer)
        while end - place >= _FRAME.size:
            high, low, kind, flags, number = _FRAME.unpack_from(buffer, place)
            length = high << 8 | low
            if length > _OUR_MAX_FRAME:
                self._fail("what answers there does not speak HTTP/2")
                return
            begin = place + _FRAME.size
            if end - begin < length:
                break
            place = begin + length
            self._frame(now, kind, flags, number & _LARGEST_WINDOW, bytes(buffer[begin:place]))
        del buffer[:place]

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(f"the connection was lost ({error or 'closed by the server'})")

    # Frames that arrive.

    def _frame(self, now: float, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind == _DATA:
            self._received += len(payload)
            if self._received >= _RENEW:
                self._send(_WINDOW_UPDATE, 0, 0, struct.pack(">I", self._received))
                self._received = 0
            stream = self._streams.get(number)
            if stream is not None:
                stream.handler.data(now, _unpadded(flags, payload))
        elif kind in (_HEADERS, _CONTINUATION):
            self._headers(kind, flags, number, payload)
        elif kind == _RST_STREAM:
            self._end(now, number, f"the server reset the stream (HTTP/2 error {int.from_bytes(payload, 'big')})")
        elif kind == _SETTINGS and not flags & _ACK:
            self._settings(payload)
        elif kind == _PING and not flags & _ACK:
            self._send(_PING, _ACK, 0, payload)
        elif kind == _WINDOW_UPDATE:
            self._widen(number, int.from_bytes(payload, "big") & _LARGEST_WINDOW)
        elif kind == _GOAWAY:
            self._go_away(now, int.from_bytes(payload[:4], "big") & _LARGEST_WINDOW)
        if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
            self._end(now, number, "")

    def _headers(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind == _HEADERS:
            payload = _unpadded(flags, payload)
            self._block = payload[5:] if flags & _PRIORITY else payload
        else:
            self._block += payload
        if flags & _END_HEADERS:
            # Also for a stream that was cancelled: each block changes the decoder's table.
            headers = self._decoder.decode(self._block, raw=True)
            if number in self._streams:
                self._streams[number].handler.headers(headers)

    def _settings(self, payload: bytes) -> None:
        for name, value in struct.iter_unpack(">HI", payload):
            if name == _MAX_STREAMS:
                self._max_streams = value
            elif name == _MAX_FRAME:
                self._max_frame = value
            elif name == _INITIAL_WINDOW:
                for stream in self._streams.values():
                    stream.window += value - self._stream_window
                self._stream_window = value
        self._send(_SETTINGS, _ACK, 0, b"")
        if not self._settled.done():
            self._settled.set_result(None)
        self._widen(0, 0)
        self._begin_waiting()

    def _widen(self, number: int, by: int) -> None:
        """A window grew: send what waited for it."""
        if number == 0:
            self._window += by
        elif number in self._streams:
            self._streams[number].window += by
        for stream in [stream for stream in self._streams.values() if stream.unsent]:
            self._send_body(stream)

    def _go_away(self, now: float, last: int) -> None:
        self.problem = "the server is closing the connection"
        for number in [number for number in self._streams if number > last]:
            self._end(now, number, self.problem)
        for stream in self._waiting:
            stream.handler.closed(now, self.problem)
        self._waiting.clear()

    def _end(self, now: float, number: int, problem: str) -> None:
        stream = self._streams.pop(number, None)
        if stream is not None:
            stream.handler.closed(now, problem)
            self._begin_waiting()

    def _fail(self, problem: str) -> None:
        """Every stream ends."""
        now = time.perf_counter()
        self.problem = self.problem or problem
        if not self._settled.done():
            self._settled.set_exception(Http2Error(self.problem))
        streams = [*self._streams.values(), *self._waiting]
        self._streams.clear()
        self._waiting.clear()
        for stream in streams:
            stream.handler.closed(now, self.problem)
        self.close()

    # Frames that leave.

    def _begin_waiting(self) -> None:
        while self._waiting and len(self._streams) < self._max_streams and not self.problem:
            stream = self._waiting.popleft()
            stream.number, self._next_number = self._next_number, self._next_number + 2
            stream.window = self._stream_window
            self._streams[stream.number] = stream
            self._send(_HEADERS, _END_HEADERS, stream.number, stream.block)
            self._send_body(stream)
            stream.handler.opened(time.perf_counter())

    def _send_body(self, stream: Stream) -> None:
        """As much as both windows let through."""
        while stream.unsent:
            size = min(len(stream.unsent), self._max_frame, self._window, stream.window)
            if size <= 0:
                return
            part, stream.unsent = stream.unsent[:size], stream.unsent[size:]
            self._window -= size
            stream.window -= size
            self._send(_DATA, 0 if stream.unsent else _END_STREAM, stream.number, part)

    def _send(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        size = len(payload)
        self._transport.write(_FRAME.pack(size >> 8, size & 0xFF, kind, flags, number) + payload)


def header_block(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Headers as literals that no table remembers (RFC 7541, 6.2.2), so one block serves every stream."""
    return b"".join(b"\0" + _literal(name) + _literal(value) for name, value in headers)


def _literal(text: bytes) -> bytes:
    """Its length with a prefix of seven bits (RFC 7541, 5.1), and the text without Huffman coding."""
    length, least = len(text), 127
    if length < least:
        return bytes([length]) + text
    out, length = bytearray([least]), length - least
    while length >= 128:
        out.append(length % 128 + 128)
        length //= 128
    return bytes(out) + bytes([length]) + text


def _unpadded(flags: int, payload: bytes) -> bytes:
    return payload[1 : len(payload) - payload[0]] if flags & _PADDED else payload
