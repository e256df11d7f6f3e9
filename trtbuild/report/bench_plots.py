"""A load test's plots, as SVG. Of two servers the first is drawn in solid lines and the second in broken ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtbuild.loadtest.bench import Measured
from trtbuild.loadtest.latencies import latencies
from trtbuild.loadtest.record import Outcome, Record
from trtbuild.report.figure import COLOURS, LIMIT, PLAIN, WIDTH, figure, line, plain_log_scale, svg
from trtbuild.slo import Latency, Slo

Values = NDArray[np.float64]

_STYLES = ("-", "--")
_MARKS = ("o", "x")
_MOST_POINTS = 1500
"""More are no more to be seen, and make a page heavy."""
_BINS = 80
_STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)
_TITLES = {
    Latency.TTFT: "time to first token",
    Latency.ITL: "between two responses (ITL)",
    Latency.TPOT: "per token after the first (TPOT)",
    Latency.E2E: "end to end",
}


def distributions(runs: Sequence[Measured], slo: Slo) -> str:
    """The share of values up to each, by priority: a panel a latency, with the objectives as vertical lines."""
    with figure(WIDTH, 5.6) as drawn:
        for panel, (latency, title) in zip(drawn.subplots(2, 2).ravel(), _TITLES.items(), strict=True):
            for place, (measured, priority, colour) in _groups(runs):
                values = np.sort(_values(_of(measured, priority), latency)) * 1000
                if values.size:
                    shares = np.arange(1, values.size + 1) / values.size
                    kept = _thinned(values.size)
                    panel.plot(values[kept], shares[kept], drawstyle="steps-post", color=colour, ls=_STYLES[place])
            for whose, limit in _limits(slo, latency):
                panel.axvline(limit * 1000, color=_limit_colour(runs, whose), lw=1, ls=":", gid="objective")
            plain_log_scale(panel.xaxis, panel.set_xscale)
            panel.set_ylim(0, 1.02)
            panel.set_xlabel(f"{title}, ms", fontsize=9)
            panel.set_ylabel("share", fontsize=9)
        _legend(drawn, runs, slo)
        return svg(drawn)


def latency_over_time(runs: Sequence[Measured], slo: Slo) -> str:
    """Of each request, at the time when it was due: to the first token, and its longest gap."""
    with figure(WIDTH, 4.6) as drawn:
        panels = drawn.subplots(2, 1, sharex=True)
        for panel, latency in zip(panels, (Latency.TTFT, Latency.ITL), strict=True):
            for place, (measured, priority, colour) in _groups(runs):
                points = np.array(list(_points(_of(measured, priority), latency))).reshape(-1, 2)
                points = points[_worst_and_some(points[:, 1])]
                panel.plot(
                    points[:, 0], 1000 * points[:, 1], _MARKS[place], ms=2.5, mew=0.7, color=colour, alpha=0.7, ls=""
                )
            for whose, limit in _limits(slo, latency):
                panel.axhline(limit * 1000, color=_limit_colour(runs, whose), lw=1, ls=":", gid="objective")
            plain_log_scale(panel.yaxis, panel.set_yscale)
        panels[0].set_ylabel("TTFT, ms", fontsize=9)
        panels[1].set_ylabel("longest gap, ms", fontsize=9)
        panels[1].set_xlabel("when the request was due, s", fontsize=9)
        _legend(drawn, runs, slo, marks=True)
        return svg(drawn)


def load_over_time(runs: Sequence[Measured]) -> str:
    """Arrivals and what was not completed, requests in flight, and output."""
    step = _step(max(measured.run.seconds for measured in runs))
    with figure(WIDTH, 5.6) as drawn:
        panels = drawn.subplots(3, 1, sharex=True)
        records = runs[0].run.records
        arrivals = [record.scheduled for record in records]
        panels[0].stairs(*_rates(arrivals, step), color=PLAIN, fill=True, alpha=0.5, label="due")
        for place, measured in enumerate(runs):
            lost = [record.scheduled for record in measured.run.records if _was_missed(record)]
            done = [record.ended for record in measured.run.records if record.outcome is Outcome.COMPLETED]
            kind = {"ls": _STYLES[place], "baseline": None}
            panels[0].stairs(*_rates(done, step), color=COLOURS[0], label="" if place else "completed", **kind)
            if lost:
                name = "refused, late or failed"
                panels[0].stairs(*_rates(lost, step), color=COLOURS[1], label="" if place else name, **kind)
            panels[1].plot(
                *_in_flight(measured.run.records), color=COLOURS[2], ls=_STYLES[place], drawstyle="steps-post"
            )
            tokens = [time for record in measured.run.records for time in record.times]
            counts = [count for record in measured.run.records for count in record.tokens]
            panels[2].stairs(*_rates(tokens, step, counts), color=COLOURS[3], **kind)
        for panel, name in zip(panels, ("requests/s", "in flight", "tokens/s"), strict=True):
            panel.set_ylabel(name, fontsize=9)
            panel.set_ylim(bottom=0)
        panels[2].set_xlabel(f"time, s (bins of {step:g} s)", fontsize=9)
        drawn.legend(loc="outside upper right", ncols=3, fontsize=8)
        return svg(drawn)


# Values of records.


def _values(records: Iterable[Record], latency: Latency) -> Values:
    """Every gap for ITL, else one value a request; of completed ones."""
    found = [latencies(record) for record in records if record.outcome is Outcome.COMPLETED]
    if latency is Latency.ITL:
        return np.array([gap for each in found for gap in each.gaps])
    return np.array([value for value in (each.of(latency) for each in found) if value is not None])


def _points(records: Iterable[Record], latency: Latency) -> Iterator[tuple[float, float]]:
    for record in records:
        value = latencies(record).of(latency) if record.outcome is Outcome.COMPLETED else None
        if value is not None:
            yield record.scheduled, value


def _was_missed(record: Record) -> bool:
    return record.outcome in (Outcome.REFUSED, Outcome.TIMED_OUT, Outcome.FAILED, Outcome.LOST)


def _in_flight(records: Sequence[Record]) -> tuple[Values, Values]:
    """When how many were sent and not over."""
    changes = sorted([(record.sent, 1) for record in records] + [(record.ended, -1) for record in records])
    times = np.array([0.0, *(time for time, _ in changes)])
    counts = np.concatenate([[0], np.cumsum([change for _, change in changes])])
    kept = _thinned(times.size)
    return times[kept], counts[kept]


def _rates(times: Sequence[float], step: float, weights: Sequence[float] | None = None) -> tuple[Values, Values]:
    """How many a second in each bin, and the bins' edges."""
    bins = int(max(times, default=0.0) // step) + 1
    counts, edges = np.histogram(times, bins=bins, range=(0.0, bins * step), weights=weights)
    return counts / step, edges


def _step(seconds: float) -> float:
    return next((step for step in _STEPS if seconds / step <= _BINS), _STEPS[-1])


def _thinned(size: int) -> NDArray[np.intp]:
    """Places of at most _MOST_POINTS of so many, the first and last among them."""
    return np.unique(np.linspace(0, max(0, size - 1), min(size, _MOST_POINTS)).round().astype(np.intp))


def _worst_and_some(values: Values) -> NDArray[np.intp]:
    """Places of the largest third of what can be drawn, and of others evenly."""
    if values.size <= _MOST_POINTS:
        return np.arange(values.size)
    order = np.argsort(values, kind="stable")
    worst, rest = order[-_MOST_POINTS // 3 :], np.sort(order[: -_MOST_POINTS // 3])
    return np.concatenate([rest[:: -(-rest.size * 3 // (2 * _MOST_POINTS))], worst])


# Priorities, colours, objectives.


def _priorities(runs: Sequence[Measured]) -> list[int]:
    return sorted({record.priority for measured in runs for record in measured.run.records})


def _colours(runs: Sequence[Measured]) -> dict[int, str]:
    return {priority: COLOURS[place % len(COLOURS)] for place, priority in enumerate(_priorities(runs))}


def _groups(runs: Sequence[Measured]) -> Iterator[tuple[int, tuple[Measured, int, str]]]:
    for place, measured in enumerate(runs):
        for priority, colour in _colours(runs).items():
            yield place, (measured, priority, colour)


def _of(measured: Measured, priority: int) -> list[Record]:
    return [record for record in measured.run.records if record.priority == priority]


def _limits(slo: Slo, latency: Latency) -> Iterator[tuple[int | None, float]]:
    """The priority (None: all) and the limit of each objective on `latency`."""
    if latency in slo.general:
        yield None, slo.general[latency]
    for priority, limits in slo.by_priority.items():
        if latency in limits:
            yield priority, limits[latency]


def _limit_colour(runs: Sequence[Measured], priority: int | None) -> str:
    return LIMIT if priority is None else _colours(runs).get(priority, LIMIT)


def _legend(drawn: Any, runs: Sequence[Measured], slo: Slo, *, marks: bool = False) -> None:
    """Priorities by colour, servers by style, objectives dotted."""
    colours = _colours(runs)
    entries = {}
    if len(colours) > 1:
        entries = {f"priority {priority or 'default'}": line(colour) for priority, colour in colours.items()}
    if len(runs) > 1:
        for place, measured in enumerate(runs):
            mark = {"marker": _MARKS[place], "ls": ""} if marks else {"ls": _STYLES[place]}
            entries[measured.label] = line(PLAIN, **mark)
    if slo:
        entries["objective"] = line(LIMIT, ls=":")
    if entries:
        drawn.legend(entries.values(), entries.keys(), loc="outside upper right", ncols=len(entries), fontsize=8)
