from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serving.conftest import VOCAB, byte_level_tokenizer, config
from tests.serving.test_engine import Answer
from trtbuild.serving.engine import Engine, make_scheduler
from trtbuild.serving.errors import BackendError
from trtbuild.serving.generation import Output
from trtbuild.serving.runners.base import StepRow
from trtbuild.serving.sampling import SamplingParams
from trtbuild.serving.scheduler import Plan, Row
from trtbuild.serving.sequence import Sequence as Request
from trtbuild.serving.step_log import HEADER, VARIABLE, StepLog, open_step_log
from trtbuild.serving.text import TokenBytes
from trtbuild.serving.work import Work, work_of


class Clockwork:
    """Half a second a step, on a clock that nothing else moves; a token of the prompt makes its step fail."""

    BAD = 7

    def __init__(self) -> None:
        self.now = 0.0

    def step(self, rows: Sequence[StepRow]) -> list[Any]:
        self.now += 0.5
        if any(self.BAD in row.tokens for row in rows):
            raise RuntimeError("bad token")
        return [np.eye(1, VOCAB, 9, dtype=np.float32)[0] for row in rows if row.wants_logits]

    def clear(self, pages: Sequence[int]) -> None: ...

    def close(self) -> None: ...


def test_every_step_is_recorded_with_all_that_it_took(tmp_path: Path) -> None:
    runner, lines, answer, failed = Clockwork(), [], Answer(), Answer()  # type: ignore[var-annotated]
    file = tmp_path / "tiny.csv"
    log = StepLog(file, "tiny on clockwork", lines.append)
    tokens = TokenBytes(byte_level_tokenizer())
    engine = Engine(config(), runner, tokens, lines.append, step_log=log, clock=lambda: runner.now)  # type: ignore[arg-type]

    def hand_out(output: Output) -> None:
        runner.now += 0.25
        answer.take(output)

    engine.submit(list(range(10, 20)), SamplingParams(max_tokens=3), hand_out)
    engine.start()
    answer.wait()
    engine.submit([Clockwork.BAD], SamplingParams(max_tokens=3), failed.take)
    assert failed.wait().reason == "error"
    engine.stop(1.0)
    log.close()
    # 10 tokens in chunks of 8 and 2, which see 36 and 2 * 8 + 3 keys; then two answers that see 11 and 12.
    steps = ["1,8,8,36,0,0,0.5000000", "1,2,10,19,0,0,0.7500000"]
    steps += ["0,0,0,0,1,11,0.7500000", "0,0,0,0,1,12,0.7500000"]
    assert file.read_text() == "\n".join(["# tiny on clockwork", HEADER, *steps, ""])


def test_the_answers_of_the_native_form_are_one_run_over_their_slots() -> None:
    scheduler = make_scheduler(config())
    requests = [Request(list(range(length)), 9) for length in (3, 5, 4)]
    for request in requests:
        scheduler.add(request)
    while any(request.pending for request in requests):
        plan = scheduler.plan(0.0)
        assert plan is not None
        scheduler.commit(plan, 0.0)
    slots = [request.table.pages[0] for request in requests]
    rows = [Row(request, len(request.tokens), 1) for request in (requests[0], requests[2])]
    width = abs(slots[2] - slots[0]) + 1
    # Each of the slots from the first to the last is looked at as far as the longest, 4 and the new token.
    assert work_of(Plan(rows, answers=2), mixes=False) == Work(answers=width, answered=width * 5)
    assert work_of(Plan(rows, answers=2), mixes=True) == Work(answers=2, answered=4 + 5)


def test_a_folder_is_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert open_step_log("tiny", "", print) is None
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    (tmp_path / "tiny.csv").write_text("of the load before")
    log = open_step_log("tiny", "tiny on nothing", print)
    assert log is not None
    log.close()
    assert (tmp_path / "tiny.csv").read_text() == f"# tiny on nothing\n{HEADER}\n"
    monkeypatch.setenv(VARIABLE, str(tmp_path / "missing"))
    with pytest.raises(BackendError, match=f"{VARIABLE}.*missing/tiny.csv: No such file"):
        open_step_log("tiny", "", print)
    (tmp_path / "full.csv").symlink_to("/dev/full")
    with pytest.raises(BackendError, match="No space left"):
        StepLog(tmp_path / "full.csv", "", print)


def test_a_full_disk_ends_the_record_and_nothing_else(tmp_path: Path) -> None:
    lines: list[str] = []
    log = StepLog(tmp_path / "tiny.csv", "", lines.append)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, log._out.fileno())
    os.close(full)
    for _ in range(3):
        log.record(Work(answers=1, answered=2), 0.1)
    log.close()
    assert len(lines) == 1 and "No space left" in lines[0]
