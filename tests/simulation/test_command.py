"""The command itself: what it prints, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TRTBUILD = Path(sys.executable).with_name("trtbuild")


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TRTBUILD, "simulate", *arguments], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (["--slo", "ttft=1"], "'1' is no length of time"),
        (["--slo", "3:ttft=1s"], "no request has an objective"),
        (["--measured", "nowhere"], "holds none"),
        (["--measured", ".", "--gpus", "2"], "leave --model, --gpu, --gpus and --batch out"),
        (["--steps", "steps.csv"], "name it, too, with --measured"),
        (["--size-for", "1.5"], "above 0 and up to 1"),
        (["--input-tokens", "two"], "--input-tokens 'two' is none of"),
        (["--gpus", "1", "--model", "70b"], "leave too little room"),
        (["--trace", "missing.jsonl"], "missing.jsonl"),
        (["--input-tokens", "9", "--output-tokens", "2000000", "--max-output-tokens", "2000000"], "at most"),
    ],
)
def test_wrong_input_is_one_error(arguments: list[str], wrong: str) -> None:
    result = simulate("--requests", "50", *arguments)
    assert result.returncode == 2 and wrong in result.stderr, result.stderr
    assert result.stderr.count("error:") == 1 and "Traceback" not in result.stderr


def test_json_is_all_that_it_prints() -> None:
    result = simulate("--requests", "200", "--rate", "2", "--slo", "ttft=1s,itl=1s", "--json")
    found = json.loads(result.stdout)
    assert result.stderr == "" and found["slo"] == ["ttft ≤ 1 s, itl ≤ 1 s"]
    assert [each["policy"] for each in found["policies"]] == ["adaptive", "fifo", "static"]
    assert found["policies"][0]["good_share"] == 1.0


def test_a_fleet_is_sized(tmp_path: Path) -> None:
    # A step of 70b on 8 H100 takes about 10 ms, a second for each answer of 100 tokens; a batch of one, four a second.
    trace = tmp_path / "trace.jsonl"
    line = '{"arrival": %s, "prompt_tokens": 10, "output_tokens": 100}\n'
    trace.write_text("".join(line % (number / 4) for number in range(40)))
    result = simulate("--trace", str(trace), "--batch", "1", "--slo", "e2e=1.2s", "--size-for", "0.99", "--json")
    found = json.loads(result.stdout)
    assert found["replicas"] == 4 and [each["replicas"] for each in found["tried"]] == [1, 2, 3, 4]
