"""The serving loop: one thread that schedules, runs, samples, detokenises and hands out what came of it."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from collections.abc import Sequence as Ids

import numpy as np
from numpy.typing import NDArray

from .cache import KVCache
from .config import ServingConfig
from .errors import RequestError, Unavailable
from .generation import Generation, Output
from .metrics import Metrics, NoMetrics
from .prefixes import BLOCK
from .runners.base import Log, Runner, StepRow
from .sampling import Sampler, SamplingParams, check_finite
from .scheduler import Plan, Policy, Row, Scheduler
from .sequence import Sequence, Status
from .step_log import StepLog
from .text import Detokenizer, TokenBytes
from .work import work_of


class Engine:
    """Takes prompts from any thread and calls back with their outputs.

    A sequence gets exactly one output with a finish reason, whatever happens: a step that fails ends the sequences in
    it with "error" and the loop goes on; `stop` ends with "error" those that do not finish in time.
    """

    def __init__(
        self,
        config: ServingConfig,
        runner: Runner,
        token_bytes: TokenBytes,
        log: Log,
        *,
        metrics: Metrics | None = None,
        step_log: StepLog | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._runner, self._token_bytes, self._log = config, runner, token_bytes, log
        self._metrics = metrics or NoMetrics()
        self._step_log = step_log
        self._clock = clock
        self._end = frozenset(config.eos_token_ids)
        self.scheduler = make_scheduler(config)
        self._mail = threading.Condition()
        """Guards what follows, and is held for no longer than it takes to look at it: the scheduler is the engine's
        thread's alone, or who submits would have to wait for a moment between two steps."""
        self._arrived: list[Generation] = []
        self._cancelled: list[Generation] = []
        self._stopping = False
        self._abandon = False
        self._thread = threading.Thread(target=self._loop, name="trtbuild-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(
        self,
        prompt: Ids[int],
        params: SamplingParams,
        emit: Callable[[Output], None],
        *,
        count: int = 1,
        priority: int = 0,
        timeout: float | None = None,
    ) -> list[Generation]:
        """Queue a prompt of token ids for `count` answers. `emit` is called in the engine's thread and must return at
        once. `priority` 0 is the default; `timeout` is in seconds, until the first step.

        Raises RequestError for a prompt that is empty or does not fit, Unavailable when stopping. One that there is no
        room for ends with "refused".
        """
        self._check(prompt, params, priority)
        now = self._clock()
        capacity = self._config.cache.capacity
        answers = []
        for index in range(count):
            own = params.for_sequence(index) if count > 1 else params
            answers.append(
                Generation(
                    tokens=list(prompt),
                    limit=min(params.max_tokens, capacity - len(prompt) + 1),
                    priority=priority or self._config.default_priority,
                    arrival=now,
                    deadline=float("inf") if timeout is None else now + timeout,
                    sampler=Sampler(own, prompt, self._end),
                    text=Detokenizer(self._token_bytes, params.stop_words, params.min_tokens),
                    emit=emit,
                    index=index,
                )
            )
        answers[0].followers = answers[1:]
        with self._mail:
            if self._stopping:
                raise Unavailable("The model is shutting down.")
            self._arrived.append(answers[0])
            self._mail.notify_all()
        return answers

    def cancel(self, sequence: Generation) -> None:
        """End a sequence before its next step; nothing happens if it is over."""
        with self._mail:
            sequence.cancelled = True
            self._cancelled.append(sequence)
            self._mail.notify_all()

    def stop(self, timeout: float) -> None:
        """Refuse new prompts, let the others finish for `timeout` seconds, end the rest with an error."""
        with self._mail:
            self._stopping = True
            self._mail.notify_all()
        self._thread.join(timeout)
        with self._mail:
            self._abandon = True
            self._mail.notify_all()
        self._thread.join()

    def _check(self, prompt: Ids[int], params: SamplingParams, priority: int) -> None:
        capacity, vocabulary, levels = self._config.cache.capacity, self._config.vocab_size, self._config.levels
        if not prompt:
            raise RequestError("The prompt is empty; send at least one token.")
        if len(prompt) > capacity:
            raise RequestError(f"The prompt has {len(prompt)} tokens; this model's KV cache holds {capacity}.")
        if max(prompt) >= vocabulary:
            raise RequestError(f"The prompt holds token {max(prompt)}; the model knows 0 to {vocabulary - 1}.")
        if not 0 <= priority <= len(levels):
            raise RequestError(f"priority is {priority}; it must be between 1, the highest, and {len(levels)}.")
        params.check(vocabulary)

    def _loop(self) -> None:
        try:
            while (plan := self._next_plan()) is not None:
                if self._step_log is None:
                    self._do(plan)
                else:
                    self._do_recorded(plan, self._step_log)
        except Exception:  # a fault of this code, not of a request: nobody may be left waiting
            self._log(f"The serving loop failed and takes no more requests:\n{traceback.format_exc()}")
        finally:
            with self._mail:
                self._stopping = True
                left = [*map(_own, self.scheduler.sequences()), *self._arrived]
            for sequence in left:
                self._fail(sequence, "The model stopped before the answer was complete.")

    def _next_plan(self) -> Plan | None:
        """Wait for work; None when there will be no more."""
        while True:
            over = self._read_mail()
            now = self._clock()
            for sequence in map(_own, self.scheduler.expire(now)):
                waited = now - sequence.arrival
                error = f"The request waited {waited:.1f} s and could not be started in its time; try again later."
                self._say_last(sequence, "timeout", error=error)
            if over or (self._stopping and self.scheduler.is_idle and not self._arrived):
                return None
            plan = self.scheduler.plan(now)
            if plan is not None:
                self._metrics.planned(self.scheduler)
                return plan

    def _read_mail(self) -> bool:
        """Take in what has come, waiting for it if there is nothing else to do; whether to leave everything."""
        with self._mail:
            if self.scheduler.is_idle and not (self._arrived or self._cancelled or self._stopping):
                self._metrics.planned(self.scheduler)
                self._mail.wait_for(lambda: self._arrived or self._cancelled or self._stopping)
            arrived, self._arrived = self._arrived, []
            cancelled, self._cancelled = self._cancelled, []
            over = self._abandon
        for sequence in arrived:
            try:
                self.scheduler.add(sequence)
            except Unavailable as error:
                sequence.status = Status.FINISHED
                self._say_last(sequence, "refused", error=f"The model is full: {error} Try again later.")
        for sequence in cancelled:
            if _is_queued(sequence):
                self._finish(sequence, "cancelled")
        return over

    def _do_recorded(self, plan: Plan, step_log: StepLog) -> None:
        rows = plan.rows
        work = work_of(plan, mixes=self.scheduler.policy.mixes)
        self._do(plan)
        if plan.rows is rows:  # else something failed, and that is no time that a step takes
            step_log.record(work, self._clock() - plan.began)

    def _do(self, plan: Plan) -> None:
        try:
            if plan.copies:
                self._runner.copy(plan.copies)
        except Exception as error:
            self._log(f"{len(plan.copies)} pages could not be copied:\n{traceback.format_exc()}")
            targets = {copy.target for copy in plan.copies}
            relying = [s for s in map(_own, self.scheduler.running) if not targets.isdisjoint(s.table.pages)]
            for sequence in relying:
                self._fail(sequence, f"The model failed at this step: {error}")
            for page in targets:
                self.scheduler.cache.distrust(page)
            plan.rows = [row for row in plan.rows if row.sequence.status is Status.RUNNING]
        logits = self._run(plan)
        now = self._clock()
        self.scheduler.commit(plan, now)
        self._metrics.stepped(plan, now - plan.began)
        complete = [_own(row.sequence) for row in plan.rows if row.completes]
        for sequence, row_logits in zip(complete, logits, strict=True):
            try:
                self._advance(sequence, row_logits, now)
            except Exception as error:
                self._log(f"A sequence failed after its step:\n{traceback.format_exc()}")
                self._fail(sequence, f"This request failed: {error}")

    def _run(self, plan: Plan) -> list[NDArray[np.float32]]:
        """The logits of the plan's rows, as `Runner.step`. If they cannot be run together, each is run alone: what a
        row writes depends on no other. Those that fail then are over, and out of the plan."""
        try:
            return self._runner.step([_step_row(row) for row in plan.rows])
        except Exception:
            self._log(f"A step of {len(plan.rows)} sequences failed:\n{traceback.format_exc()}")
        logits, rows = [], plan.rows
        plan.rows = []
        for row in rows:
            try:
                logits += [found.copy() for found in self._runner.step([_step_row(row)])]
                plan.rows.append(row)
            except Exception as error:
                self._log(f"A step of one sequence failed:\n{traceback.format_exc()}")
                self._fail(_own(row.sequence), f"The model failed at this step: {error}")
        return logits

    def _advance(self, sequence: Generation, logits: NDArray[np.float32], now: float) -> None:
        """Choose the next token from `logits` f32 [vocab], and say what it brings."""
        sampler = sequence.sampler
        if sampler.takes_highest:
            token = int(logits.argmax())
            check_finite(float(logits[token]))
        else:
            token = sampler.sample(logits)
        sampler.accept(token)
        if sampler.params.log_probs is not None:
            sequence.log_probs.append(sampler.log_probs(logits, token))
        self._metrics.chose(sequence, now)
        self.scheduler.append(sequence, token)
        followers, sequence.followers = sequence.followers, []
        for follower in followers:
            self.scheduler.add(follower, unlimited=True)
            if follower.cancelled:
                self.cancel(follower)
        ends = token in self._end and not sampler.params.ignore_eos
        text = "" if ends else sequence.text.push(token)
        if ends or sequence.text.stopped:
            self._finish(sequence, "stop", text + sequence.text.finish())
        elif sequence.remaining <= 0:
            self._finish(sequence, "length", text + sequence.text.finish())
        elif text:
            self._emit(sequence, text)

    def _finish(self, sequence: Generation, reason: str, text: str = "") -> None:
        self.scheduler.finish(sequence)
        self._say_last(sequence, reason, text)

    def _fail(self, sequence: Generation, error: str) -> None:
        if sequence.status is Status.FINISHED:
            return
        pages = self.scheduler.fail(sequence) if sequence.order >= 0 else []
        try:
            if pages:
                self._runner.clear(pages)
        except Exception:
            self._log(f"The pages {pages} could not be cleared:\n{traceback.format_exc()}")
        self._say_last(sequence, "error", error=error)

    def _say_last(self, sequence: Generation, reason: str, text: str = "", error: str = "") -> None:
        self._metrics.finished(sequence, reason, self._clock())
        self._emit(sequence, text, reason, error)
        for follower in sequence.followers:  # they were never queued: nothing was there for them to share
            follower.status = Status.FINISHED
            self._emit(follower, "", reason, error)

    def _emit(self, sequence: Generation, text: str, reason: str = "", error: str = "") -> None:
        tokens = tuple(sequence.tokens[sequence.prompt_length + sequence.shown :])
        sequence.shown = sequence.generated
        log_probs, sequence.log_probs = tuple(sequence.log_probs), []
        try:
            sequence.emit(Output(text, tokens, reason, error, sequence.index, sequence.cached, log_probs))
        except Exception:  # nobody can be told any more
            self._log(f"An output could not be handed out; its request is cancelled:\n{traceback.format_exc()}")
            self.cancel(sequence)


def make_scheduler(config: ServingConfig) -> Scheduler:
    """The scheduler and the books of the cache for the model that `config` describes.

    A slot of the native form is one page, rounded up to whole blocks. Keys that depend on the length of their sequence
    (dynamic NTK) are of no use to another.
    """
    cache = config.cache
    reuse = config.prefix_reuse and (not config.sequence_lengths or config.recompute_past is not None)
    if cache.page_size:
        books = KVCache(cache.pages, cache.page_size, reuse=reuse)
    else:
        books = KVCache(cache.slots, -(-cache.capacity // BLOCK) * BLOCK, reuse=reuse, together=True)
    policy = Policy(
        batch=cache.slots,
        prefill=config.prefill_chunk,
        tokens=config.prefill_chunk + cache.slots,
        levels=config.levels,
        itl_objective=config.itl_objective,
        patience=config.patience,
        mixes=cache.page_size > 0,
        recompute_past=config.recompute_past,
    )
    return Scheduler(books, policy)


def _is_queued(sequence: Generation) -> bool:
    """Whether the scheduler knows it: another answer to a prompt joins it late."""
    return sequence.order >= 0 and sequence.status is not Status.FINISHED


def _own(sequence: Sequence) -> Generation:
    """What the scheduler knows as a sequence."""
    assert isinstance(sequence, Generation)
    return sequence


def _step_row(row: Row) -> StepRow:
    tokens, stop = row.sequence.tokens, row.start + row.size
    return StepRow(row.sequence.table.pages, tokens[row.start : stop], row.start, len(tokens), row.completes)
