"""What a run amounts to: of all requests, and of each priority's."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from trtbuild.loadtest.latencies import Distribution, Latencies, distribution, latencies
from trtbuild.loadtest.record import Outcome, Record
from trtbuild.slo import Slo

_NUMBER = re.compile(r"\d+(\.\d+)?")


@dataclass(frozen=True, slots=True)
class Goodput:
    """Requests that met every objective of their priority, as AIPerf and DistServe (Zhong et al., 2024) count them.

    Those that were refused, timed out, failed or lost were due and did not. Those that the generator itself gave up are
    left out.
    """

    good: int
    due: int
    per_second: float

    @property
    def share(self) -> float:
        return self.good / self.due if self.due else 0.0


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """Messages that differ in numbers only are of one kind."""

    outcome: Outcome
    count: int
    example: str


@dataclass(frozen=True, slots=True)
class Summary:
    """Latencies are those of completed requests, in seconds; None where there is no value."""

    requests: int
    outcomes: dict[str, int]
    ttft: Distribution | None
    itl: Distribution | None
    tpot: Distribution | None
    e2e: Distribution | None
    jitter: Distribution | None
    input_tokens: int
    """Of the prompts that the server counted, of all requests that were answered at all."""
    cached_tokens: int
    output_tokens: int
    """That came, of all requests."""
    tokens_per_response: float | None
    requests_per_second: float
    """Completed ones, over the whole run."""
    output_tokens_per_second: float
    short_answers: int
    """Completed ones with fewer tokens than were asked for."""
    goodput: Goodput | None
    """None without objectives."""
    errors: tuple[ErrorKind, ...]

    @property
    def completed(self) -> int:
        return self.outcomes.get(Outcome.COMPLETED.value, 0)


def summarise(records: Sequence[Record], seconds: float, slo: Slo) -> Summary:
    """Of a run, or of some of its requests, that took `seconds` from its start to its last response."""
    done = [record for record in records if record.outcome is Outcome.COMPLETED]
    found = [latencies(record) for record in done]
    responses = sum(1 for record in done for tokens in record.tokens if tokens)
    output = sum(record.output_tokens for record in records)
    return Summary(
        requests=len(records),
        outcomes={outcome.value: count for outcome, count in _outcomes(records).items()},
        ttft=distribution(each.ttft for each in found),
        itl=distribution(gap for each in found for gap in each.gaps),
        tpot=distribution(each.tpot for each in found),
        e2e=distribution(each.e2e for each in found),
        jitter=distribution(each.jitter for each in found),
        input_tokens=sum(record.prompt_tokens for record in records),
        cached_tokens=sum(record.cached_tokens for record in records),
        output_tokens=output,
        tokens_per_response=sum(record.output_tokens for record in done) / responses if responses else None,
        requests_per_second=len(done) / seconds,
        output_tokens_per_second=output / seconds,
        short_answers=sum(record.output_tokens < record.wanted_output for record in done),
        goodput=_goodput(records, done, found, seconds, slo) if slo else None,
        errors=_errors(records),
    )


def by_priority(records: Sequence[Record], seconds: float, slo: Slo) -> dict[int, Summary]:
    """A summary of each priority's requests; empty if there is only one priority."""
    groups: dict[int, list[Record]] = {}
    for record in records:
        groups.setdefault(record.priority, []).append(record)
    if len(groups) < 2:
        return {}
    return {priority: summarise(groups[priority], seconds, slo) for priority in sorted(groups)}


def _outcomes(records: Sequence[Record]) -> dict[Outcome, int]:
    counts = Counter(record.outcome for record in records)
    return {outcome: counts[outcome] for outcome in Outcome if counts[outcome]}


def _goodput(
    records: Sequence[Record], done: Sequence[Record], found: Sequence[Latencies], seconds: float, slo: Slo
) -> Goodput:
    """Only requests whose priority has an objective count."""
    left_out = (Outcome.CANCELLED, Outcome.UNFINISHED)
    due = sum(bool(slo.of(record.priority)) and record.outcome not in left_out for record in records)
    limits = [slo.of(record.priority) for record in done]
    good = sum(bool(limit) and each.meets(limit) for each, limit in zip(found, limits, strict=True))
    return Goodput(good, due, good / seconds)


def _errors(records: Sequence[Record]) -> tuple[ErrorKind, ...]:
    """The most frequent first."""
    kinds: dict[tuple[Outcome, str], ErrorKind] = {}
    for record in records:
        if record.message:
            key = record.outcome, _NUMBER.sub("#", record.message)
            known = kinds.get(key)
            count, example = (known.count, known.example) if known else (0, record.message)
            kinds[key] = ErrorKind(record.outcome, count + 1, example)
    return tuple(sorted(kinds.values(), key=lambda kind: -kind.count))
