"""Triton's gRPC: one stream of ModelStreamInfer a request, all on one connection."""

from __future__ import annotations

import asyncio
import struct
import time
import urllib.parse
from collections.abc import Collection
from functools import partial
from typing import Any

from trtbuild.errors import BuildError
from trtbuild.loadtest.exchange import Exchange
from trtbuild.loadtest.http2 import Http2Connection, Http2Error, header_block
from trtbuild.loadtest.record import Outcome
from trtbuild.loadtest.target import CONNECT_SECONDS, Asking, require, split_address
from trtbuild.triton.failures import Failure, classify
from trtbuild.triton.generation import Generation, Sampling, infer_request, read_chunk

_PATH = b"/inference.GRPCInferenceService/ModelStreamInfer"
_OK = 0
_BEFORE_EACH_MESSAGE = struct.Struct(">BI")
"""gRPC's: whether it is compressed, and its length."""


class TritonTarget:
    """A Target."""

    def __init__(self, url: str, model: str, inputs: Collection[str], asking: Asking, label: str) -> None:
        """`inputs` names those that the model takes; what it does not take is not sent. Raises InputError if a
        part is missing."""
        from tritonclient.grpc import service_pb2

        require("hpack", "Measuring over gRPC")
        self.label = label
        self._address = split_address(url)
        self._model = model
        self._inputs = frozenset(inputs)
        self._asking = asking
        self._parse: Any = service_pb2.ModelStreamInferResponse.FromString
        self._connection: Http2Connection | None = None
        self._block = header_block(
            [
                (b":method", b"POST"),
                (b":scheme", b"http"),
                (b":path", _PATH),
                (b":authority", url.encode()),
                (b"te", b"trailers"),
                (b"content-type", b"application/grpc"),
                (b"user-agent", b"trtbuild-bench"),
            ]
        )

    async def connect(self) -> None:
        await self.close()
        loop = asyncio.get_running_loop()
        try:
            making = loop.create_connection(Http2Connection, *self._address)
            _, connection = await asyncio.wait_for(making, CONNECT_SECONDS)
            await asyncio.wait_for(connection.settled(), CONNECT_SECONDS)
        except Http2Error as error:
            raise OSError(str(error)) from error
        except asyncio.TimeoutError as error:
            raise OSError(f"it did not answer within {CONNECT_SECONDS:g} s") from error
        self._connection = connection

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def send(self, exchange: Exchange) -> None:
        connection = self._connection
        message = self._message(exchange).SerializeToString()
        body = _BEFORE_EACH_MESSAGE.pack(0, len(message)) + message
        try:
            if connection is None:
                raise Http2Error("there is no connection")
            stream = connection.open(self._block, body, _Call(exchange, self._parse))
            exchange.began(partial(connection.cancel, stream))
        except Http2Error as error:
            exchange.end(time.perf_counter(), Outcome.LOST, str(error))

    def _message(self, exchange: Exchange) -> Any:
        planned, asking, known = exchange.request, self._asking, self._inputs
        takes_priority = "priority" in known
        sampling = Sampling(
            max_tokens=planned.output_tokens,
            temperature=asking.temperature,
            top_k=asking.top_k,
            top_p=asking.top_p,
            seed=planned.seed,
            ignore_eos=True if asking.ignore_eos and "ignore_eos" in known else None,
        )
        message = infer_request(
            self._model,
            Generation(
                None if asking.chat else planned.prompt,
                [{"role": "user", "content": planned.prompt}] if asking.chat else None,
                sampling,
                priority=planned.priority if takes_priority else 0,
                queue_timeout=asking.queue_timeout if "queue_timeout_ms" in known else None,
            ),
            str(planned.index),
        )
        if planned.priority and not takes_priority:
            message.parameters["priority"].uint64_param = planned.priority  # Triton's own queue knows it
        return message


class _Call:
    """A StreamHandler that reads gRPC's messages and its status."""

    __slots__ = ("_buffer", "_error", "_exchange", "_message", "_parse", "_status")

    def __init__(self, exchange: Exchange, parse: Any) -> None:
        self._exchange = exchange
        self._parse = parse
        self._buffer = b""
        self._status: int | None = None
        self._message = ""
        self._error = ""
        """What Triton said inside the stream."""

    def opened(self, now: float) -> None:
        self._exchange.sent = now

    def headers(self, headers: list[tuple[bytes, bytes]]) -> None:
        for name, value in headers:
            if name == b"grpc-status":
                self._status = int(value)
            elif name == b"grpc-message":
                self._message = urllib.parse.unquote(value.decode("ascii", "replace"))
            elif name == b":status" and value != b"200":
                self._message = f"HTTP status {value.decode('ascii', 'replace')}"

    def data(self, now: float, data: bytes) -> None:
        data = self._buffer + data
        place, prefix = 0, _BEFORE_EACH_MESSAGE.size
        while len(data) - place >= prefix:
            _, length = _BEFORE_EACH_MESSAGE.unpack_from(data, place)
            end = place + prefix + length
            if end > len(data):
                break
            self._response(now, data[place + prefix : end])
            place = end
        self._buffer = data[place:]

    def closed(self, now: float, problem: str) -> None:
        if self._error:
            self._exchange.end(now, outcome_of(None, self._error), self._error)
        elif problem:
            self._exchange.end(now, Outcome.LOST, problem)
        elif self._status != _OK:
            outcome = Outcome.FAILED if self._status is None else outcome_of(self._status, self._message)
            self._exchange.end(now, outcome, self._message or f"gRPC status {self._status}")
        elif self._exchange.finish_reason in ("", "cancelled"):
            self._exchange.end(now, Outcome.FAILED, "The server ended the stream before the answer's end.")
        else:
            self._exchange.end(now, Outcome.COMPLETED)

    def _response(self, now: float, content: bytes) -> None:
        if self._exchange.outcome is not None:
            return
        response = self._parse(content)
        if response.error_message:
            self._error = response.error_message  # the server ends the stream: cancelled now, it would leave memory
            return
        try:
            chunk = read_chunk(response.infer_response)
        except BuildError as error:
            self._exchange.give_up(now, Outcome.FAILED, str(error))
            return
        self._exchange.prompt_tokens = chunk.prompt_tokens
        self._exchange.cached_tokens = chunk.cached_tokens
        self._exchange.responded(now, len(chunk.token_ids), chunk.finish_reason)


_STATUS_NAMES = {
    1: "CANCELLED", 2: "UNKNOWN", 3: "INVALID_ARGUMENT", 4: "DEADLINE_EXCEEDED", 5: "NOT_FOUND",
    8: "RESOURCE_EXHAUSTED", 11: "OUT_OF_RANGE", 12: "UNIMPLEMENTED", 13: "INTERNAL", 14: "UNAVAILABLE",
}  # fmt: skip
_OUTCOMES = {Failure.BUSY: Outcome.REFUSED, Failure.LATE: Outcome.TIMED_OUT, Failure.GONE: Outcome.REFUSED}


def outcome_of(status: int | None, message: str) -> Outcome:
    """What an error that the server sent itself means, by its gRPC status (None: without one) and its text.

    UNAVAILABLE with an unknown text is a refusal here, for the transport's own end is told apart by the connection.
    """
    name = "" if status is None else _STATUS_NAMES.get(status, "UNKNOWN")
    return _OUTCOMES.get(classify(name, message), Outcome.FAILED)
