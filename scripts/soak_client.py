"""The soak's clients: send a request, behave as it says, and judge what came back.

They part as trtbuild's own clients do: of a stream that is cancelled after its last response, instead of being left to
the server to end, tritonserver 2.51 keeps about 10 kB for ever, and 30 kB after an error that it found itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from soak_requests import Kind, Wanted

from trtbuild.serving.text import Detokenizer, TokenBytes
from trtbuild.triton.failures import classify
from trtbuild.triton.generation import Chunk, read_chunk

NEAR_TIE = 0.25
"""Nats. Where a known answer takes another way, the two tokens were at most so far apart: arithmetic in INT4 and FP32
rounds differently in another batch."""

CLOCK_SECONDS = 2.0
"""A death is seen so long after it at most."""


@dataclass(slots=True)
class Ended:
    """What became of a request. Times are time.monotonic()'s."""

    wanted: Wanted
    life: int
    """Of which of the servers."""
    sent: float
    ended: float = 0.0
    outcome: str = ""
    """"completed", "cancelled" (by the client), a Failure's name in small letters, or "silent": the stream was closed
    without an error before the answers were complete."""
    message: str = ""
    chunks: list[Chunk] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    identical: bool | None = None
    """Whether a known answer came word by word."""

    @property
    def finished_answers(self) -> int:
        return sum(bool(chunk.finish_reason) for chunk in self.chunks)


class Clients:
    """Sends requests to one life of the server. Used in one event loop."""

    def __init__(self, url: str, model: str, life: int) -> None:
        import grpc
        from tritonclient.grpc import service_pb2_grpc

        options = [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]
        narrow = [("grpc.http2.lookahead_bytes", 4096), ("grpc.http2.bdp_probe", 0)]
        self._channels = [
            grpc.aio.insecure_channel(url, options=options),
            grpc.aio.insecure_channel(url, options=[*options, *narrow]),
        ]
        """The second is the slow readers', whose window is soon full."""
        self._stubs = [service_pb2_grpc.GRPCInferenceServiceStub(channel) for channel in self._channels]
        self._model, self._life = model, life

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()

    async def send(self, wanted: Wanted) -> Ended:
        """Send it and wait for its end."""
        import grpc

        ended = Ended(wanted, self._life, time.monotonic())
        metadata = (("triton_grpc_error", "true"),) if wanted.codes else ()
        call = self._stubs[wanted.kind is Kind.SLOW].ModelStreamInfer(metadata=metadata)
        try:
            await call.write(wanted.message(self._model))
            if wanted.half_close:
                await call.done_writing()
            if wanted.kind is Kind.CANCELLED and not wanted.leave_answering:
                await self._until(call, ended, wanted.leave_after)
            else:
                await self._read(call, ended)
                await self._part(call, ended)
        except grpc.aio.AioRpcError as error:
            ended.outcome = classify(error.code().name, error.details() or "").name.lower()
            ended.message = f"{error.code().name}: {error.details()}"
        except asyncio.InvalidStateError as error:  # grpc.aio's word for a stream that is over already
            ended.outcome, ended.message = "gone", str(error)
        finally:
            call.cancel()
        ended.ended = time.monotonic()
        return ended

    async def _until(self, call: Any, ended: Ended, seconds: float) -> None:
        """Read for so long, then go away."""
        reading = asyncio.ensure_future(self._read(call, ended))
        done, _ = await asyncio.wait([reading], timeout=seconds)
        if done:
            await reading
            return
        call.cancel()
        ended.outcome = "cancelled"
        await asyncio.wait([reading])
        if not reading.cancelled():
            reading.exception()  # whatever it is: the client is gone

    async def _part(self, call: Any, ended: Ended) -> None:
        """Let the server end the stream, which frees what it has of it (see above)."""
        import grpc

        if ended.outcome == "cancelled" or call.done():
            return
        if not ended.wanted.half_close:
            await call.done_writing()
        while await call.read() is not grpc.aio.EOF:
            ended.violations.append("something came after the last answer's end")

    async def _read(self, call: Any, ended: Ended) -> None:
        import grpc

        wanted, pauses = ended.wanted, list(ended.wanted.pauses)
        while ended.finished_answers < wanted.answers:
            response = await call.read()
            if response is grpc.aio.EOF:
                await self._raise_status(call)
                ended.outcome = ended.outcome or "silent"
                return
            if response.error_message:
                ended.outcome = classify("", response.error_message).name.lower()
                ended.message = response.error_message
                return
            if response.infer_response.outputs:
                ended.chunks.append(read_chunk(response.infer_response))
            if pauses:
                await asyncio.sleep(pauses.pop())
            if wanted.leave_answering and wanted.kind is Kind.CANCELLED and len(ended.chunks) == 1:
                await asyncio.sleep(wanted.leave_after)
                call.cancel()
                ended.outcome = "cancelled"
                return
        ended.outcome = "completed"

    @staticmethod
    async def _raise_status(call: Any) -> None:
        import grpc

        code = await call.code()
        if code is not grpc.StatusCode.OK:
            raise grpc.aio.AioRpcError(code, None, None, details=await call.details())


@dataclass(frozen=True, slots=True)
class Judge:
    """Finds what is wrong with an answer."""

    token_bytes: TokenBytes
    ends: frozenset[int]
    """Tokens that end a sequence."""
    known: dict[int, Chunk] = field(default_factory=dict)
    """The answers to the known prompts, each in one piece."""

    def look(self, ended: Ended, died: float | None) -> None:
        """Write down what is wrong; `died` is when its server did."""
        wanted, say = ended.wanted, ended.violations.append
        if ended.outcome == "silent":
            say("the stream ended without an error and before the answer did")
        left = ended.outcome == "cancelled" and wanted.kind is Kind.CANCELLED
        if ended.outcome in ("gone", "failed", "cancelled") and not left:
            if died is None or ended.ended < died - CLOCK_SECONDS:
                say(f"the server lives, and a request got {ended.outcome}: {ended.message}")
        elif wanted.kind is Kind.MALFORMED:
            if ended.outcome not in ("refused", "no_model"):
                say(f"{wanted.spoiled}: {ended.outcome} {ended.message}, where an error was due")
            return
        elif ended.outcome in ("refused", "no_model"):
            say(f"a request without a fault got {ended.message}")
        for index in range(wanted.answers):
            self._look_at(index, ended, say)

    def _look_at(self, index: int, ended: Ended, say: Callable[[str], None]) -> None:
        chunks = [chunk for chunk in ended.chunks if chunk.sequence_index == index]
        tokens = [token for chunk in chunks for token in chunk.token_ids]
        sampling = ended.wanted.generation.sampling
        over = bool(chunks) and bool(chunks[-1].finish_reason)
        reason = chunks[-1].finish_reason if chunks else ""
        if any(chunk.finish_reason for chunk in chunks[:-1]):
            say("something came after the answer's end")
        if not ended.wanted.generation.stream and len(chunks) > 1:
            say("an answer that was asked for in one piece came in several")
        if over and reason not in ("stop", "length"):
            say(f"an answer ended with {reason!r}")
        if reason == "length" and len(tokens) != sampling.max_tokens:
            say(f"{len(tokens)} tokens came, and the answer is said to have ended at {sampling.max_tokens}")
        if len(tokens) > (sampling.max_tokens or 0):
            say(f"{len(tokens)} tokens came of at most {sampling.max_tokens}")
        if over and sampling.log_probs and sum(len(chunk.log_probs) for chunk in chunks) != len(tokens):
            say("there are not as many log probabilities as tokens")
        if chunks:
            self._compare_text(chunks, tokens, over, reason, ended, say)
        if ended.wanted.known >= 0 and self.known:
            self._compare_known(tokens, over, ended, say)

    def _compare_text(
        self, chunks: list[Chunk], tokens: list[int], over: bool, reason: str, ended: Ended, say: Callable[[str], None]
    ) -> None:
        """The text is that of the tokens, cut at a stop word, and nothing came after what ends it."""
        sampling = ended.wanted.generation.sampling
        words = tuple(word for word in sampling.stop_words if word)
        reader, text, stopped = Detokenizer(self.token_bytes, words), "", False
        for token in tokens:
            if stopped:
                say("a token came after what ends the answer")
            if token in self.ends and not sampling.ignore_eos:
                stopped = True
            else:
                text += reader.push(token)
                stopped = reader.stopped
        text += reader.finish() if over else ""
        if over and stopped != (reason == "stop"):
            say(f"the answer ended with {reason!r}, and its tokens say otherwise")
        came = "".join(chunk.text for chunk in chunks)
        if came != text:
            say(f"the text {came[-60:]!r} is not that of the tokens, {text[-60:]!r}")

    def _compare_known(self, tokens: list[int], over: bool, ended: Ended, say: Callable[[str], None]) -> None:
        """The same tokens as before, or another way from a near tie on."""
        before = self.known[ended.wanted.known]
        place = next(
            (i for i, pair in enumerate(zip(tokens, before.token_ids, strict=False)) if pair[0] != pair[1]), -1
        )
        if over:
            ended.identical = place < 0 and len(tokens) == len(before.token_ids)
        if place < 0:
            return
        top = dict(before.top_log_probs[place])
        apart = top[before.token_ids[place]] - top.get(tokens[place], float("-inf"))
        if apart > NEAR_TIE:
            say(
                f"token {place} of known answer {ended.wanted.known} is {tokens[place]}, {apart:.2f} nats from the best"
            )
