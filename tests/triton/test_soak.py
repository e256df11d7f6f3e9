"""scripts/soak.py in short: every accident once, over the tiny model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "soak.py"


@pytest.mark.slow
def test_nothing_is_lost_in_a_short_soak(emitted: Path, tmp_path: Path) -> None:
    """What it has to say of memory needs minutes; the other properties do not depend on how fast the machine is."""
    found = tmp_path / "soak.json"
    command = [sys.executable, str(SCRIPT), str(emitted), "--minutes", "0.1", "--json", str(found)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert run.returncode == 0, run.stdout + run.stderr
    document = json.loads(found.read_text())
    ends = [server["end"] for server in document["servers"] if server["end"] != "crashed"]
    assert ends == ["tritonserver killed", "model killed", "stopped"]
    assert document["violations"] == document["hung"] == []
    assert all(document["requests"].values()), "not every kind of request was sent"
    assert all(server["checks"]["failure"] == "" for server in document["servers"])
