from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.serving.conftest import CAPACITY, SLOTS, config
from trtbuild.errors import InputError
from trtbuild.serving.work import Work
from trtbuild.simulation.measured import Measured, fit
from trtbuild.simulation.measuring import find_model, read_config, served
from trtbuild.simulation.run import Policy, serve
from trtbuild.simulation.workload import Workload

SLOT = Measured(False, (4e-3, 1e-3, 2e-6, 5e-3, 3e-4, 1e-7))
RAGGED = Measured(True, (4e-3, 5e-4, 3e-4, 1e-7))


def random_works(count: int = 400) -> list[Work]:
    """Steps of any kind."""
    generator = np.random.default_rng(5)
    works = []
    for _ in range(count):
        prompts, answers = (int(generator.integers(0, 4)) for _ in range(2))
        tokens, start, keys = (int(generator.integers(1, most)) for most in (100, 500, 500))
        answers += not prompts
        attended = tokens * start + tokens * (tokens + 1) // 2
        works.append(
            Work(prompts, prompts * tokens, prompts * (start + tokens), prompts * attended, answers, answers * keys)
        )
    return works


@pytest.mark.parametrize("cost", [SLOT, RAGGED])
def test_what_steps_took_is_what_they_cost(cost: Measured) -> None:
    works = random_works()
    found = fit(works, [cost.step(work) for work in works], ragged=cost.ragged)
    assert found.cost.seconds == pytest.approx(cost.seconds, rel=1e-6)
    assert found.r_squared == pytest.approx(1.0) and found.mean_error < 1e-6 and found.total == pytest.approx(1.0)
    assert found.steps == len(works)


def test_noise_makes_steps_neither_shorter_nor_longer() -> None:
    works = random_works(4000)
    noise = np.random.default_rng(0).lognormal(-(0.4**2) / 2, 0.4, len(works))  # of mean 1
    taken = [SLOT.step(work) * factor for work, factor in zip(works, noise, strict=True)]
    found = fit(works, taken, ragged=False)
    assert found.total == pytest.approx(1.0, abs=0.02)
    mean = np.mean([found.cost.step(work) / SLOT.step(work) for work in works])
    assert mean == pytest.approx(1.0, abs=0.02)


def test_an_error_is_that_of_the_steps_themselves() -> None:
    # One kind of step that took 1 s and 3 s: ((1 - c) / p)^2 + ((3 - c) / p)^2 is least at c = 2, whatever p is.
    found = fit([Work(answers=1)] * 2, [1.0, 3.0], ragged=True)
    assert found.cost.step(Work(answers=1)) == pytest.approx(2.0)
    assert found.mean_error == pytest.approx((1.0 + 1 / 3) / 2) and found.total == pytest.approx(1.0)
    assert found.r_squared == pytest.approx(0.0)


def test_what_took_far_too_long_counts_as_three_times_as_long() -> None:
    # Four of 1 s, and one of 100 s that counts as 3c: the mean c = (4 + 3c) / 5 is 2.
    found = fit([Work(answers=1)] * 5, [1.0, 1.0, 100.0, 1.0, 1.0], ragged=True)
    assert found.cost.step(Work(answers=1)) == pytest.approx(2.0, rel=1e-6)


def test_nothing_makes_a_step_faster() -> None:
    works = [Work(1, size, size, 0) for size in (1, 10, 100)]
    found = fit(works, [1.0, 0.9, 0.8], ragged=False)
    assert all(seconds >= 0 for seconds in found.cost.seconds)
    assert found.cost.terms["prompt"] == pytest.approx(0.9)


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
