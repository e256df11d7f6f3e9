"""The dashboard: Grafana's own schema, promtool on every expression, and only metrics that exist."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from trtbuild.cli.main import app
from trtbuild.errors import InputError
from trtbuild.monitoring.dashboard import dashboard
from trtbuild.monitoring.options import MonitorOptions
from trtbuild.serving.metric_names import COUNTERS, GAUGES, HISTOGRAMS
from trtbuild.slo import parse_slo

OPTIONS = MonitorOptions(parse_slo(["ttft=400ms,itl=100ms,e2e=30s", "1:ttft=200ms"]))


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """As Grafana reads it."""
    return json.loads(json.dumps(dashboard(OPTIONS)))


def expressions(document: dict[str, Any]) -> list[str]:
    queries = [target["expr"] for panel in document["panels"] for target in panel.get("targets", [])]
    return [*queries, *(annotation["expr"] for annotation in document["annotations"]["list"])]


def missing(whole: Any, kept: Any, place: str = "") -> Iterator[str]:
    """Where `whole` has what `kept` has not, or has otherwise."""
    if isinstance(whole, dict) and isinstance(kept, dict):
        for key, inner in whole.items():
            if key in kept:
                yield from missing(inner, kept[key], f"{place}/{key}")
            else:
                yield f"{place}/{key}"
    elif isinstance(whole, list) and isinstance(kept, list) and len(whole) == len(kept):
        for index, (inner, other) in enumerate(zip(whole, kept, strict=True)):
            yield from missing(inner, other, f"{place}/{index}")
    elif whole != kept:
        yield place


def test_it_is_of_grafanas_schema(document: dict[str, Any]) -> None:
    """Read and written by the types that Grafana generates from it, nothing is lost, so nothing is unknown. Two fields
    are the Prometheus plugin's, for which the schema of annotations has no place."""
    models = pytest.importorskip("grafana_foundation_sdk.models.dashboard", reason="it needs Python 3.11")
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins

    register_default_plugins()
    kept = json.loads(JSONEncoder().encode(models.Dashboard.from_json(document)))
    assert list(missing(document, kept)) == ["/annotations/list/0/titleFormat", "/annotations/list/0/textFormat"]
    wrong = json.loads(json.dumps(document))
    wrong["panels"][2]["fieldConfig"]["defaults"]["unitt"] = wrong["panels"][1]["options"]["colour"] = "x"
    kept = json.loads(JSONEncoder().encode(models.Dashboard.from_json(wrong)))
    assert len(list(missing(wrong, kept))) == 4, "or the test would prove nothing"


def test_every_expression_is_one(document: dict[str, Any], tmp_path: Path) -> None:
    """With Grafana's variables put in, as rules for promtool to read."""
    found = [
        expression.replace("$__rate_interval", "1m").replace("$model", "m") for expression in expressions(document)
    ]
    rules = [{"record": f"x:y:z{place}", "expr": text} for place, text in enumerate(found)]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "x", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", str(file)], capture_output=True, text=True)
    assert done.returncode == 0 and f"{len(found)} rules found" in done.stdout, done.stderr


def test_every_metric_and_label_is_one_that_the_model_exports(document: dict[str, Any]) -> None:
    by_priority = {name for name, spec in HISTOGRAMS.items() if spec.by_priority}
    parts = {f"{name}{part}": name for name in HISTOGRAMS for part in ("_bucket", "_count")}
    shown = set()
    for metric, labels in re.findall(r"(trtbuild_\w+)(?:{([^}]*)})?", " ".join(expressions(document))):
        assert metric in {*GAUGES, *COUNTERS, *parts}
        shown.add(parts.get(metric, metric))
        if "priority" in labels:
            assert parts.get(metric) in by_priority or metric in (
                "trtbuild_waiting_requests",
                "trtbuild_requests_total",
            )
    assert shown == {*GAUGES, *COUNTERS, *HISTOGRAMS}, "and every one is shown"


def test_panels_have_a_place_and_a_purpose(document: dict[str, Any]) -> None:
    panels = document["panels"]
    assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
    assert [panel["title"] for panel in panels if panel["type"] == "row"] == [
        "Objectives", "Latencies", "Traffic", "Scheduler and cache",
    ]  # fmt: skip
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] >= 0 and place["x"] + place["w"] <= 24
        if panel["type"] != "row":
            assert panel["description"] and panel["fieldConfig"]["defaults"]["unit"]
            assert [target["refId"] for target in panel["targets"]] == sorted({t["refId"] for t in panel["targets"]})
    for first, second in combinations((panel["gridPos"] for panel in panels), 2):
        apart_x = first["x"] + first["w"] <= second["x"] or second["x"] + second["w"] <= first["x"]
        apart_y = first["y"] + first["h"] <= second["y"] or second["y"] + second["h"] <= first["y"]
        assert apart_x or apart_y


def test_objectives_are_drawn(document: dict[str, Any]) -> None:
    panel = next(panel for panel in document["panels"] if panel["title"] == "Time to first token")
    limits = {target["expr"]: target["legendFormat"] for target in panel["targets"] if "vector" in target["expr"]}
    assert limits == {"vector(0.4)": "objective 400 ms", "vector(0.2)": "objective 200 ms, priority 1"}
    assert [override["matcher"]["options"] for override in panel["fieldConfig"]["overrides"]] == list(limits.values())


def test_the_command(tmp_path: Path) -> None:
    out = tmp_path / "monitoring"
    arguments = ["monitor", "--slo", "ttft=500ms,tpot=100ms", "--slo", "1:ttft=200ms", "--model", "m"]
    arguments += ["--label", "team=x", "--target", "triton:8002", "--out", str(out)]
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    assert "the limit on tpot is one on itl here" in done.stderr
    assert [Path(file).name for file in json.loads(done.stdout)["files"]] == [
        "trtbuild-rules.yml", "trtbuild-dashboard.json", "prometheus.yml",
    ]  # fmt: skip
    checked = subprocess.run(["promtool", "check", "config", out / "prometheus.yml"], capture_output=True, text=True)
    assert checked.returncode == 0 and "1 rule files found" in checked.stdout, checked.stderr
    assert (
        "triton:8002" in (out / "prometheus.yml").read_text() and "team: x" in (out / "trtbuild-rules.yml").read_text()
    )
    again = CliRunner().invoke(app, arguments).exception
    assert isinstance(again, InputError) and "exists and is not empty" in str(again)
    assert CliRunner().invoke(app, [*arguments, "--force"]).exit_code == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--slo", "ttft"], "'ttft' is no limit"),
        (["--slo", "ttft=1s", "--objective", "0.5"], "--objective 0.5: it is a share above 0.931"),
        (["--slo", "ttft=1s", "--max-refused", "0"], "--max-refused 0 must be a share"),
        (["--slo", "ttft=1s", "--label", "severity=x"], "--label 'severity=x' is not NAME=VALUE"),
        (["--slo", "e2e=1h"], "the server counts up to 5 min only"),
    ],
)
def test_what_is_refused(tmp_path: Path, options: list[str], message: str) -> None:
    refused = CliRunner().invoke(app, ["monitor", *options, "--out", str(tmp_path / "out")]).exception
    assert isinstance(refused, InputError) and message in str(refused)
    assert not (tmp_path / "out").exists()
