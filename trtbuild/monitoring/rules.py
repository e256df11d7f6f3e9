"""Prometheus's rule file."""

from __future__ import annotations

from typing import Any

import yaml

from trtbuild.monitoring.burn_rates import WINDOWS, burn_alerts, recordings
from trtbuild.monitoring.faults import fault_alerts
from trtbuild.monitoring.objectives import objectives
from trtbuild.monitoring.options import MonitorOptions

_EVERY = {"5m": "30s", "30m": "1m", "1h": "1m", "6h": "2m", "3d": "5m"}
"""How often a window is looked at anew: what changes slowly, and costs most to compute, less often."""


def rules(options: MonitorOptions) -> dict[str, Any]:
    """The groups: what is recorded, a group a window, then the alerts. Raises InputError as `objectives` does."""
    found = objectives(options.slo)
    groups: list[dict[str, Any]] = [
        {"name": f"trtbuild-slo-{window}", "interval": _EVERY[window], "rules": recordings(found, window, options)}
        for window in WINDOWS
    ]
    groups.append({"name": "trtbuild-slo-alerts", "interval": "30s", "rules": burn_alerts(found, options)})
    groups.append({"name": "trtbuild-faults", "interval": "30s", "rules": fault_alerts(options)})
    return {"groups": groups}


def rules_text(options: MonitorOptions) -> str:
    """As YAML."""
    return yaml.safe_dump(rules(options), sort_keys=False, allow_unicode=True, width=110)
