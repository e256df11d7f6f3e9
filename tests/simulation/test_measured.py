from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serving.conftest import CAPACITY, CHUNK, SLOTS, VOCAB, config
from trtbuild.errors import BuildError, InputError
from trtbuild.serving.config import Cache, ServingConfig
from trtbuild.serving.errors import BackendError
from trtbuild.serving.runners.base import StepRow
from trtbuild.simulation import measuring
from trtbuild.simulation.cost import Work
from trtbuild.simulation.measured import Measured, fit
from trtbuild.simulation.measuring import find_model, measure, read_config, served
from trtbuild.simulation.run import Policy, serve
from trtbuild.simulation.workload import Workload

SLOT = Measured(False, (4e-3, 1e-3, 2e-6, 5e-3, 3e-4, 1e-7))
RAGGED = Measured(True, (4e-3, 5e-4, 3e-4, 1e-7))
PAGED = config(cache=Cache(2, SLOTS, 2, CAPACITY, 16, 16, page_size=16, pages=10))


class Clockwork:
    """A runner that takes what `cost` says, on a clock that nothing else moves, and checks what it is asked."""

    description = "clockwork"

    def __init__(self, config: ServingConfig, cost: Measured) -> None:
        self.config, self.cost, self.now, self.closed = config, cost, 0.0, False

    def step(self, rows: Sequence[StepRow]) -> list[Any]:
        cache = self.config.cache
        pages = [page for row in rows for page in row.pages]
        assert len(set(pages)) == len(pages) and max(pages) < (cache.pages or cache.slots) and len(rows) <= cache.slots
        assert all(len(row.tokens) <= CHUNK and row.length == row.start + len(row.tokens) <= CAPACITY for row in rows)
        assert all(len(row.pages) * (cache.page_size or CAPACITY) >= row.length for row in rows)
        assert all(0 <= token < VOCAB for row in rows for token in row.tokens)
        longer = [(row.start, len(row.tokens)) for row in rows if len(row.tokens) > 1]
        single = [row.start + 1 for row in rows if len(row.tokens) == 1]
        attended = sum(size * start + size * (size + 1) // 2 for start, size in longer)
        tokens = sum(size for _, size in longer)
        self.now += self.cost.step(Work(len(longer), tokens, 0, attended, len(single), sum(single)))
        return []

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(("own", "cost"), [(config(), SLOT), (PAGED, RAGGED)])
def test_what_was_measured_is_what_the_runner_takes(
    own: ServingConfig, cost: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = Clockwork(own, cost)
    monkeypatch.setattr(measuring, "open_runner", lambda *arguments: runner)
    monkeypatch.setattr(measuring.time, "perf_counter", lambda: runner.now)
    found, where = measure(own, Path())
    assert found.cost.seconds == pytest.approx(cost.seconds, rel=1e-6)
    assert found.r_squared == pytest.approx(1.0) and found.worst < 1e-6
    assert where == "clockwork" and runner.closed


def test_an_error_is_that_of_the_steps_themselves() -> None:
    # One kind of step that took 1 s and 3 s: (c - 1)^2 + (c / 3 - 1)^2 is least at c = 1.2, and 1.2 is 60% below 3.
    found = fit([Work(answers=1)] * 2, [1.0, 3.0], ragged=True)
    assert found.cost.step(Work(answers=1)) == pytest.approx(1.2)
    assert found.worst == pytest.approx(0.6) and found.mean == pytest.approx((0.2 + 0.6) / 2)
    assert found.r_squared == pytest.approx(1 - (0.2**2 + 1.8**2) / 2)


def test_nothing_makes_a_step_faster() -> None:
    works = [Work(1, size, size, 0) for size in (1, 10, 100)]
    found = fit(works, [1.0, 0.9, 0.8], ragged=False)
    assert all(seconds >= 0 for seconds in found.cost.seconds)
    assert found.cost.terms["prompt"] == pytest.approx(
        sum(1 / s for s in (1, 0.9, 0.8)) / sum(s**-2 for s in (1, 0.9, 0.8))
    )


def test_a_measured_model_is_simulated_with_its_own_slots() -> None:
    own = config()
    server = served(own, SLOT)
    # 10 tokens of prompt in parts of 8 and 2; then two answers of one token each, that see 11 and 12 keys.
    asked = Workload(np.array([0.0]), np.array([10]), np.array([3]), np.array([2]))
    outcome = serve(Policy.ADAPTIVE, asked, server)
    first = 2 * 5e-3 + 10 * 3e-4 + (36 + 8 * 2 + 3) * 1e-7
    assert outcome.first[0] == pytest.approx(first)
    assert outcome.last[0] == pytest.approx(first + 2 * (4e-3 + 1e-3) + (11 + 12) * 2e-6)
    assert (server.policy.batch, server.capacity) == (SLOTS, CAPACITY)
    with pytest.raises(InputError, match=f"at most {CAPACITY}"):
        serve(Policy.ADAPTIVE, Workload(np.array([0.0]), np.array([60]), np.array([5]), np.array([2])), server)


def test_the_model_is_found_in_what_compile_made(tmp_path: Path) -> None:
    version = tmp_path / "out" / "model_repository" / "tiny" / "1"
    version.mkdir(parents=True)
    (version / "serving.json").write_text(config().to_json())
    assert find_model(tmp_path / "out") == find_model(tmp_path / "out" / "model_repository") == version
    assert find_model(version) == version and read_config(version) == config()
    with pytest.raises(InputError, match="holds none"):
        find_model(tmp_path / "nowhere")
    (version / "serving.json").write_text("{}")
    with pytest.raises(InputError, match=r"serving.json.*format"):
        read_config(version)


def test_where_nothing_runs_it_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise BackendError("no GPU here")

    monkeypatch.setattr(measuring, "open_runner", fail)
    with pytest.raises(BuildError, match="no GPU here"):
        measure(config(), Path())
