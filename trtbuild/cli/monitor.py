"""`trtbuild monitor`."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from trtbuild.cli import arguments as a
from trtbuild.cli.console import output, print_json, print_warning
from trtbuild.errors import InputError


def monitor_command(
    slo: Annotated[
        list[str],
        typer.Option(
            help="Objectives, as `bench` takes them: ttft=500ms,itl=100ms,e2e=30s; 1:ttft=200ms for priority 1. May be "
            "repeated."
        ),
    ],
    out: a.OutOption,
    objective: Annotated[
        float, typer.Option(help="The share that must keep to them over thirty days, above 0.931.")
    ] = 0.99,
    max_errors: Annotated[float, typer.Option(help="Alert when a larger share of requests fails.")] = 0.01,
    max_refused: Annotated[float, typer.Option(help="Alert when a larger share is refused or waits too long.")] = 0.05,
    model: Annotated[Optional[str], typer.Option(help="Watch this model only.")] = None,
    label: Annotated[
        Optional[list[str]],
        typer.Option(help="NAME=VALUE, on every alert, for whoever routes them. May be repeated."),
    ] = None,
    target: Annotated[
        str, typer.Option(help="Triton's metrics port, for the Prometheus configuration.")
    ] = "localhost:8002",
    force: a.ForceOption = False,
    json: a.JsonOption = False,
) -> None:
    """Write what watches a served model: Prometheus alert rules for its objectives, and a Grafana dashboard.

    Each objective gets alerts on how fast its error budget burns, over a long and a short window at once, by priority;
    errors, refusals, a growing queue, a full cache, a stall and missing metrics get one each. Every alert says what to
    look at.

    ```
    trtbuild monitor --slo ttft=500ms,itl=100ms --slo 1:ttft=200ms --out monitoring
    prometheus --config.file monitoring/prometheus.yml
    ```
    """
    from trtbuild.monitoring.options import MonitorOptions
    from trtbuild.monitoring.save import save_monitoring
    from trtbuild.slo import Latency, parse_slo

    objectives = parse_slo(slo)
    options = MonitorOptions(objectives, objective, max_errors, max_refused, model, _labels(label or ()))
    files = save_monitoring(options, out, target, force=force)
    if objectives.limits(Latency.TPOT):
        print_warning(
            "The server counts each gap between tokens, not a request's mean: the limit on tpot is one on itl here."
        )
    if json:
        print_json({"files": [str(file) for file in files]})
        return
    rules, dashboard, prometheus = files
    output.print(
        f"{rules} are Prometheus's rules (promtool check rules), {dashboard} is for Grafana (Dashboards, Import),"
    )
    output.print(f"{prometheus} scrapes {target} with these rules.")


def _labels(texts: tuple[str, ...] | list[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier() or name in ("severity", "alertname", "burn_rate"):
            raise InputError(f"--label {text!r} is not NAME=VALUE, with a name that no alert has of itself.")
        found[name] = value
    return found
