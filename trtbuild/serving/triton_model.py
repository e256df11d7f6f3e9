"""The Triton Python backend's model: requests in, responses out; everything between is the engine's.

Who decides what runs next. Triton's queue knows priorities, this model does not, so `execute` takes a request only
when the engine has use for it: a free slot, or one of `max_waiting` places (which hide the time Triton needs to hand
over the next request). Until then `execute` blocks, and Triton keeps the others queued, ordered, timed out and
cancelled by its own policy. While it blocks, the request in hand is still watched for cancellation, and running
sequences go on, since they live in other threads; when the model is unloaded they finish, which frees slots and lets
`execute` return.

Threads. The engine's thread computes and only puts its outputs into a queue. The delivery thread sends them and asks
whether clients are gone, both of which are round trips to the server's process that the computation need not wait for.
Refusals go that way too: Triton's batcher with priorities overlooks a request that arrives before `execute` has
returned, for up to half a second, and a client that is refused often tries again at once.
"""

from __future__ import annotations

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
from .errors import RequestError
from .interface import INPUTS
from .request import GenerateRequest, parse_request
from .runners import open_runner
from .sequence import Output, Sequence
from .tokenizer import Tokenizer

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
        self._engine = Engine(config, self._runner, self._tokenizer.token_bytes, pb_utils.Logger.log_error)
        self._engine.start()
        self._delivery = Delivery(self._engine)

    def execute(self, requests: list[Any]) -> None:
        """Take each request when there is room for it. Its responses, and its final flag, come from `Delivery`."""
        for request in requests:
            reply = Reply(request.get_response_sender())
            try:
                self._accept(request, reply)
            except RequestError as error:
                self._delivery.put(reply, Refusal(str(error), pb_utils.TritonError.INVALID_ARG))
            except Exception as error:
                pb_utils.Logger.log_error(traceback.format_exc())
                text = f"The model failed to take this request: {error}"
                self._delivery.put(reply, Refusal(text, pb_utils.TritonError.INTERNAL))

    def finalize(self) -> None:
        """Let what runs finish, then give the memory back."""
        self._engine.stop(DRAIN_SECONDS)
        self._delivery.stop()
        self._runner.close()

    def _accept(self, request: Any, reply: Reply) -> None:
        tensors = ((spec.name, pb_utils.get_input_tensor_by_name(request, spec.name)) for spec in INPUTS)
        parsed = parse_request({name: tensor.as_numpy() for name, tensor in tensors if tensor is not None})
        prompt_text, prompt = self._tokenise(parsed)
        reply.streams = parsed.stream
        if parsed.echo:
            reply.text.append(prompt_text)
        while not self._engine.wait_for_room(WATCH_SECONDS):
            if reply.is_cancelled():
                self._delivery.put(reply, Output("", (), "cancelled"))
                return
        sequence = self._engine.submit(prompt, parsed.params, lambda output: self._delivery.put(reply, output))
        self._delivery.put(reply, sequence)

    def _tokenise(self, request: GenerateRequest) -> tuple[str, list[int]]:
        if request.messages:
            text = self._tokenizer.render_chat(request.messages)
            return text, self._tokenizer.encode_chat(text)
        return request.text, self._tokenizer.encode(request.text)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request gets an error, and the code that Triton gives it."""

    message: str
    code: Any


@dataclass(slots=True, eq=False)
class Reply:
    """The responses to one request: whatever happens, the last one, and only it, carries the final flag."""

    sender: Any
    streams: bool = False
    text: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    over: bool = False
    """Whether the final flag was sent."""

    def take(self, output: Output) -> None:
        """Send `output`, or keep it until the sequence is over if the client did not ask for a stream."""
        if output.error:
            self.refuse(Refusal(output.error, pb_utils.TritonError.INTERNAL))
            return
        self.text.append(output.text)
        self.tokens.extend(output.token_ids)
        if output.finish_reason or self.streams:
            self._send(output.finish_reason)

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

    def _send(self, finish_reason: str) -> None:
        outputs = [
            pb_utils.Tensor("text_output", np.array([["".join(self.text).encode()]], np.object_)),
            pb_utils.Tensor("finish_reason", np.array([[finish_reason.encode()]], np.object_)),
            pb_utils.Tensor("output_ids", np.array([self.tokens], np.int32)),
        ]
        self.over = bool(finish_reason)
        self.text.clear()
        self.tokens.clear()
        flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if finish_reason else 0
        self.sender.send(pb_utils.InferenceResponse(output_tensors=outputs), flags=flags)


class Delivery:
    """A thread that sends what the engine produced, and takes back sequences whose client has gone away."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._inbox: queue.SimpleQueue[tuple[Reply, Output | Refusal | Sequence] | None] = queue.SimpleQueue()
        self._open: dict[Reply, Sequence] = {}
        self._thread = threading.Thread(target=self._loop, name="trtbuild-delivery", daemon=True)
        self._thread.start()

    def put(self, reply: Reply, item: Output | Refusal | Sequence) -> None:
        """Send an output or a refusal; cancel a sequence once the client of `reply` is gone. Returns at once."""
        self._inbox.put((reply, item))

    def stop(self) -> None:
        """Send what is left and end."""
        self._inbox.put(None)
        self._thread.join()

    def _loop(self) -> None:
        look_at = 0.0
        while True:
            try:
                item = self._inbox.get(timeout=WATCH_SECONDS if self._open else None)
                if item is None:
                    return
                self._handle(*item)
            except queue.Empty:
                pass
            if time.monotonic() >= look_at:
                self._cancel_abandoned()
                look_at = time.monotonic() + WATCH_SECONDS

    def _handle(self, reply: Reply, item: Output | Refusal | Sequence) -> None:
        if isinstance(item, Sequence):
            if not reply.over:
                self._open[reply] = item
            return
        try:
            if isinstance(item, Refusal):
                reply.refuse(item)
            else:
                reply.take(item)
        except Exception:  # the server does not take it: there is nobody to tell
            pb_utils.Logger.log_error(f"A response could not be sent:\n{traceback.format_exc()}")
            if reply in self._open:
                self._engine.cancel(self._open[reply])
        if reply.over:
            self._open.pop(reply, None)

    def _cancel_abandoned(self) -> None:
        for reply, sequence in self._open.items():
            try:
                gone = reply.is_cancelled()
            except Exception:  # the server forgot the request: nobody waits for it
                pb_utils.Logger.log_error(f"A request could not be asked about:\n{traceback.format_exc()}")
                gone = True
            if gone:
                self._engine.cancel(sequence)
