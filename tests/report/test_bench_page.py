"""The page of `bench --html`, opened in headless Chromium."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page

from tests.report.conftest import opened
from trtbuild.loadtest.arrivals import Poisson
from trtbuild.loadtest.bench import BenchOptions, BenchResult, Measured
from trtbuild.loadtest.generator import Run
from trtbuild.loadtest.health import Health
from trtbuild.loadtest.latencies import distribution
from trtbuild.loadtest.record import Outcome, Record
from trtbuild.loadtest.summary import by_priority, summarise
from trtbuild.loadtest.workload import WorkloadOptions
from trtbuild.report.bench_page import bench_page, save_bench
from trtbuild.report.bench_plots import _in_flight, _rates, _thinned, _worst_and_some
from trtbuild.slo import parse_slo

pytestmark = pytest.mark.slow

OPTIONS = BenchOptions(WorkloadOptions(arrivals=Poisson(10.0)), slo=parse_slo(["ttft=500ms,itl=60ms", "1:ttft=200ms"]))


def measured(label: str, factor: float, requests: int = 60) -> Measured:
    """Tokens come after 0.1 to 0.4 s and then every 50 ms, `factor` times as slowly; every tenth request is refused."""
    records = []
    for index in range(requests):
        due, priority = index * 0.1, 1 + index % 2
        first = due + factor * (0.1 + 0.3 * (index % 7) / 6)
        times = tuple(first + factor * 0.05 * place for place in range(8))
        refused = index % 10 == 9
        outcome, message = (Outcome.REFUSED, "full & <busy>") if refused else (Outcome.COMPLETED, "")
        shown = () if refused else times
        records.append(
            Record(
                *(index, priority, due, due + 0.001, times[-1], outcome, message, "length"),
                *(shown, (1,) * len(shown), 20, 5, 20, 8),
            )
        )
    seconds = records[-1].ended if records else 1.0
    health = Health(distribution([0.001]), distribution([0.001]), 0.1, seconds, 400, 400, 12)
    run = Run(tuple(records), seconds, health, 0, "")
    return Measured(
        label, "m", run, summarise(records, seconds, OPTIONS.slo), by_priority(records, seconds, OPTIONS.slo)
    )


@pytest.fixture(scope="module")
def result() -> BenchResult:
    return BenchResult(OPTIONS, (measured("first", 1.0), measured("second", 2.0)), ("Something to know.",))


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (1200, "dark"), (400, "light")])
def test_the_page_stands_alone(
    result: BenchResult, tmp_path: Path, browser_page: Page, width: int, scheme: str
) -> None:
    file = tmp_path / "bench.html"
    save_bench(result, file)
    browser_page.set_viewport_size({"width": width, "height": 900})
    browser_page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    assert opened(browser_page, file) == []
    plots = browser_page.locator("figure svg")
    assert plots.count() == 3
    for index in range(3):
        box = plots.nth(index).bounding_box()
        assert box is not None and box["width"] > 500 and box["height"] > 250, "wide enough to read"
    assert browser_page.evaluate("document.documentElement.scrollWidth") <= width, "nothing sticks out sideways"
    colours = browser_page.evaluate(
        "[document.body, document.querySelector('figure svg text')].map((element, place) =>"
        " getComputedStyle(element)[place ? 'fill' : 'backgroundColor'])"
    )
    background, text = (sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in colours)
    assert (background > 600 > text) if scheme == "light" else (background < 150 < text)


def test_the_page_says_what_was_measured(result: BenchResult, tmp_path: Path, browser_page: Page) -> None:
    file = tmp_path / "bench.html"
    save_bench(result, file)
    opened(browser_page, file)
    assert browser_page.title() == "first against second"
    figures = browser_page.locator(".figures b").all_inner_texts()
    assert figures[0] == "54" and browser_page.locator(".warning").inner_text() == "Something to know."
    rows = browser_page.locator("#ratios tbody tr")
    ratios = {cells[0]: cells[3] for cells in (row.locator("td").all_inner_texts() for row in rows.all())}
    assert ratios["TTFT p50"] == ratios["ITL p99"] == ratios["TPOT p50"] == "0.50" and ratios["completed"] == "1.00"
    latencies = browser_page.locator("table.latencies").first.locator("tbody tr").all_inner_texts()
    # 8, 8, 8, 8, 7, 7 and 8 values of 100, 150 … 400 ms.
    assert latencies[0].split() == ["all", "TTFT", "54", "247.2", "250.0", "400.0", "400.0", "400.0", "400.0"]
    assert browser_page.locator("table.errors td").nth(2).inner_text() == "full & <busy>"
    drawn = bench_page(result)
    # TTFT 500 ms and 200 ms in two plots, ITL 60 ms in two.
    assert len(re.findall(r'<g id="objective">', drawn)) == 6
    assert "http" not in re.sub(r'xmlns(:xlink)?="[^"]*"', "", drawn), "nothing is loaded from anywhere"


def test_one_server_without_objectives_or_priorities(tmp_path: Path, browser_page: Page) -> None:
    only = measured("only", 1.0)
    plain = replace(only, summary=summarise(only.run.records, 6.0, parse_slo([])), by_priority={})
    file = tmp_path / "bench.html"
    save_bench(BenchResult(replace(OPTIONS, slo=parse_slo([])), (plain,)), file)
    assert opened(browser_page, file) == []
    assert browser_page.locator("#ratios").count() == 0 and browser_page.locator("figure svg").count() == 3
    assert "objective" not in browser_page.locator("figure").first.inner_text()


def test_nothing_completed() -> None:
    none = replace(measured("none", 1.0, 0), by_priority={})
    assert "<svg" not in bench_page(BenchResult(OPTIONS, (none,)))


def test_what_is_drawn() -> None:
    """Two requests that overlap; rates are a second, in bins; of many points the worst are all there."""
    records = [record for record in measured("x", 1.0).run.records if record.index < 2]
    times, counts = _in_flight(records)
    assert counts.tolist() == [0, 1, 2, 1, 0] and times.tolist() == sorted(times.tolist())
    counts, edges = _rates([0.1, 0.2, 0.7], 0.5)
    assert counts.tolist() == [4.0, 2.0] and edges.tolist() == [0.0, 0.5, 1.0]
    assert _rates([0.1, 0.7], 0.5, [3, 5])[0].tolist() == [6.0, 10.0]
    values = np.random.default_rng(0).permutation(10_000).astype(float)
    kept = values[_worst_and_some(values)]
    assert kept.size <= 1500 and set(range(9_600, 10_000)) <= set(kept.tolist())
    assert _thinned(10_000)[[0, -1]].tolist() == [0, 9_999] and _thinned(3).tolist() == [0, 1, 2]
