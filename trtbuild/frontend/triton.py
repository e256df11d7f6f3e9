"""Triton's gRPC for an event loop: one bidirectional stream a request, cancelled with it.

The generated stubs on grpc.aio, which tritonclient.grpc.aio wraps: that is no slower (0.24 ms of CPU time a response
either way), but lets grpc's exceptions through beside its own and puts NumPy in between. A response is read from the
socket when it is asked for, so a client that reads slowly holds its own answer back at the server, by HTTP/2's flow
control, and fills no memory here.
"""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from typing import Any

from trtbuild.errors import BuildError, InputError
from trtbuild.frontend.errors import ApiError, from_triton, refused
from trtbuild.triton.generation import Chunk, Generation, infer_request, read_chunk

_ANSWER_SECONDS = 5.0
"""How long the server may take to answer a question about itself."""
_CHANNEL = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_reconnect_backoff_ms", 1000),  # a server that comes back is found at once, not after two minutes
)


class Triton:
    """A connection to the server. Made, used and closed in one event loop."""

    def __init__(self, grpc_url: str, metrics_url: str, silence_seconds: float) -> None:
        """`silence_seconds`: how long a response may take before its request is given up."""
        import grpc
        from tritonclient.grpc import service_pb2, service_pb2_grpc

        self._error = grpc.aio.AioRpcError
        self._end = grpc.aio.EOF
        self._messages = service_pb2
        self._channel = grpc.aio.insecure_channel(grpc_url, options=_CHANNEL)
        self._stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._metrics = f"http://{metrics_url}/metrics"
        self._silence = silence_seconds

    async def close(self) -> None:
        await self._channel.close()

    async def is_ready(self, model: str) -> bool:
        """Whether the server answers and has `model` ready."""
        request = self._messages.ModelReadyRequest(name=model)
        try:
            return bool((await self._stub.ModelReady(request, timeout=_ANSWER_SECONDS)).ready)
        except self._error:
            return False

    async def metrics(self) -> bytes:
        """Triton's metrics as Prometheus reads them; raises ApiError (503) if it does not answer."""
        try:
            return await asyncio.to_thread(_read, self._metrics)
        except OSError as error:
            raise from_triton("UNAVAILABLE", str(error)) from error

    async def stream(self, model: str, generation: Generation, request_id: str) -> AsyncGenerator[Chunk, None]:
        """The responses to one request. Closing the generator cancels it at the server. Raises ApiError."""
        try:
            request = infer_request(model, generation, request_id)
        except InputError as error:
            raise refused(str(error)) from error
        call = self._stub.ModelStreamInfer()
        silence = _Silence(call, self._silence)
        running = generation.sampling.n or 1
        try:
            await call.write(request)
            await call.done_writing()
            while (response := await silence.limit(call.read())) is not self._end:
                if response.error_message:
                    while await silence.limit(call.read()) is not self._end:  # cancelled now, it would leave memory
                        pass
                    raise from_triton("", response.error_message)
                chunk = read_chunk(response.infer_response)
                if chunk.finish_reason == "cancelled":
                    raise from_triton("CANCELLED", "the model ended it, as it does when it is unloaded.")
                running -= bool(chunk.finish_reason)
                yield chunk
            if running:
                raise from_triton("INTERNAL", "The server ended the stream before the answer's end.")
        except self._error as error:
            raise from_triton(error.code().name, str(error.details())) from error
        except BuildError as error:
            raise ApiError(500, str(error), kind="server_error") from error
        except asyncio.CancelledError as error:
            if not silence.too_long:
                raise
            text = f"The model sent nothing for {self._silence:g} s."
            raise ApiError(504, text, kind="server_error", code="timeout") from error
        finally:
            call.cancel()  # nothing happens to one that is over

    async def stream_all(
        self, model: str, generations: tuple[Generation, ...], request_id: str
    ) -> AsyncGenerator[tuple[int, Chunk], None]:
        """The responses to several requests as they come, each with the place of its request in `generations`.

        The first error ends them all, and closing the generator cancels them all. Raises ApiError.
        """
        if len(generations) == 1:
            async with aclosing(self.stream(model, generations[0], request_id)) as chunks:
                async for chunk in chunks:
                    yield 0, chunk
            return
        arrived: asyncio.Queue[tuple[int, Chunk | Exception | None]] = asyncio.Queue(1)
        tasks = [
            asyncio.create_task(self._forward(place, self.stream(model, generation, request_id), arrived))
            for place, generation in enumerate(generations)
        ]
        try:
            running = len(tasks)
            while running:
                place, item = await arrived.get()
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    running -= 1
                else:
                    yield place, item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @staticmethod
    async def _forward(
        place: int,
        chunks: AsyncGenerator[Chunk, None],
        arrived: asyncio.Queue[tuple[int, Chunk | Exception | None]],
    ) -> None:
        """Put the chunks, and then None or the error that ended them, into `arrived`."""
        last: Exception | None = None
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    await arrived.put((place, chunk))
        except Exception as error:
            last = error
        await arrived.put((place, last))


class _Silence:
    """Cancels a call when a response takes too long. A timer, for `asyncio.wait_for` would make a task of every one."""

    __slots__ = ("_call", "_limit", "too_long")

    def __init__(self, call: Any, limit: float) -> None:
        self._call = call
        self._limit = limit
        self.too_long = False

    async def limit(self, reading: Awaitable[Any]) -> Any:
        """What `reading` gives; CancelledError, and `too_long`, if that takes longer."""
        timer = asyncio.get_running_loop().call_later(self._limit, self._give_up)
        try:
            return await reading
        finally:
            timer.cancel()

    def _give_up(self) -> None:
        self.too_long = True
        self._call.cancel()


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=_ANSWER_SECONDS) as response:
        return bytes(response.read())
