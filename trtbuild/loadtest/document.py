"""A result as one JSON document. Times are in seconds."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import trtbuild
from trtbuild.files import atomic_file
from trtbuild.loadtest.bench import BenchOptions, BenchResult, Measured
from trtbuild.loadtest.comparison import compare
from trtbuild.loadtest.workload import WorkloadOptions


def document(result: BenchResult) -> dict[str, Any]:
    """What `--json` writes."""
    found = {
        "trtbuild": trtbuild.__version__,
        "workload": workload_document(result.options),
        "slo": list(result.options.slo.lines()),
        "targets": [_measured(measured) for measured in result.measured],
        "notes": list(result.notes),
    }
    if len(result.measured) == 2:
        ratios = compare(*(measured.summary for measured in result.measured))
        found["ratios"] = {each.name: each.ratio for each in ratios}
    return found


def write_document(result: BenchResult, file: Path) -> None:
    """Whole or not at all."""
    with atomic_file(file) as temporary:
        temporary.write_text(json.dumps(document(result), indent=2) + "\n", encoding="utf-8")


def arrivals_text(options: WorkloadOptions) -> str:
    """How requests come, for people."""
    if options.arrivals is not None:
        return str(options.arrivals)
    return f"{options.clients} clients, a closed loop" if options.clients is not None else "a trace"


def workload_document(options: BenchOptions) -> dict[str, Any]:
    """What was asked, so that it can be asked again."""
    workload = options.workload
    return {
        "arrivals": arrivals_text(workload),
        "seconds": workload.limit_seconds,
        "requests": workload.requests,
        "seed": workload.seed,
        "input_tokens": str(workload.input_tokens),
        "output_tokens": str(workload.output_tokens),
        "shared_prefix": asdict(workload.shared_prefix) if workload.shared_prefix else None,
        "priorities": dict(workload.priorities),
        "cancel_share": workload.cancel_share,
        "timeout": options.timeout,
        "asking": asdict(options.asking),
    }


def _measured(measured: Measured) -> dict[str, Any]:
    run = measured.run
    return {
        "target": measured.label,
        "model": measured.model,
        "seconds": run.seconds,
        "stopped": run.stopped,
        "not_sent": run.not_sent,
        "all": _summary(measured.summary),
        "by_priority": {str(priority): _summary(each) for priority, each in measured.by_priority.items()},
        "generator": {
            **asdict(run.health),
            "cpu_share": run.health.cpu_share,
            "cpu_seconds_per_token": run.health.cpu_per_token,
        },
    }


def _summary(summary: Any) -> dict[str, Any]:
    found = asdict(summary)
    if summary.goodput is not None:
        found["goodput"]["share"] = summary.goodput.share
    return found
