from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tests.serving.conftest import CAPACITY, SLOTS, VOCAB, byte_level_tokenizer, config
from tests.serving.stepping import prefill
from trtbuild.serving.cache import Copy
from trtbuild.serving.config import Level
from trtbuild.serving.engine import Engine
from trtbuild.serving.errors import RequestError
from trtbuild.serving.generation import Output
from trtbuild.serving.runners.base import StepRow
from trtbuild.serving.runners.onnxruntime import OnnxRuntimeRunner
from trtbuild.serving.sampling import SamplingParams
from trtbuild.serving.text import TokenBytes

TOKENIZER = byte_level_tokenizer()
OpenTiny = Callable[..., OnnxRuntimeRunner]


@dataclass
class Answer:
    """Collects what one sequence says."""

    outputs: list[Output] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    on_output: Callable[[Output], None] = lambda output: None

    def take(self, output: Output) -> None:
        assert not self.over.is_set(), "an output after the last one"
        self.outputs.append(output)
        if output.finish_reason:
            self.over.set()
        self.on_output(output)

    def wait(self) -> Answer:
        assert self.over.wait(30), "no last output"
        return self

    @property
    def tokens(self) -> list[int]:
        return [token for output in self.outputs for token in output.token_ids]

    @property
    def text(self) -> str:
        return "".join(output.text for output in self.outputs)

    @property
    def reason(self) -> str:
        return self.outputs[-1].finish_reason

    @property
    def error(self) -> str:
        return self.outputs[-1].error


@contextmanager
def running(runner: Any, **changes: Any) -> Iterator[tuple[Engine, list[str]]]:
    lines: list[str] = []
    engine = Engine(config(**changes), runner, TokenBytes(TOKENIZER), lines.append)
    engine.start()
    try:
        yield engine, lines
    finally:
        engine.stop(0.0)


def ask(engine: Engine, prompt: list[int], **params: Any) -> Answer:
    answer = Answer()
    engine.submit(prompt, SamplingParams(**params), answer.take)
    return answer


def prompts(count: int) -> list[list[int]]:
    generator = np.random.default_rng(3)
    return [generator.integers(0, VOCAB, int(generator.integers(1, 30))).tolist() for _ in range(count)]


def greedy(runner: OnnxRuntimeRunner, prompt: list[int], count: int) -> list[int]:
    """The reference: no cache is reused, no batch, no engine; each token from a prefill of everything before it."""
    tokens = list(prompt)
    for _ in range(count):
        for start in range(0, len(tokens), 8):
            logits = prefill(runner, 0, tokens[start : start + 8], start, len(tokens))
        tokens.append(int(logits.argmax()))
    return tokens[len(prompt) :]


def test_batched_is_the_same_as_alone(open_tiny: OpenTiny) -> None:
    """Twelve prompts of different lengths over four slots, in chunks, some cancelled on the way."""
    reference = open_tiny()
    expected = [greedy(reference, prompt, 20) for prompt in prompts(12)]
    assert len({tuple(tokens) for tokens in expected}) == 12  # the model's answers do depend on the prompt
    with running(open_tiny()) as (engine, lines):
        answers = []
        for i, prompt in enumerate(prompts(12)):
            answers.append(ask(engine, prompt, max_tokens=20))
            doomed = Answer()
            (sequence,) = engine.submit(prompt[::-1], SamplingParams(max_tokens=20), doomed.take)
            if i % 2:
                time.sleep(0.003 * i)
            engine.cancel(sequence)
        for answer, tokens in zip(answers, expected, strict=True):
            assert answer.wait().tokens == tokens
            assert answer.reason == "length"
            assert answer.text == TOKENIZER.decode(tokens)
        assert lines == []


def test_a_seed_draws_the_same_tokens_in_any_company(open_tiny: OpenTiny) -> None:
    params = {"temperature": 1.0, "top_p": 0.9, "max_tokens": 15}
    with running(open_tiny()) as (engine, _):
        alone = ask(engine, prompts(1)[0], seed=5, **params).wait().tokens
        crowd = [ask(engine, prompt, seed=i, **params) for i, prompt in enumerate(prompts(6))]
        again = ask(engine, prompts(1)[0], seed=5, **params).wait().tokens
        assert again == alone
        assert len({tuple(answer.wait().tokens) for answer in crowd}) > 1
        assert ask(engine, prompts(1)[0], seed=6, **params).wait().tokens != alone


def test_the_end_of_sequence_token_ends_the_answer_without_text(open_tiny: OpenTiny) -> None:
    expected = greedy(open_tiny(), prompts(1)[0], 12)
    end = expected[7]
    first = expected.index(end)
    with running(open_tiny(), eos_token_ids=(end,)) as (engine, _):
        answer = ask(engine, prompts(1)[0], max_tokens=12).wait()
    assert answer.tokens == expected[: first + 1] and answer.reason == "stop"
    assert answer.text == TOKENIZER.decode(expected[:first])


def test_a_stop_word_ends_the_answer_and_is_not_in_it(open_tiny: OpenTiny) -> None:
    text = TOKENIZER.decode(greedy(open_tiny(), prompts(1)[0], 20))
    word = text[10:13]
    with running(open_tiny()) as (engine, _):
        answer = ask(engine, prompts(1)[0], max_tokens=20, stop_words=(word,)).wait()
        assert answer.reason == "stop" and answer.text == text[: text.index(word)]
        unfinished = ask(engine, prompts(1)[0], max_tokens=20, stop_words=(text[-3:] + "never",)).wait()
        assert unfinished.reason == "length" and unfinished.text == text


@pytest.mark.parametrize("length", [CAPACITY, CAPACITY - 1, CAPACITY - 5])
def test_a_sequence_ends_when_its_slot_is_full(open_tiny: OpenTiny, length: int) -> None:
    """A prompt that fills the slot still gets one token, beside another that is decoding all the while."""
    prompt = np.random.default_rng(1).integers(0, VOCAB, length).tolist()
    reference = open_tiny()
    expected, neighbour = greedy(reference, prompt, 1), greedy(reference, prompts(1)[0], 25)
    with running(open_tiny()) as (engine, lines):
        beside = [ask(engine, prompts(1)[0], max_tokens=25) for _ in range(2)]
        answer = ask(engine, prompt, max_tokens=1000).wait()
        assert len(answer.tokens) == CAPACITY - length + 1 and answer.reason == "length"
        assert answer.tokens[:1] == expected
        assert [other.wait().tokens for other in beside] == [neighbour] * 2
        assert lines == []


@pytest.mark.parametrize(
    "prompt, message",
    [
        ([], "The prompt is empty"),
        ([1] * (CAPACITY + 1), "The prompt has 65 tokens; this model's KV cache holds 64."),
        ([VOCAB], "The prompt holds token 320; the model knows 0 to 319."),
    ],
)
def test_prompts_that_do_not_fit_are_refused(open_tiny: OpenTiny, prompt: list[int], message: str) -> None:
    with running(open_tiny()) as (engine, _), pytest.raises(RequestError, match=message):
        ask(engine, prompt)


def test_cancelling_frees_the_slot_in_every_state(open_tiny: OpenTiny) -> None:
    with running(open_tiny()) as (engine, _):
        answers, sequences = [], []
        for _ in range(SLOTS + 3):  # decoding, in their prompts, waiting
            answers.append(Answer())
            sequences += engine.submit([1] * 40, SamplingParams(max_tokens=25), answers[-1].take)
        for sequence in sequences:
            engine.cancel(sequence)
        assert all(answer.wait().reason in ("cancelled", "length") for answer in answers)
        assert answers[-1].reason == "cancelled" and answers[-1].tokens == []
        assert len(ask(engine, [1], max_tokens=3).wait().tokens) == 3
        engine.cancel(sequences[0])  # over already: nothing happens
        assert engine.scheduler.cache.available == SLOTS


def test_one_more_than_may_wait_is_refused(open_tiny: OpenTiny) -> None:
    levels = (Level(1, 30.0), Level(2, 30.0))
    with running(open_tiny(), levels=levels, default_priority=2) as (engine, _):
        urgent = Answer()
        with engine._mail:  # they all arrive before the next step
            answers = [ask(engine, [1] * 30, max_tokens=30) for _ in range(4)]
            engine.submit([1], SamplingParams(max_tokens=1), urgent.take, priority=1)
        assert [answer.wait().reason for answer in answers] == ["length", "length", "refused", "refused"]
        assert answers[2].error.startswith("The model is full: 2 requests of priority 2 wait already")
        assert urgent.wait().reason == "length"
        assert ask(engine, [1], max_tokens=2).wait().reason == "length"


class Faulty:
    """The real runner, until a step that holds the poisoned token fails."""

    def __init__(self, runner: OnnxRuntimeRunner, poison: int, *, nan: bool = False) -> None:
        self.runner, self.nan, self.poison, self.cleared = runner, nan, poison, list[int]()
        self.description, self.close = runner.description, runner.close

    def step(self, rows: list[StepRow]) -> list[np.ndarray]:
        logits = self.runner.step(rows)
        wanting = [row for row in rows if row.wants_logits]
        return [self._fault(each, self.poison in row.tokens) for row, each in zip(wanting, logits, strict=True)]

    def copy(self, copies: list[Copy]) -> None:
        self.runner.copy(copies)

    def clear(self, pages: list[int]) -> None:
        self.cleared += pages
        self.runner.clear(pages)

    def _fault(self, logits: np.ndarray, poisoned: bool) -> np.ndarray:
        if poisoned and not self.nan:
            raise RuntimeError("cuda error 700")
        return logits * np.float32(np.nan) if poisoned else logits


def test_a_step_that_fails_fails_only_its_sequences(open_tiny: OpenTiny) -> None:
    clean = [[1, 2, 3], [9, 8]]
    expected = [greedy(open_tiny(), prompt, 10) for prompt in clean]
    poison = next(token for token in range(10, VOCAB) if token not in expected[0] + expected[1])
    faulty = Faulty(open_tiny(), poison)
    with running(faulty) as (engine, lines):
        answers = [ask(engine, prompt, max_tokens=10) for prompt in clean]
        failed = ask(engine, [5, poison], max_tokens=10).wait()
        assert failed.reason == "error" and failed.error == "The model failed at this step: cuda error 700"
        assert [answer.wait().tokens for answer in answers] == expected
        assert "cuda error 700" in lines[0] and any("A step of one sequence failed" in line for line in lines)
        assert len(faulty.cleared) == 1


def test_what_could_not_be_copied_is_not_trusted(open_tiny: OpenTiny) -> None:
    """Four prompts are held. The last goes on, and another begins beside it, for which the third's slot moves and
    cannot: both are answered, and so is the third, whose keys are computed anew. Then the same with one that begins as
    the running one does, and whose own copy fails."""
    held = [[number, *range(20, 40)] for number in range(4)]
    again = [[*prompt, 7] for prompt in held]
    expected = {number: greedy(open_tiny(), again[number], 8) for number in (2, 3)}
    runner, failures = open_tiny(), [RuntimeError("cuda error 700")]
    copy = runner.copy

    def fail_once(copies: list[Copy]) -> None:
        if failures:
            raise failures.pop()
        copy(copies)

    runner.copy = fail_once  # type: ignore[method-assign,assignment]
    with running(runner) as (engine, lines):
        for prompt in held:
            ask(engine, prompt, max_tokens=1).wait()
        with engine._mail:  # they begin in the same step
            last, beside = ask(engine, again[3], max_tokens=8), ask(engine, [9] * 20, max_tokens=8)
        assert last.wait().tokens == expected[3] and beside.wait().reason == "length"
        assert not failures and "1 pages could not be copied" in lines[0]
        third = ask(engine, again[2], max_tokens=8).wait()
        assert third.tokens == expected[2] and third.outputs[-1].cached_tokens == 0
        engine.scheduler.check()
        failures.append(RuntimeError("cuda error 700"))
        with engine._mail:
            first, like_it = ask(engine, again[3], max_tokens=8), ask(engine, [*again[3], 8], max_tokens=8)
        assert first.wait().tokens == expected[3]
        assert like_it.wait().error == "The model failed at this step: cuda error 700"


def test_a_decode_step_that_fails_does_not_stop_the_loop(open_tiny: OpenTiny) -> None:
    poison = greedy(open_tiny(), [40, 41], 3)[-1]
    with running(Faulty(open_tiny(), poison)) as (engine, _):
        failed = ask(engine, [40, 41], max_tokens=10).wait()
        assert failed.reason == "error" and failed.tokens[-1] == poison
        assert len(ask(engine, [1], max_tokens=1).wait().tokens) == 1


def test_logits_that_are_no_numbers_fail_one_sequence_of_a_batch(open_tiny: OpenTiny) -> None:
    prompt = prompts(2)[1]
    expected = greedy(open_tiny(), prompt, 10)
    poison = greedy(open_tiny(), [40, 41], 3)[-1]
    assert poison not in expected and poison not in prompt
    with running(Faulty(open_tiny(), poison, nan=True)) as (engine, _):
        good, bad = ask(engine, prompt, max_tokens=10), ask(engine, [40, 41], max_tokens=10)
        assert good.wait().tokens == expected
        assert bad.wait().reason == "error" and "computed nan as a logit" in bad.error


def test_a_callback_that_raises_ends_only_its_own_sequence(open_tiny: OpenTiny) -> None:
    def refuse(output: Output) -> None:
        raise OSError("the client is gone")

    with running(open_tiny()) as (engine, lines):
        (broken,) = engine.submit([1, 2], SamplingParams(max_tokens=40), refuse)
        assert ask(engine, [1, 2], max_tokens=20).wait().reason == "length"
        while not engine.scheduler.is_idle:
            time.sleep(0.01)
        assert 0 < broken.generated < 40 and "the client is gone" in lines[0]


def test_stopping_lets_running_sequences_finish(open_tiny: OpenTiny) -> None:
    with running(open_tiny()) as (engine, _):
        answers = [ask(engine, [1, 2], max_tokens=20) for _ in range(SLOTS * 2)]
        engine.stop(30)
        assert all(answer.reason == "length" and len(answer.tokens) == 20 for answer in answers)
        with pytest.raises(RequestError, match="shutting down"):
            ask(engine, [1])


def test_what_does_not_finish_in_time_is_told_so(open_tiny: OpenTiny) -> None:
    entered, leave = threading.Event(), threading.Event()
    runner = open_tiny()
    step = runner.step

    def stuck(*arguments: Any) -> Any:
        entered.set()
        leave.wait(30)
        return step(*arguments)

    runner.step = stuck  # type: ignore[method-assign]
    with running(runner) as (engine, _):
        answer = ask(engine, [1, 2], max_tokens=20)
        waiting = [ask(engine, [3], max_tokens=20) for _ in range(SLOTS)]
        assert entered.wait(30)
        threading.Timer(0.3, leave.set).start()
        engine.stop(0.05)
        for each in (answer, *waiting):
            assert each.over.is_set() and each.error == "The model stopped before the answer was complete."


def test_a_fault_of_the_loop_leaves_nobody_waiting(open_tiny: OpenTiny, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(open_tiny()) as (engine, lines):

        def broken(plan: Any, now: float) -> None:
            raise AssertionError("a bug in the policy")

        monkeypatch.setattr(engine.scheduler, "commit", broken)
        answers, _ = several(engine, [1, 2], 3, max_tokens=20)  # at once: after the first step nothing is taken
        assert all(answer.wait().reason == "error" for answer in answers)
        assert "a bug in the policy" in lines[0]
        with pytest.raises(RequestError):
            ask(engine, [1])


def test_outputs_come_while_the_sequence_runs(open_tiny: OpenTiny) -> None:
    with running(open_tiny()) as (engine, _):
        answer = ask(engine, [1, 2], max_tokens=20).wait()
    assert len(answer.outputs) > 5
    assert [output.finish_reason for output in answer.outputs[:-1]] == [""] * (len(answer.outputs) - 1)
    assert all(output.text for output in answer.outputs[:-1])
    assert isinstance(answer.outputs[0], Output)


def several(engine: Engine, prompt: list[int], count: int, **params: Any) -> tuple[list[Answer], list[Any]]:
    """An Answer for each of `count` answers, and their sequences."""
    answers = [Answer() for _ in range(count)]
    take = lambda output: answers[output.index].take(output)  # noqa: E731
    return answers, engine.submit(prompt, SamplingParams(**params), take, count=count)


def test_answers_to_one_prompt_share_it_and_draw_by_seeds_of_their_own(open_tiny: OpenTiny) -> None:
    prompt = [*range(40)]
    params = {"temperature": 1.0, "max_tokens": 10}
    with running(open_tiny()) as (engine, _):
        alone = [ask(engine, prompt, seed=5 + index, **params).wait().tokens for index in range(6)]
    with running(open_tiny()) as (engine, lines):
        answers, _ = several(engine, prompt, 6, seed=5, **params)  # more than there are slots
        assert [answer.wait().tokens for answer in answers] == alone
        assert [answer.outputs[-1].cached_tokens for answer in answers] == [0] + [32] * 5
        assert lines == [] and engine.scheduler.cache.available == SLOTS


def test_all_answers_to_a_prompt_end_whatever_happens_to_the_first(open_tiny: OpenTiny) -> None:
    with running(open_tiny(), levels=(Level(1, 30.0),), default_priority=1) as (engine, _):
        with engine._mail:
            cancelled, sequences = several(engine, [1] * 30, 3, max_tokens=20)
            refused, _ = several(engine, [2] * 30, 3, max_tokens=20)
            for sequence in sequences:
                engine.cancel(sequence)
        assert [answer.wait().reason for answer in cancelled] == ["cancelled"] * 3
        assert [answer.wait().reason for answer in refused] == ["refused"] * 3
        late, _ = several(engine, [3] * 30, 2, max_tokens=20)
        for answer in late:
            answer.wait()
        assert engine.scheduler.is_idle
    with running(Faulty(open_tiny(), 7)) as (engine, _):
        failed, _ = several(engine, [7], 3)
        assert [answer.wait().reason for answer in failed] == ["error"] * 3


def test_a_follower_that_was_cancelled_early_is_over_when_its_turn_comes(open_tiny: OpenTiny) -> None:
    with running(open_tiny()) as (engine, _):
        with engine._mail:
            answers, sequences = several(engine, [1] * 30, 3, max_tokens=20)
            engine.cancel(sequences[1])
        assert [answer.wait().reason for answer in answers] == ["length", "cancelled", "length"]


def test_who_is_not_started_in_time_is_told(open_tiny: OpenTiny) -> None:
    now = [0.0]
    engine = Engine(config(), open_tiny(), TokenBytes(TOKENIZER), print, clock=lambda: now[0])
    running_, late = [Answer() for _ in range(SLOTS)], Answer()
    for answer in running_:
        engine.submit([1] * 5, SamplingParams(max_tokens=30), answer.take)
    engine.submit([1], SamplingParams(), late.take, timeout=2.0, priority=3)
    engine._read_mail()
    plan = engine._next_plan()
    assert plan is not None
    now[0] = 2.5
    engine._do(plan)
    engine._next_plan()
    assert late.reason == "timeout" and late.error.startswith("The request waited 2.5 s and could not be started")
    engine.start()
    engine.stop(30)
    assert all(answer.reason == "length" for answer in running_)


def test_an_urgent_request_preempts_and_nobody_notices_but_by_time(open_tiny: OpenTiny) -> None:
    expected = [greedy(open_tiny(), prompt, 25) for prompt in prompts(SLOTS + 1)]
    with running(open_tiny()) as (engine, lines):
        with engine._mail:
            low = [Answer() for _ in range(SLOTS)]
            for answer, prompt in zip(low, prompts(SLOTS), strict=True):
                engine.submit(prompt, SamplingParams(max_tokens=25), answer.take, priority=3)
        while not all(answer.outputs for answer in low):
            time.sleep(0.001)
        urgent = Answer()
        engine.submit(prompts(SLOTS + 1)[-1], SamplingParams(max_tokens=25), urgent.take, priority=1)
        assert [answer.wait().tokens for answer in (*low, urgent)] == expected
        assert lines == []


@pytest.mark.parametrize("priority", [-1, 4])
def test_a_priority_that_does_not_exist_is_refused(open_tiny: OpenTiny, priority: int) -> None:
    with running(open_tiny()) as (engine, _), pytest.raises(RequestError, match="between 1, the highest, and 3"):
        engine.submit([1], SamplingParams(), print, priority=priority)


def test_log_probs_are_those_of_the_models_own_distribution(open_tiny: OpenTiny) -> None:
    runner = open_tiny()
    prompt = prompts(1)[0]
    logits = prefill(runner, 0, prompt[:8], 0, len(prompt)).copy()
    for start in range(8, len(prompt), 8):
        logits = prefill(runner, 0, prompt[start : start + 8], start, len(prompt)).copy()
    expected = logits - np.log(np.exp(logits.astype(np.float64)).sum())
    with running(open_tiny()) as (engine, _):
        answer = ask(engine, prompt, max_tokens=1, log_probs=3, logit_bias=((5, 100.0),)).wait()
    (output,) = answer.outputs
    assert output.token_ids == (5,) and output.log_probs[0].chosen == pytest.approx(expected[5], abs=1e-4)
    best = np.argsort(-expected, kind="stable")[:3]
    assert [token for token, _ in output.log_probs[0].top] == best.tolist()
    assert [value for _, value in output.log_probs[0].top] == pytest.approx(expected[best].tolist(), abs=1e-4)
