"""Objectives and lengths of time as people write them."""

from __future__ import annotations

import pytest

from trtbuild.durations import duration_text, parse_duration
from trtbuild.errors import InputError
from trtbuild.slo import Latency, parse_slo


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("2s", 2.0), ("1.5m", 90.0), (".25S", 0.25), ("1h", 3600.0)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text, "--x") == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["500", "", "ms", "-1s", "0s", "1 day", "1e3s", "nan"])
def test_no_durations(text: str) -> None:
    with pytest.raises(InputError, match=f"--x: '{text}' is no length of time; write it like 500ms"):
        parse_duration(text, "--x")


def test_seconds_without_a_unit() -> None:
    assert parse_duration("90", "--x", bare=True) == 90.0


def test_durations_for_people() -> None:
    assert [duration_text(seconds) for seconds in (0.0125, 0.5, 2.0, 600.0)] == ["12.5 ms", "500 ms", "2 s", "10 min"]


def test_a_priority_has_its_own_limits_before_the_general_ones() -> None:
    slo = parse_slo(["ttft=500ms,tpot=100ms", "1:ttft=200ms", "3:e2e=10s"])
    assert slo.of(2) == {Latency.TTFT: 0.5, Latency.TPOT: 0.1}
    assert slo.of(1) == {Latency.TTFT: 0.2, Latency.TPOT: 0.1}
    assert slo.of(3) == {Latency.TTFT: 0.5, Latency.TPOT: 0.1, Latency.E2E: 10.0}
    assert slo.lines() == ("ttft ≤ 500 ms, tpot ≤ 100 ms", "priority 1: ttft ≤ 200 ms", "priority 3: e2e ≤ 10 s")
    assert not parse_slo([]) and parse_slo([]).of(1) == {}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("ttft", "'ttft' is no limit; write it like ttft=500ms, with one of ttft, itl, tpot, e2e"),
        ("latency=1s", "'latency=1s' is no limit"),
        ("ttft=500ms,", "'' is no limit"),
        ("ttft=500", "ttft: '500' is no length of time"),
        ("ttft=1s,ttft=2s", "ttft is given twice"),
        ("high:ttft=1s", "'high' is no priority"),
        ("1:", "'' is no limit"),
    ],
)
def test_malformed_objectives(text: str, wrong: str) -> None:
    with pytest.raises(InputError, match=f"--slo '{text}'.*{wrong}"):
        parse_slo([text])
