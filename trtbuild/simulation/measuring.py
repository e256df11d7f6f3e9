"""What the steps of an emitted model take on this machine, by running them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from trtbuild.errors import BuildError, InputError
from trtbuild.progress import Progress, Silent
from trtbuild.serving.config import ServingConfig
from trtbuild.serving.engine import make_scheduler
from trtbuild.serving.errors import BackendError
from trtbuild.serving.runners import open_runner
from trtbuild.serving.runners.base import Runner, StepRow
from trtbuild.simulation.cost import Cost, Work
from trtbuild.simulation.measured import Fit, fit
from trtbuild.simulation.server import Server

ROUNDS = 5
"""Each kind of step is run once a round, and its median counts: whatever else the machine does for a while falls on one
round of all of them."""
_FIRST_PROMPT = 2


def find_model(folder: Path) -> Path:
    """The version's folder in what `compile` made, in a model repository, or itself. Raises InputError."""
    if (folder / "serving.json").is_file():
        return folder
    found = sorted(folder.glob("model_repository/*/*/serving.json")) or sorted(folder.glob("*/*/serving.json"))
    if len(found) != 1:
        what = "none" if not found else f"{len(found)}: name one model's version folder"
        raise InputError(
            f"--measured {folder}: it must hold one emitted model (NAME/1/serving.json), and holds {what}."
        )
    return found[0].parent


def read_config(version: Path) -> ServingConfig:
    """Raises InputError."""
    try:
        return ServingConfig.load(version / "serving.json")
    except ValueError as error:
        raise InputError(f"{version / 'serving.json'}: {error}") from error


def measure(config: ServingConfig, version: Path, progress: Progress | None = None) -> tuple[Fit, str]:
    """Run steps of all sizes that the model takes, on what it would be served by here; what that is comes second.
    Raises BuildError if nothing here can run it."""
    progress = progress or Silent()
    progress.stage("load")
    try:
        runner = open_runner(config, version, lambda line: None)
    except BackendError as error:
        raise BuildError(str(error)) from error
    progress.stage("measure")
    try:
        steps = list(_steps(config))
        taken = np.empty((ROUNDS, len(steps)))
        for _, rows in steps:  # memory and threads are there afterwards
            runner.step(rows)
        for number in range(ROUNDS):
            for place, (_, rows) in enumerate(steps):
                taken[number, place] = _time(runner, rows)
                progress.update(number * len(steps) + place + 1, taken.size)
    finally:
        runner.close()
    seconds = np.median(taken, axis=0).tolist()
    return fit([work for work, _ in steps], seconds, ragged=config.cache.page_size > 0), runner.description


def served(config: ServingConfig, cost: Cost) -> Server:
    """The emitted model with its own slots or pages, priorities and objective."""
    scheduler = make_scheduler(replace(config, prefix_reuse=False))
    cache = scheduler.cache
    return Server(cost, scheduler.policy, cache.pages, cache.page_size, config.cache.capacity)


def _time(runner: Runner, rows: list[StepRow]) -> float:
    begin = time.perf_counter()
    runner.step(rows)
    return time.perf_counter() - begin


def _steps(config: ServingConfig) -> Iterator[tuple[Work, list[StepRow]]]:
    """Answers alone, parts of prompts alone, and in the plugin form both together; as many as there is room for."""
    capacity, slots = config.cache.capacity, config.cache.slots
    sizes = [size for size in _doubling(_FIRST_PROMPT, config.prefill_chunk) if size <= capacity]
    for batch in _doubling(1, slots):
        for start in dict.fromkeys((min(16, capacity - 1), capacity // 4, capacity // 2, capacity - 1)):
            if rows := _rows(config, [(start, 1)] * batch):
                yield Work(answers=batch, answered=batch * (start + 1)), rows
    for size in sizes:
        attended = size * (size + 1) // 2
        for start in dict.fromkeys((0, (capacity - size) // 2, capacity - size)):
            if rows := _rows(config, [(start, size)]):
                yield Work(1, size, start + size, size * start + attended), rows
        if config.cache.page_size and slots > 1:
            half, start = slots // 2, capacity // 2
            if rows := _rows(config, [(0, size), *[(start, 1)] * half]):
                yield Work(1, size, size, attended, half, half * (start + 1)), rows


def _doubling(first: int, last: int) -> list[int]:
    """From `first`, each twice or four times the one before, up to `last` itself."""
    factor = 2 if last <= 16 * first else 4
    found = []
    while first < last:
        found.append(first)
        first *= factor
    return [*found, last]


def _rows(config: ServingConfig, parts: list[tuple[int, int]]) -> list[StepRow]:
    """A step of parts of (start, size), each a sequence; none if the cache has too few pages."""
    cache, rows, used = config.cache, [], 0
    source = np.random.default_rng(0)
    for start, size in parts:
        needed = -(-(start + size) // cache.page_size) if cache.page_size else 1
        tokens = source.integers(0, config.vocab_size, size).tolist()
        rows.append(StepRow(list(range(used, used + needed)), tokens, start, start + size, True))
        used += needed
    return rows if used <= (cache.pages if cache.page_size else cache.slots) else []
