"""The Triton Python backend's model: requests in, responses out; everything between is the engine's.

Who decides what runs next: the engine's scheduler, and not Triton's queue. `execute` takes every request at once and
returns, so that Triton's queue is always short; one that there is no room for is refused. That is also why config.pbtxt
has no priority levels: with them Triton's batcher overlooks a request that arrives before `execute` has returned, for
up to half a second, and it would hand the priority to nobody.

Threads. The engine's thread computes and only puts its outputs into a queue. The delivery thread sends them and asks
whether clients are gone, both of which are round trips to the server's process that the computation need not wait for.
Refusals go that way too.
"""

from __future__ import annotations

import json
import queue
import threading
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from .config import ServingConfig
from .engine import Engine
from .errors import RequestError, Unavailable
from .generation import Generation, Output
from .guard import Guard
from .interface import INPUTS
from .log_probs import LogProbs
from .request import GenerateRequest, parse_request
from .runners import open_runner
from .step_log import open_step_log
from .tokenizer import Tokenizer
from .triton_metrics import TritonMetrics

WATCH_SECONDS = 0.05
"""How often it is asked whether a client has gone away."""
DRAIN_SECONDS = 25.0
"""How long running sequences may take to finish on unload; tritonserver waits 30 s before it exits anyway."""


class TritonPythonModel:
    """What the Python backend looks for in model.py."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load what is in the version's folder. An exception here is the reason that Triton gives for the failure."""
        folder = Path(args["model_repository"]) / args["model_version"]
        config = ServingConfig.load(folder / "serving.json")
        device = int(args["model_instance_device_id"]) if args["model_instance_kind"] == "GPU" else 0
        self._tokenizer = Tokenizer(folder)
        self._runner = open_runner(config, folder, pb_utils.Logger.log_info, device=device)
        about = f"{config.model_name} on {self._runner.description}"
        self._step_log = open_step_log(config.model_name, about, pb_utils.Logger.log_error)
        self._metrics = TritonMetrics(config)
        self._engine = Engine(
            config,
            self._runner,
            self._tokenizer.token_bytes,
            pb_utils.Logger.log_error,
            metrics=self._metrics,
            step_log=self._step_log,
        )
        self._engine.start()
        self._delivery = Delivery(self._engine)
        self._guard = Guard(config.model_name)

    def execute(self, requests: list[Any]) -> None:
        """Hand each request to the engine. Its responses, and its final flag, come from `Delivery`."""
        for request in requests:
            reply = Reply(request.get_response_sender())
            try:
                self._accept(request, reply)
            except Unavailable as error:
                self._delivery.put(reply, Refusal(str(error), pb_utils.TritonError.UNAVAILABLE))
            except RequestError as error:
                self._delivery.put(reply, Refusal(str(error), pb_utils.TritonError.INVALID_ARG))
            except Exception as error:
                pb_utils.Logger.log_error(traceback.format_exc())
                text = f"The model failed to take this request: {error}"
                self._delivery.put(reply, Refusal(text, pb_utils.TritonError.INTERNAL))

    def finalize(self) -> None:
        """Let what runs finish, then give the memory back."""
        try:
            self._engine.stop(DRAIN_SECONDS)
            self._delivery.stop()
            self._metrics.stop()
            if self._step_log is not None:
                self._step_log.close()
            self._runner.close()
        finally:
            self._guard.release()

    def _accept(self, request: Any, reply: Reply) -> None:
        tensors = ((spec.name, pb_utils.get_input_tensor_by_name(request, spec.name)) for spec in INPUTS)
        parsed = parse_request({name: tensor.as_numpy() for name, tensor in tensors if tensor is not None})
        prompt_text, prompt = self._tokenise(parsed)
        reply.streams = parsed.stream
        reply.prompt_tokens = len(prompt)
        reply.answers = [_Answer([prompt_text] if parsed.echo else []) for _ in range(parsed.count)]
        sequences = self._engine.submit(
            prompt,
            parsed.params,
            lambda output: self._delivery.put(reply, output),
            count=parsed.count,
            priority=parsed.priority,
            timeout=_shorter(parsed.queue_timeout, request.timeout() / 1e6),
        )
        self._delivery.put(reply, sequences)

    def _tokenise(self, request: GenerateRequest) -> tuple[str, list[int]]:
        if request.messages:
            text = self._tokenizer.render_chat(request.messages)
            return text, self._tokenizer.encode_chat(text)
        return request.text, self._tokenizer.encode(request.text)


def _shorter(own: float | None, triton: float) -> float | None:
    """The shorter of two timeouts in seconds; Triton's is 0 where the client set none."""
    return own if triton <= 0 else triton if own is None else min(own, triton)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request gets an error, and the code that Triton gives it."""

    message: str
    code: Any


@dataclass(slots=True)
class _Answer:
    """What one answer has to say and has not said."""

    text: list[str]
    tokens: list[int] = field(default_factory=list)
    log_probs: list[LogProbs] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Reply:
    """The responses to one request: whatever happens, the last one, and only it, carries the final flag."""

    sender: Any
    streams: bool = False
    prompt_tokens: int = 0
    answers: list[_Answer] = field(default_factory=list)
    finished: int = 0
    """How many answers are over."""
    over: bool = False
    """Whether the final flag was sent."""
    inbox: list[_Item] = field(default_factory=list)
    """What the delivery thread has to do for it; `Delivery`'s lock guards it."""

    def take(self, outputs: list[Output]) -> None:
        """Send what `outputs` say, in one response for each answer, or keep it until the answer is over if the client
        did not ask for a stream."""
        last: dict[int, Output] = {}
        for output in outputs:
            if output.error:
                busy = output.finish_reason in ("refused", "timeout")
                code = pb_utils.TritonError.UNAVAILABLE if busy else pb_utils.TritonError.INTERNAL
                self.refuse(Refusal(output.error, code))
                return
            answer = self.answers[output.index]
            answer.text.append(output.text)
            answer.tokens.extend(output.token_ids)
            answer.log_probs.extend(output.log_probs)
            last[output.index] = output
        for index, output in last.items():
            if output.finish_reason or self.streams:
                self._send(self.answers[index], output)

    def refuse(self, refusal: Refusal) -> None:
        """Send an error as the only or the last response."""
        self.over = True
        error = pb_utils.TritonError(refusal.message, refusal.code)
        self.sender.send(
            pb_utils.InferenceResponse(output_tensors=[], error=error),
            flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
        )

    def is_cancelled(self) -> bool:
        """Whether the client has gone away or taken the request back."""
        return bool(self.sender.is_cancelled())

    def _send(self, answer: _Answer, output: Output) -> None:
        outputs = [
            _string("text_output", "".join(answer.text)),
            _string("finish_reason", output.finish_reason),
            pb_utils.Tensor("output_ids", np.array([answer.tokens], np.int32)),
            _number("sequence_index", output.index),
            _number("prompt_tokens", self.prompt_tokens),
            _number("cached_tokens", output.cached_tokens),
        ]
        if answer.log_probs:
            chosen = [found.chosen for found in answer.log_probs]
            outputs.append(pb_utils.Tensor("output_log_probs", np.array([chosen], np.float32)))
            outputs.append(_string("top_log_probs", json.dumps([found.top for found in answer.log_probs])))
        answer.text.clear()
        answer.tokens.clear()
        answer.log_probs.clear()
        self.finished += bool(output.finish_reason)
        self.over = self.finished == len(self.answers)
        flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if self.over else 0
        self.sender.send(pb_utils.InferenceResponse(output_tensors=outputs), flags=flags)


def _string(name: str, text: str) -> Any:
    return pb_utils.Tensor(name, np.array([[text.encode()]], np.object_))


def _number(name: str, value: int) -> Any:
    return pb_utils.Tensor(name, np.array([[value]], np.int32))


_Item = Output | Refusal | list[Generation]


class Delivery:
    """A thread that sends what the engine produced, and takes back sequences whose client has gone away.

    Sending is slower than computing may be. What has gathered for a request in the meantime goes in one response, so
    that the thread catches up, and nobody waits behind the tokens of others.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._queue: queue.SimpleQueue[Reply | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._open: dict[Reply, list[Generation]] = {}
        self._thread = threading.Thread(target=self._loop, name="trtbuild-delivery", daemon=True)
        self._thread.start()

    def put(self, reply: Reply, item: _Item) -> None:
        """Send an output or a refusal; cancel sequences once the client of `reply` is gone. Returns at once."""
        with self._lock:
            reply.inbox.append(item)
            first = len(reply.inbox) == 1
        if first:
            self._queue.put(reply)

    def stop(self) -> None:
        """Send what is left and end."""
        self._queue.put(None)
        self._thread.join()

    def _loop(self) -> None:
        look_at = 0.0
        while True:
            try:
                reply = self._queue.get(timeout=WATCH_SECONDS if self._open else None)
                if reply is None:
                    return
                self._handle(reply)
            except queue.Empty:
                pass
            if time.monotonic() >= look_at:
                self._cancel_abandoned()
                look_at = time.monotonic() + WATCH_SECONDS

    def _handle(self, reply: Reply) -> None:
        with self._lock:
            items, reply.inbox = reply.inbox, []
        if reply.over:
            return  # one of its answers failed, and with it the request
        for item in items:
            if isinstance(item, list):
                self._open[reply] = item
        outputs = [item for item in items if isinstance(item, Output)]
        refusals = [item for item in items if isinstance(item, Refusal)]
        try:
            if outputs:
                reply.take(outputs)
            for refusal in refusals:
                reply.refuse(refusal)
        except Exception:  # the server does not take it: there is nobody to tell
            pb_utils.Logger.log_error(f"A response could not be sent:\n{traceback.format_exc()}")
            self._cancel(reply)
        if reply.over:
            self._cancel(reply)  # what is left of it: one of its answers failed
            self._open.pop(reply, None)

    def _cancel_abandoned(self) -> None:
        for reply in self._open:
            try:
                gone = reply.is_cancelled()
            except Exception:  # the server forgot the request: nobody waits for it
                pb_utils.Logger.log_error(f"A request could not be asked about:\n{traceback.format_exc()}")
                gone = True
            if gone:
                self._cancel(reply)

    def _cancel(self, reply: Reply) -> None:
        for sequence in self._open.get(reply, ()):
            self._engine.cancel(sequence)
