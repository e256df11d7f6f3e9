"""The folder that `trtbuild monitor` writes."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from trtbuild.files import atomic_folder
from trtbuild.monitoring.dashboard import dashboard
from trtbuild.monitoring.options import MonitorOptions
from trtbuild.monitoring.rules import rules_text

RULES, DASHBOARD, PROMETHEUS = "trtbuild-rules.yml", "trtbuild-dashboard.json", "prometheus.yml"


def save_monitoring(options: MonitorOptions, folder: Path, target: str, *, force: bool = False) -> tuple[Path, ...]:
    """Write the rules, the dashboard, and a Prometheus configuration that scrapes the metrics port at `target`.

    The folder appears whole or not at all. Returns the files. Raises InputError if the folder exists and is not empty
    (unless `force`), or for objectives that cannot be watched.
    """
    contents = {
        RULES: rules_text(options),
        DASHBOARD: json.dumps(dashboard(options), indent=2) + "\n",
        PROMETHEUS: _prometheus(target),
    }
    with atomic_folder(folder, replace=force) as temporary:
        for name, text in contents.items():
            (temporary / name).write_text(text, encoding="utf-8")
    return tuple(folder / name for name in contents)


def _prometheus(target: str) -> str:
    config = {
        "global": {"scrape_interval": "15s", "evaluation_interval": "15s"},
        "rule_files": [RULES],
        "scrape_configs": [{"job_name": "triton", "static_configs": [{"targets": [target]}]}],
    }
    return yaml.safe_dump(config, sort_keys=False)
