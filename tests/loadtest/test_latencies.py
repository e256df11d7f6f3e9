"""Latencies and summaries of records whose times were written down by hand."""

from __future__ import annotations

import pytest

from trtbuild.loadtest.latencies import Latencies, distribution, latencies
from trtbuild.loadtest.record import Outcome, Record
from trtbuild.loadtest.summary import by_priority, summarise
from trtbuild.slo import Latency, parse_slo


def record(
    times: tuple[float, ...] = (),
    tokens: tuple[int, ...] | None = None,
    *,
    index: int = 0,
    priority: int = 0,
    scheduled: float = 1.0,
    outcome: Outcome = Outcome.COMPLETED,
    message: str = "",
    prompt_tokens: int = 0,
    wanted: int = 0,
) -> Record:
    counts = (1,) * len(times) if tokens is None else tokens
    ended = times[-1] if times else scheduled
    return Record(
        index, priority, scheduled, scheduled + 0.5, ended, outcome, message, "length", times, counts, prompt_tokens,
        prompt_tokens // 2, None, wanted,
    )  # fmt: skip


def test_they_count_from_when_the_request_was_due() -> None:
    """Due at 1, sent at 1.5; tokens at 3, 3.2 and 3.6."""
    found = latencies(record((3.0, 3.2, 3.6)))
    assert found.ttft == pytest.approx(2.0) and found.e2e == pytest.approx(2.6)
    assert found.gaps == pytest.approx((0.2, 0.4))
    assert found.tpot == pytest.approx(0.3)
    assert found.jitter == pytest.approx(0.1), "the standard deviation of 0.2 and 0.4"


def test_several_tokens_a_response_and_responses_without_any() -> None:
    """A response without a token is neither the first one nor an end of a gap; the last response ends the request."""
    found = latencies(record((2.0, 2.5, 2.9, 3.5, 3.6), (0, 2, 0, 4, 0)))
    assert found.ttft == pytest.approx(1.5)
    assert found.gaps == pytest.approx((1.0,)), "one gap, however many tokens came"
    assert found.tpot == pytest.approx(1.0 / 5), "five tokens after the first"
    assert found.e2e == pytest.approx(2.6)
    assert found.jitter is None


def test_one_token() -> None:
    found = latencies(record((1.25,)))
    assert found == Latencies(ttft=pytest.approx(0.25), gaps=(), tpot=None, e2e=pytest.approx(0.25), jitter=None)
    assert found.meets(parse_slo(["ttft=300ms,tpot=1ms,itl=1ms"]).general), "what cannot be said is kept"
    assert not found.meets(parse_slo(["ttft=200ms"]).general)


def test_an_objective_on_gaps_is_for_each_of_them() -> None:
    found = latencies(record((1.1, 1.2, 1.6)))
    assert found.of(Latency.ITL) == pytest.approx(0.4)
    assert found.meets(parse_slo(["tpot=300ms"]).general) and not found.meets(parse_slo(["itl=300ms"]).general)


def test_percentiles_are_interpolated_linearly() -> None:
    """Of 0 to 10 the place is p * 10; of two values the middle is between them."""
    found = distribution(float(value) for value in reversed(range(11)))
    assert found is not None and (found.count, found.mean, found.min, found.max) == (11, 5.0, 0.0, 10.0)
    assert (found.p50, found.p90, found.p95, found.p99) == pytest.approx((5.0, 9.0, 9.5, 9.9))
    assert found.std == pytest.approx(10**0.5)
    two = distribution([1.0, None, 3.0])
    assert two is not None and two.p50 == 2.0 and two.count == 2
    assert distribution([None]) is None


def test_a_summary() -> None:
    """Four seconds. Of six requests two completed, one of them within its objectives."""
    records = [
        record((1.1, 1.2, 1.3), index=0, priority=1, prompt_tokens=10, wanted=3),
        record((2.0, 2.1), index=1, priority=2, prompt_tokens=10, wanted=5),
        record((1.2,), index=2, priority=1, outcome=Outcome.CANCELLED),
        record(index=3, priority=1, outcome=Outcome.REFUSED, message="12 requests wait"),
        record(index=4, priority=2, outcome=Outcome.REFUSED, message="14 requests wait"),
        record(index=5, priority=2, outcome=Outcome.TIMED_OUT, message="too late"),
    ]
    slo = parse_slo(["ttft=500ms"])
    found = summarise(records, 4.0, slo)
    assert found.outcomes == {"completed": 2, "refused": 2, "timed out": 1, "cancelled": 1}
    assert found.ttft is not None and (found.ttft.count, found.ttft.p50) == (2, pytest.approx((0.1 + 1.0) / 2))
    assert found.itl is not None and found.itl.count == 3
    assert (found.output_tokens, found.output_tokens_per_second, found.requests_per_second) == (6, 1.5, 0.5)
    assert (found.input_tokens, found.cached_tokens, found.short_answers) == (20, 10, 1)
    assert found.tokens_per_response == 1.0
    assert found.goodput is not None
    assert (found.goodput.good, found.goodput.due, found.goodput.per_second) == (1, 5, 0.25), "cancelled: not due"
    assert found.goodput.share == 0.2
    kinds = [(kind.outcome, kind.count, kind.example) for kind in found.errors]
    assert kinds == [(Outcome.REFUSED, 2, "12 requests wait"), (Outcome.TIMED_OUT, 1, "too late")]


def test_by_priority() -> None:
    records = [record((1.1,), priority=1), record((1.6,), priority=2), record((1.7,), priority=2)]
    found = by_priority(records, 2.0, parse_slo(["2:ttft=650ms"]))
    assert {priority: summary.requests for priority, summary in found.items()} == {1: 1, 2: 2}
    goodputs = {priority: summary.goodput for priority, summary in found.items()}
    assert goodputs[1] is not None and goodputs[1].due == 0, "it has no objective"
    assert goodputs[2] is not None and (goodputs[2].good, goodputs[2].due) == (1, 2)
    assert by_priority(records[:1], 2.0, parse_slo([])) == {}, "one priority is all there is"


def test_nothing_at_all() -> None:
    found = summarise([], 1.0, parse_slo(["ttft=1s"]))
    assert found.ttft is None and found.completed == 0 and found.tokens_per_response is None
    assert found.goodput is not None and found.goodput.share == 0.0
    assert summarise([], 1.0, parse_slo([])).goodput is None
