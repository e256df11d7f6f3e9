"""The serving loop: one thread that schedules, runs, samples, detokenises and hands out what came of it."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .cache import SlotCache
from .config import ServingConfig
from .errors import RequestError
from .runners.base import Log, Runner
from .sampling import Sampler, SamplingParams, check_finite
from .scheduler import Decode, Prefill, Scheduler, Step
from .sequence import Output, Sequence, Status
from .text import Detokenizer, TokenBytes


class Engine:
    """Takes prompts from any thread and calls back with their outputs.

    A sequence gets exactly one output with a finish reason, whatever happens: a step that fails ends the sequences in
    it with "error" and the loop goes on; `stop` ends with "error" those that do not finish in time.

    No slot that is in use is ever full between steps: the token that fills a slot is the last of its sequence, which
    `limit` and `_finish_reason` see to. That is why a row without work in a batch always has a free position to
    write to (runners/base.py).
    """

    def __init__(self, config: ServingConfig, runner: Runner, token_bytes: TokenBytes, log: Log) -> None:
        self._runner = runner
        self._token_bytes = token_bytes
        self._log = log
        self._end = frozenset(config.eos_token_ids)
        self._vocab_size = config.vocab_size
        self._cache = SlotCache(config.cache.slots, config.cache.capacity)
        self._scheduler = Scheduler(
            self._cache,
            prefill_chunk=config.prefill_chunk,
            max_waiting=config.max_waiting,
            recompute_past=config.recompute_past,
        )
        self._changed = threading.Condition()  # guards the scheduler and the two flags
        self._stopping = False
        self._abandon = False
        self._thread = threading.Thread(target=self._loop, name="trtbuild-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, prompt: list[int], params: SamplingParams, emit: Callable[[Output], None]) -> Sequence:
        """Queue a prompt of token ids. `emit` is called in the engine's thread and must return at once.

        Raises RequestError for a prompt that is empty or does not fit, without room, or when stopping.
        """
        capacity = self._cache.capacity
        if not prompt:
            raise RequestError("The prompt is empty; send at least one token.")
        if len(prompt) > capacity:
            raise RequestError(f"The prompt has {len(prompt)} tokens; this model's KV cache holds {capacity}.")
        if max(prompt) >= self._vocab_size:
            raise RequestError(f"The prompt holds token {max(prompt)}; the model knows 0 to {self._vocab_size - 1}.")
        sequence = Sequence(
            prompt=np.array(prompt, np.int64),
            limit=min(params.max_tokens, capacity - len(prompt) + 1),
            sampler=Sampler(params),
            text=Detokenizer(self._token_bytes, params.stop_words),
            emit=emit,
        )
        with self._changed:
            if self._stopping:
                raise RequestError("The model is shutting down.")
            try:
                self._scheduler.add(sequence)
            except OverflowError as error:
                raise RequestError(f"The model is full: {error}; try again later.") from error
            self._changed.notify_all()
        return sequence

    def cancel(self, sequence: Sequence) -> None:
        """End a sequence before its next step; nothing happens if it is over."""
        with self._changed:
            sequence.cancelled = True
            self._changed.notify_all()

    def wait_for_room(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds until `submit` has room (or stops for good); whether it has."""
        with self._changed:
            return self._changed.wait_for(lambda: self._scheduler.has_room or self._stopping, timeout)

    def stop(self, timeout: float) -> None:
        """Refuse new prompts, let the others finish for `timeout` seconds, end the rest with an error."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(timeout)
        with self._changed:
            self._abandon = True
            self._changed.notify_all()
        self._thread.join()

    def _loop(self) -> None:
        try:
            while (step := self._next_step()) is not None:
                self._do(step)
        except Exception:  # a fault of this code, not of a request: nobody may be left waiting
            self._log(f"The serving loop failed and takes no more requests:\n{traceback.format_exc()}")
        finally:
            with self._changed:
                self._stopping = True
                left = list(self._scheduler.sequences())
                self._changed.notify_all()
            for sequence in left:
                self._fail(sequence, "The model stopped before the answer was complete.")

    def _next_step(self) -> Step | None:
        """Wait for work; None when there will be no more."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or not self._scheduler.is_idle)
                cancelled = [s for s in self._scheduler.sequences() if s.cancelled]
                step = None if cancelled else self._scheduler.schedule()
                if self._abandon or (self._stopping and self._scheduler.is_idle):
                    return None
            if step is not None:
                return step
            for sequence in cancelled:
                self._finish(sequence, "cancelled")

    def _do(self, step: Step) -> None:
        involved = (step.sequence,) if isinstance(step, Prefill) else step.sequences
        try:
            first, logits = self._prefill(step) if isinstance(step, Prefill) else self._decode(step)
        except Exception as error:
            self._log(f"A step of {len(involved)} sequences failed:\n{traceback.format_exc()}")
            for sequence in involved:
                self._fail(sequence, f"The model failed at this step: {error}")
            return
        with self._changed:
            self._scheduler.commit(step)
        if isinstance(step, Prefill) and not step.completes_prefix:
            return
        highest = logits.argmax(axis=1)
        for sequence in involved:
            row = sequence.slot - first
            try:
                self._advance(sequence, logits[row], int(highest[row]))
            except Exception as error:
                self._log(f"A sequence failed after its step:\n{traceback.format_exc()}")
                self._fail(sequence, f"This request failed: {error}")

    def _prefill(self, step: Prefill) -> tuple[int, NDArray[np.float32]]:
        sequence = step.sequence
        chunk = sequence.prefix[step.start : step.stop]
        logits = self._runner.prefill(sequence.slot, chunk, step.start, len(sequence.prefix))
        return sequence.slot, logits[np.newaxis]

    def _decode(self, step: Decode) -> tuple[int, NDArray[np.float32]]:
        """One token for each row from the first to the last slot that decodes; see runners/base.py for the others."""
        first, last = step.sequences[0].slot, step.sequences[-1].slot
        positions = np.array([self._cache.length(slot) for slot in range(first, last + 1)], np.int64)
        tokens = np.zeros(last - first + 1, np.int64)
        kv = 0
        for sequence in step.sequences:
            row = sequence.slot - first
            tokens[row] = sequence.output[-1]
            kv = max(kv, int(positions[row]) + 1)
        return first, self._runner.decode(first, tokens, positions, kv)

    def _advance(self, sequence: Sequence, logits: NDArray[np.float32], highest: int) -> None:
        """Choose the next token from `logits` f32 [vocab], whose argmax is `highest`, and say what it brings."""
        if sequence.sampler.takes_highest:
            check_finite(float(logits[highest]))
            token = highest
        else:
            token = sequence.sampler.sample(logits)
        self._scheduler.append(sequence, token)
        text = "" if token in self._end else sequence.text.push(token)
        reason = self._finish_reason(sequence, token)
        if reason:
            self._finish(sequence, reason, text + sequence.text.finish())
        elif text:
            self._emit(sequence, text)

    def _finish_reason(self, sequence: Sequence, token: int) -> str:
        if token in self._end or sequence.text.stopped:
            return "stop"
        return "length" if len(sequence.output) >= sequence.limit else ""

    def _finish(self, sequence: Sequence, reason: str, text: str = "", error: str = "") -> None:
        with self._changed:
            self._scheduler.finish(sequence)
            self._changed.notify_all()
        self._emit(sequence, text, reason, error)

    def _fail(self, sequence: Sequence, error: str) -> None:
        if sequence.status is not Status.WAITING:
            try:
                self._runner.clear(sequence.slot)
            except Exception:
                self._log(f"Slot {sequence.slot} could not be cleared:\n{traceback.format_exc()}")
        self._finish(sequence, "error", error=error)

    def _emit(self, sequence: Sequence, text: str, reason: str = "", error: str = "") -> None:
        tokens = tuple(sequence.output[sequence.shown :])
        sequence.shown = len(sequence.output)
        try:
            sequence.emit(Output(text, tokens, reason, error))
        except Exception:  # nobody can be told any more
            self._log(f"An output could not be handed out; its request is cancelled:\n{traceback.format_exc()}")
            sequence.cancelled = True
