"""Measuring one server, or two with the same requests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trtbuild.errors import BuildError, InputError
from trtbuild.loadtest.endpoint import Endpoint, Folder, Opened
from trtbuild.loadtest.generator import Generator, Run
from trtbuild.loadtest.prompts import CountTokens, count_by_words, load_text
from trtbuild.loadtest.summary import Summary, by_priority, summarise
from trtbuild.loadtest.target import Asking
from trtbuild.loadtest.workload import PlannedRequest, Workload, WorkloadOptions
from trtbuild.progress import Progress, Silent
from trtbuild.slo import Slo


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """`text` is what prompts are cut from, `tokenizer` a folder with the tokenizer.json that measures them: each the
    default if None (the calibration's prose; a target's own, or words). `timeout` is for each request, in seconds from
    when it was due; `warm_up` requests come before those that count."""

    workload: WorkloadOptions
    asking: Asking = field(default_factory=Asking)
    slo: Slo = field(default_factory=Slo)
    text: Path | None = None
    tokenizer: Path | None = None
    timeout: float = 300.0
    warm_up: int = 1


@dataclass(frozen=True, slots=True)
class Measured:
    """One server's."""

    label: str
    model: str
    run: Run
    summary: Summary
    by_priority: dict[int, Summary]
    """Empty if there is only one priority."""


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Of one server or two; the second is missing if the first one's run was stopped."""

    options: BenchOptions
    measured: tuple[Measured, ...]
    notes: tuple[str, ...] = ()
    """What a reader of the figures must know."""

    @property
    def exit_code(self) -> int:
        """128 and the signal's number for a run that was stopped by one; 1 for a server that went away or completed
        nothing; 0 otherwise, errors or not, for they are results."""
        last = self.measured[-1]
        if last.run.signal is not None:
            return 128 + last.run.signal
        return int(bool(last.run.stopped) or any(not each.summary.completed for each in self.measured))


def bench(
    target: Endpoint, options: BenchOptions, *, against: Endpoint | None = None, progress: Progress | None = None
) -> BenchResult:
    """Measure `target`, and then `against` with the same requests at the same times.

    Must be called in the main thread for SIGINT and SIGTERM to end a run with what was measured until then. Raises
    InputError for options or a text or tokenizer that cannot be used, BuildError if a server cannot be reached or
    fails at the first request.
    """
    progress = progress or Silent()
    endpoints = [target, *([against] if against is not None else [])]
    count_tokens, notes = _token_counter(endpoints, options)
    workload = Workload(options.workload, load_text(options.text), count_tokens)
    for endpoint in endpoints:
        endpoint.check()
    planned = _planned(workload, progress)
    measured: list[Measured] = []
    for endpoint in endpoints:
        again = " (again)" if measured and endpoint.label == target.label else ""
        with endpoint.open(options.asking, progress) as opened:
            progress.stage(endpoint.label)
            run = asyncio.run(_run(opened, workload, planned, options, progress))
        notes += [*opened.notes, *_findings(endpoint, planned, run)]
        seconds, slo = run.seconds, options.slo
        measured.append(
            Measured(
                endpoint.label + again,
                opened.model,
                run,
                summarise(run.records, seconds, slo),
                by_priority(run.records, seconds, slo),
            )
        )
        if run.stopped:
            break
    return BenchResult(options, tuple(measured), tuple(notes))


async def _run(
    opened: Opened,
    workload: Workload,
    planned: Sequence[PlannedRequest],
    options: BenchOptions,
    progress: Progress,
) -> Run:
    try:
        await opened.target.connect()
    except OSError as error:
        raise BuildError(f"{opened.target.label} cannot be reached: {error}") from error
    try:
        generator = Generator(opened.target, workload, timeout=options.timeout, progress=progress)
        return await generator.run(planned, options.warm_up)
    finally:
        await opened.target.close()


def _planned(workload: Workload, progress: Progress) -> list[PlannedRequest]:
    """All requests of an open loop, made before it begins; none for a closed one."""
    if workload.options.clients is not None:
        return []
    progress.stage("prompts")
    due = workload.due()
    planned = []
    for index, (arrival, traced) in enumerate(due):
        planned.append(workload.request(index, arrival, traced))
        progress.update(index + 1, len(due))
    return planned


def _token_counter(endpoints: Sequence[Endpoint], options: BenchOptions) -> tuple[CountTokens, list[str]]:
    """How prompts are measured, and a note if only roughly."""
    from trtbuild.serving.tokenizer import Tokenizer

    if options.workload.trace and all(traced.prompt for traced in options.workload.trace):
        return count_by_words, []
    own = next((endpoint.model.folder for endpoint in endpoints if isinstance(endpoint, Folder)), None)
    folder = options.tokenizer or own
    if folder is None:
        return count_by_words, [
            "No tokenizer was at hand, so prompts have the wanted lengths only roughly (--tokenizer FOLDER names one)."
        ]
    try:
        tokenizer = Tokenizer(folder)
    except (OSError, ValueError) as error:
        raise InputError(
            f"The tokenizer in {folder} cannot be read ({error}); it needs tokenizer.json and tokenizer_config.json."
        ) from error
    return lambda text: len(tokenizer.encode(text)), []


def _findings(endpoint: Endpoint, planned: Sequence[PlannedRequest], run: Run) -> list[str]:
    """What is to be said of a run beside its figures."""
    found = list(run.health.warnings())
    longest = endpoint.model.max_length if isinstance(endpoint, Folder) else None
    if longest is not None:
        over = sum((request.input_tokens or 0) + request.output_tokens > longest for request in planned)
        if over:
            found.append(f"{over} of {len(planned)} requests have more than the {longest} tokens of {endpoint.label}.")
    if run.stopped:
        unsent = f"; {run.not_sent} requests were not sent" if run.not_sent else ""
        found.append(f"This is a part of the run: {run.stopped}{unsent}.")
    return found
