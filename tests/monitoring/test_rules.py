"""The alert rules in Prometheus's own promtool: they parse, and fire on known series when they should and only then."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from trtbuild.errors import InputError
from trtbuild.monitoring.objectives import Objective, below, objectives
from trtbuild.monitoring.options import MonitorOptions
from trtbuild.monitoring.rules import rules, rules_text
from trtbuild.serving.metric_names import COUNTERS, GAUGES, HISTOGRAMS
from trtbuild.slo import Latency, parse_slo

OPTIONS = MonitorOptions(parse_slo(["ttft=500ms,itl=100ms", "1:ttft=200ms"]))
"""An objective of 99%: one in a hundred may be slower."""
FAST, SLOW, TICKET = ("page", "14.4"), ("page", "6"), ("ticket", "1")
"""The three alerts of an objective, by severity and burn rate."""


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=60)


def unit_test(folder: Path, *tests: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """promtool's unit tests of the rules, in one run."""
    (folder / "rules.yml").write_text(rules_text(OPTIONS))
    document = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": list(tests)}
    (folder / "tests.yml").write_text(yaml.safe_dump(document))
    return promtool("test", "rules", folder / "tests.yml")


def check(folder: Path, *tests: dict[str, Any]) -> None:
    done = unit_test(folder, *tests)
    assert done.returncode == 0, done.stdout + done.stderr


def case(inputs: list[dict[str, str]], *expected: dict[str, Any]) -> dict[str, Any]:
    """What is expected of some series, a sample a minute."""
    return {"interval": "1m", "input_series": inputs, "promql_expr_test": list(expected)}


def series(name: str, values: str, **labels: str) -> dict[str, str]:
    """`values` are promtool's: "0+5x60" is sixty-one samples from 0, five more each."""
    shown = ", ".join(f'{key}="{value}"' for key, value in {"model": "m", "instance": "a", **labels}.items())
    return {"series": f"{name}{{{shown}}}", "values": values}


def histogram(name: str, priority: int, count: str, **buckets: str) -> list[dict[str, str]]:
    """`count` says how many there are in all, `buckets` how many below each bound: le_0_5 is 0.5."""
    own = {"priority": str(priority)}
    found = [series(f"{name}_count", count, **own)]
    for bound, values in buckets.items():
        found.append(series(f"{name}_bucket", values, le=bound.removeprefix("le_").replace("_", "."), **own))
    return found


def ttft(priority: int, count: str, **buckets: str) -> list[dict[str, str]]:
    return histogram("trtbuild_time_to_first_token_seconds", priority, count, **buckets)


def firing(at: str, name: str, *alerts: dict[str, str]) -> dict[str, Any]:
    """At the time `at` exactly these alerts called `name` fire, by their labels."""
    samples = []
    for labels in alerts:
        shown = {"alertname": name, "alertstate": "firing", **labels}
        text = ", ".join(f'{key}="{value}"' for key, value in shown.items())
        samples.append({"labels": f"ALERTS{{{text}}}", "value": 1})
    expression = f'ALERTS{{alertname="{name}", alertstate="firing"}}'
    return {"expr": expression, "eval_time": at, "exp_samples": samples}


def burning(at: str, *burns: tuple[str, str], priority: str = "2", limit: str = "0.5") -> dict[str, Any]:
    same = {"slo": "ttft", "model": "m", "priority": priority, "limit": limit}
    labels = [{"severity": severity, "burn_rate": rate, **same} for severity, rate in burns]
    return firing(at, "TrtbuildSlowFirstTokens", *labels)


def value(at: str, expression: str, *samples: tuple[str, float]) -> dict[str, Any]:
    expected = [{"labels": labels, "value": number} for labels, number in samples]
    return {"expr": expression, "eval_time": at, "exp_samples": expected}


def test_they_are_rules(tmp_path: Path) -> None:
    everything = MonitorOptions(
        parse_slo(["ttft=400ms,itl=90ms,e2e=20s", "1:ttft=200ms", "2:ttft=200ms,e2e=5s", "3:tpot=1s"]),
        objective=0.995,
        model="m",
        labels={"team": "x"},
    )
    for options in (OPTIONS, everything):
        file = tmp_path / "rules.yml"
        file.write_text(rules_text(options))
        done = promtool("check", "rules", file)
        assert done.returncode == 0, done.stdout + done.stderr
    alerts = [rule for group in rules(everything)["groups"] for rule in group["rules"] if "alert" in rule]
    assert len(alerts) == 3 * 3 + 6
    for alert in alerts:
        assert alert["labels"]["team"] == "x" and alert["labels"]["severity"] in ("page", "ticket")
        assert set(alert["annotations"]) == {"summary", "description", "runbook"}
        assert alert["annotations"]["runbook"].startswith("1. ")


def test_every_metric_is_one_that_the_model_exports() -> None:
    """In the runbooks too."""
    parts = {f"{name}{part}" for name in HISTOGRAMS for part in ("", "_bucket", "_count")}
    told = set(re.findall(r"trtbuild_\w+", rules_text(OPTIONS)))
    assert told <= {*GAUGES, *COUNTERS, *parts} and len(told) > 10


def test_a_wrong_expectation_is_noticed(tmp_path: Path) -> None:
    """Or the tests below would prove nothing."""
    assert unit_test(tmp_path, case(ttft(2, "0+100x20", le_0_5="0+80x20"), burning("10m"))).returncode == 1


def test_the_budget_of_time_to_the_first_token(tmp_path: Path) -> None:
    """Of 100 requests a minute, by how many are within 500 ms."""
    check(
        tmp_path,
        # 20% are not: 20 times what may be.
        case(ttft(2, "0+100x200", le_0_5="0+80x200"), burning("10m", FAST, SLOW), burning("100m", FAST, SLOW, TICKET)),
        # 8%: slower, and after an hour there is a ticket too.
        case(ttft(2, "0+100x200", le_0_5="0+92x200"), burning("10m", SLOW), burning("100m", SLOW, TICKET)),
        # 2%: nobody is woken.
        case(ttft(2, "0+100x200", le_0_5="0+98x200"), burning("10m"), burning("100m", TICKET)),
        # 0.5% is within the budget.
        case(ttft(2, "0+200x200", le_0_5="0+199x200"), burning("10m"), burning("100m")),
        # 20% for forty minutes, then none: the short windows end the pages.
        case(
            ttft(2, "0+100x200", le_0_5="0+80x40 3300+100x159"),
            burning("30m", FAST, SLOW),
            burning("50m", SLOW),
            burning("90m", TICKET),
        ),
        # All of them, but so few that they say nothing.
        case(ttft(2, "0+0.2x200", le_0_5="0+0x200"), burning("100m")),
    )


def test_each_priority_has_its_own(tmp_path: Path) -> None:
    """Priority 1 must keep to 200 ms: of 100 below 250 ms, 40 of them below 100 ms, 40 + 60 * 2/3 = 80 do."""
    own = ttft(1, "0+100x30", le_0_1="0+40x30", le_0_25="0+100x30", le_0_5="0+100x30")
    other = ttft(3, "0+100x30", le_0_1="0+40x30", le_0_25="0+60x30", le_0_5="0+100x30")
    recorded = "round(trtbuild:slo_bad:ratio_rate5m, 0.001)"
    check(
        tmp_path,
        case(
            [*own, *other],
            value(
                "20m",
                recorded,
                ('{slo="ttft", limit="0.2", model="m", priority="1"}', 0.2),
                ('{slo="ttft", limit="0.5", model="m", priority="3"}', 0),
            ),
            burning("20m", FAST, SLOW, priority="1", limit="0.2"),
        ),
    )


def test_instances_count_together_and_models_apart(tmp_path: Path) -> None:
    """One instance of two is slow at 30%: 15% of all, which is 15 times the budget; another model is well."""

    def of(instance: str, model: str, good: str) -> list[dict[str, str]]:
        labels = {"instance": instance, "model": model, "priority": "2"}
        name = "trtbuild_time_to_first_token_seconds"
        return [series(f"{name}_count", "0+100x30", **labels), series(f"{name}_bucket", good, le="0.5", **labels)]

    inputs = [*of("a", "m", "0+100x30"), *of("b", "m", "0+70x30"), *of("a", "n", "0+100x30")]
    check(tmp_path, case(inputs, burning("20m", FAST, SLOW)))


def test_the_gaps_between_tokens(tmp_path: Path) -> None:
    name = "trtbuild_inter_token_latency_seconds"
    labels = {"slo": "itl", "limit": "0.1", "model": "m", "priority": "2"}
    alerts = [{"severity": severity, "burn_rate": rate, **labels} for severity, rate in (FAST, SLOW)]
    check(
        tmp_path,
        case(
            histogram(name, 2, "0+5000x30", le_0_1="0+4000x30"),
            firing("20m", "TrtbuildSlowTokens", *alerts),
            burning("20m"),
        ),
    )


def outcomes(**counts: str) -> list[dict[str, str]]:
    return [
        series("trtbuild_requests_total", values, priority="2", outcome=outcome) for outcome, values in counts.items()
    ]


PAGE, LATER = {"severity": "page", "model": "m"}, {"severity": "ticket", "model": "m"}


def test_faults(tmp_path: Path) -> None:
    """Each on series that show it, and not on those that nearly do."""
    running = series("trtbuild_running_requests", "8x60")
    steps = series("trtbuild_steps_total", "0+600x60")
    waiting = [
        series("trtbuild_waiting_requests", "0+1x60", priority="2"),
        series("trtbuild_waiting_requests", "0x60", priority="3"),
    ]
    cache, preempted = series("trtbuild_cache_used_ratio", "0.97x60"), "trtbuild_preemptions_total"
    at = {"instance": "a"}
    check(
        tmp_path,
        # 2% of errors; and 0.5%.
        case(outcomes(stop="0+98x60", error="0+2x60"), firing("20m", "TrtbuildErrors", PAGE)),
        case(outcomes(stop="0+199x60", error="0+1x60"), firing("20m", "TrtbuildErrors")),
        # Errors that are over.
        case(outcomes(stop="0+98x60", error="0+5x9 45x51"), firing("14m", "TrtbuildErrors")),
        # 4% refused and 4% too late; and 4% in all. A client that goes away is neither.
        case(
            outcomes(length="0+92x60", refused="0+4x60", timeout="0+4x60"),
            firing("20m", "TrtbuildRefusals", LATER),
            firing("20m", "TrtbuildErrors"),
        ),
        case(outcomes(length="0+56x60", refused="0+4x60", cancelled="0+40x60"), firing("20m", "TrtbuildRefusals")),
        # More wait than run, and ever more: from the ninth minute on, and ten minutes later it is said.
        case([running, *waiting], firing("15m", "TrtbuildQueueGrows"), firing("40m", "TrtbuildQueueGrows", LATER)),
        # Many wait, but not more and more.
        case(
            [running, series("trtbuild_waiting_requests", "50x60", priority="2")],
            firing("40m", "TrtbuildQueueGrows"),
        ),
        # A cache that is full is what it is for, unless answers give way.
        case([cache, series(preempted, "0+2x60")], firing("30m", "TrtbuildCacheFull", LATER)),
        case([cache, series(preempted, "7x60")], firing("30m", "TrtbuildCacheFull")),
        # No token for minutes though something runs; and nothing to do.
        case(
            [running, steps, series("trtbuild_generated_tokens_total", "0+500x20 10000x40")],
            firing("20m", "TrtbuildStalled"),
            firing("30m", "TrtbuildStalled", {**PAGE, **at}),
            firing("30m", "TrtbuildNoMetrics"),
        ),
        case(
            [series("trtbuild_running_requests", "0x60"), series("trtbuild_generated_tokens_total", "10000x60")],
            firing("30m", "TrtbuildStalled"),
        ),
        # Metrics that stop coming.
        case(
            [series("trtbuild_steps_total", "0+600x20")],
            firing("20m", "TrtbuildNoMetrics"),
            firing("40m", "TrtbuildNoMetrics", {"severity": "page"}),
        ),
    )


def test_what_an_alert_says(tmp_path: Path) -> None:
    test = case(ttft(2, "0+100x20", le_0_5="0+80x20"))
    labels = {"severity": "page", "slo": "ttft", "model": "m", "priority": "2", "limit": "0.5"}
    rule = next(
        rule for group in rules(OPTIONS)["groups"] for rule in group["rules"]
        if rule.get("alert") == "TrtbuildSlowFirstTokens"
    )  # fmt: skip
    said = {
        "summary": "Time to first token: 20% of requests of priority 2 of m are too slow",
        "description": "The objective: 99% of requests within 500 ms for the others; 200 ms for priority 1. Over the "
        "last 1h the allowed failures were used up 14.4 times too fast or faster: 2% of thirty days' in 1h.",
        "runbook": rule["annotations"]["runbook"],
    }
    assert rule["labels"]["burn_rate"] == "14.4"
    slow = {**said, "description": said["description"].replace("1h", "6h").replace("14.4", "6").replace(": 2%", ": 5%")}
    test["alert_rule_test"] = [
        {
            "eval_time": "10m",
            "alertname": "TrtbuildSlowFirstTokens",
            "exp_alerts": [
                {"exp_labels": {**labels, "burn_rate": "14.4"}, "exp_annotations": said},
                {"exp_labels": {**labels, "burn_rate": "6"}, "exp_annotations": slow},
            ],
        }
    ]
    check(tmp_path, test)


def test_limits_between_two_buckets() -> None:
    bounds = (0.1, 0.25, 0.5, 1.0)
    assert list(below(0.5, bounds)) == [(0.5, 1.0)]
    assert list(below(0.2, bounds)) == [(0.25, pytest.approx(2 / 3)), (0.1, pytest.approx(1 / 3))]
    assert list(below(0.05, bounds)) == [(0.1, 0.5)], "those of the first bucket are spread from 0 on"


def test_which_objectives_there_are() -> None:
    found = objectives(parse_slo(["ttft=500ms,tpot=80ms", "1:ttft=200ms", "2:e2e=5s"]))
    assert found == (
        Objective(Latency.TTFT, 0.5, None, (1,)),
        Objective(Latency.TTFT, 0.2, 1),
        Objective(Latency.ITL, 0.08, None),
        Objective(Latency.E2E, 5.0, 2),
    )
    both = objectives(parse_slo(["tpot=80ms,itl=100ms"]))
    assert both == (Objective(Latency.ITL, 0.1, None),), "a limit on gaps comes before one on their mean"


def test_objectives_that_cannot_be_watched() -> None:
    with pytest.raises(InputError, match="Give objectives to alert on"):
        objectives(parse_slo([]))
    with pytest.raises(InputError, match="--slo ttft=10 min: the server counts up to 5 min only"):
        objectives(parse_slo(["ttft=10m"]))
    for share in (0.9, 1.0, 99.0):
        with pytest.raises(InputError, match=f"--objective {share:g}: it is a share above 0.931 and below 1"):
            MonitorOptions(parse_slo(["ttft=1s"]), objective=share)
    with pytest.raises(InputError, match="--max-errors 5 must be a share"):
        MonitorOptions(parse_slo(["ttft=1s"]), most_errors=5.0)
