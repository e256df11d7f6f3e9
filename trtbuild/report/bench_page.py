"""The page that `bench --html` writes."""

from __future__ import annotations

from pathlib import Path

from trtbuild.durations import duration_text
from trtbuild.loadtest.bench import BenchResult, Measured
from trtbuild.loadtest.comparison import LATENCY_NAMES, compare
from trtbuild.loadtest.document import workload_document
from trtbuild.report import bench_plots as plots
from trtbuild.report.rendering import Plot, render, write_page

COLUMNS = ("mean", "p50", "p90", "p95", "p99", "max")


def bench_page(result: BenchResult) -> str:
    """HTML of a load test."""
    return render(
        "bench.html.j2",
        targets=result.measured,
        workload={name: value for name, value in workload_document(result.options).items() if value not in (None, {})},
        slo=result.options.slo.lines(),
        notes=result.notes,
        figures_of=_figures,
        names=LATENCY_NAMES,
        columns=COLUMNS,
        ratios=compare(*(each.summary for each in result.measured)) if len(result.measured) == 2 else (),
        plots=_plots(result),
    )


def save_bench(result: BenchResult, file: Path) -> None:
    """Write it."""
    write_page(file, bench_page(result))


def _figures(measured: Measured) -> list[tuple[str, str]]:
    """What stands at the top: values and what they are."""
    summary = measured.summary
    found = [(f"{summary.completed}", f"of {summary.requests} requests completed")]
    if summary.goodput is not None:
        found.append((f"{100 * summary.goodput.share:.1f}%", "met their objectives"))
        found.append((f"{summary.goodput.per_second:.2f}/s", "goodput"))
    found.append((f"{summary.output_tokens_per_second:.0f}/s", "output tokens"))
    for values, name in ((summary.ttft, "TTFT"), (summary.itl, "ITL")):
        if values is not None:
            found += [(duration_text(values.p50), f"{name}, median"), (duration_text(values.p99), f"{name}, p99")]
    return found


def _plots(result: BenchResult) -> list[Plot]:
    if not any(measured.summary.completed for measured in result.measured):
        return []
    slo = result.options.slo
    second = " Solid lines are the first server's, broken ones the second's." if len(result.measured) == 2 else ""
    return [
        Plot(
            "Distributions",
            plots.distributions(result.measured, slo),
            "The share of values up to each. TTFT and end to end count from when a request was due."
            f"{' Objectives are dotted.' if slo else ''}{second}",
        ),
        Plot(
            "Latency over time",
            plots.latency_over_time(result.measured, slo),
            "Each completed request at the time when it was due"
            + ("; circles are the first server's, crosses the second's." if second else "."),
        ),
        Plot(
            "Load over time",
            plots.load_over_time(result.measured),
            f"Requests due, completed and missed; requests in flight; tokens that came.{second}",
        ),
    ]
