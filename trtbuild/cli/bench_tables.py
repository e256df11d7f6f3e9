"""What `trtbuild bench` prints."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from trtbuild.loadtest.bench import BenchResult, Measured
from trtbuild.loadtest.comparison import LATENCY_NAMES, Unit, compare
from trtbuild.loadtest.document import arrivals_text
from trtbuild.loadtest.latencies import Distribution
from trtbuild.loadtest.summary import Goodput, Summary

_MOST_ERRORS = 8
_COLUMNS = ("mean", "p50", "p90", "p95", "p99", "max")


def headline(result: BenchResult, measured: Measured) -> str:
    """Which server, what was asked, what became of it."""
    options, summary = result.options.workload, measured.summary
    outcomes = ", ".join(f"{count} {name}" for name, count in summary.outcomes.items())
    return (
        f"{measured.label}, model {measured.model}: {summary.requests} requests in {measured.run.seconds:.1f} s "
        f"({arrivals_text(options)}, seed {options.seed}): {outcomes or 'none was sent'}"
    )


def latency_table(summary: Summary) -> Table:
    """Milliseconds."""
    table = _table("ms", *_COLUMNS)
    for field, name in LATENCY_NAMES.items():
        values: Distribution | None = getattr(summary, field)
        if values is not None:
            table.add_row(name, *(milliseconds(getattr(values, column)) for column in _COLUMNS))
    return table


def priority_table(measured: Measured) -> Table:
    """A row for each priority, in milliseconds."""
    table = _table("priority", "due", "done", "TTFT p50", "TTFT p99", "ITL p99", "TPOT p50", "e2e p99", "goodput")
    for priority, summary in measured.by_priority.items():
        cells = [(summary.ttft, "p50"), (summary.ttft, "p99"), (summary.itl, "p99"), (summary.tpot, "p50")]
        cells.append((summary.e2e, "p99"))
        shown = (milliseconds(getattr(values, column)) if values else "" for values, column in cells)
        share = f"{100 * summary.goodput.share:.1f}%" if summary.goodput and summary.goodput.due else ""
        name = str(priority) if priority else "default"
        table.add_row(name, str(summary.requests), str(summary.completed), *shown, share)
    return table


def comparison_table(first: Measured, second: Measured) -> Table:
    """Figures of both, and their ratio."""
    table = _table("", first.label, second.label, "ratio")
    for each in compare(first.summary, second.summary):
        ratio = f"{each.ratio:.2f}" if each.ratio is not None else ""
        table.add_row(each.name, _figure(each.first, each.unit), _figure(each.second, each.unit), ratio)
    return table


def throughput_lines(result: BenchResult, measured: Measured) -> list[str]:
    """Rates, goodput, errors, and what the generator cost."""
    summary, health = measured.summary, measured.run.health
    lines = [f"output {summary.output_tokens_per_second:.1f} tokens/s, {summary.requests_per_second:.2f} requests/s"]
    if summary.input_tokens:
        cached = 100 * summary.cached_tokens / summary.input_tokens
        lines[0] += f"; prompts {summary.input_tokens} tokens, {cached:.0f}% of them cached"
    if summary.tokens_per_response is not None and summary.tokens_per_response > 1.005:
        lines.append(f"{summary.tokens_per_response:.2f} tokens a response: ITL is between responses, TPOT per token")
    if summary.short_answers:
        lines.append(f"{summary.short_answers} answers ended before the tokens asked for")
    if summary.goodput is not None:
        lines.append(_goodput_line(summary.goodput, result.options.slo.lines()))
    lines += [f"{kind.count} {kind.outcome.value}: {kind.example}" for kind in summary.errors[:_MOST_ERRORS]]
    if len(summary.errors) > _MOST_ERRORS:
        lines.append(f"… and {len(summary.errors) - _MOST_ERRORS} more kinds of errors (--json has them)")
    generator = f"generator: {100 * health.cpu_share:.0f}% of a core"
    if health.cpu_per_token is not None:
        generator += f", {1e6 * health.cpu_per_token:.0f} µs a token"
    if health.send_lag is not None:
        generator += f"; requests sent {milliseconds(health.send_lag.p99)} ms late or less, 99 of 100"
    return [*lines, f"{generator}; at most {health.most_in_flight} in flight"]


def milliseconds(seconds: float) -> str:
    value = 1000 * seconds
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def _goodput_line(goodput: Goodput, objectives: Sequence[str]) -> str:
    share = f"{100 * goodput.share:.1f}% of {goodput.due}"
    return f"goodput {goodput.per_second:.2f} requests/s, {share} ({'; '.join(objectives)})"


def _figure(value: float | None, unit: Unit) -> str:
    if value is None:
        return ""
    match unit:
        case Unit.SECONDS:
            return f"{milliseconds(value)} ms"
        case Unit.SHARE:
            return f"{100 * value:.1f}%"
        case Unit.COUNT:
            return f"{value:.0f}"
        case _:
            return f"{value:.2f}"


def _table(first: str, *columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    return table
