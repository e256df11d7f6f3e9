"""`trtbuild bench` as a user runs it: what it prints and writes, how it ends, and what it refuses."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from tests.cli.conftest import Command
from tests.frontend.conftest import MODEL, Front, write_scripted
from tests.loadtest.conftest import script
from trtbuild.cli.main import app
from trtbuild.errors import InputError
from trtbuild.triton.server import TritonServer

SLOW = pytest.mark.slow
FULL = "8 requests of priority 2 wait already, which is the most that may."


def trace(command: Command, *prompts: tuple[float, str]) -> str:
    """A trace file in the command's folder; each of its requests asks for ten tokens."""
    lines = [json.dumps({"arrival": time, "prompt": prompt, "output_tokens": 10}) for time, prompt in prompts]
    (command.place / "trace").write_text("\n".join(lines))
    return "trace"


@SLOW
def test_a_run(trtbuild: Command, url: str) -> None:
    prompts = [
        (0.0, script(repeat=10, pause=0.02)),
        (0.1, script(repeat=10)),
        (0.2, script(fail=["UNAVAILABLE", FULL])),
    ]
    done = trtbuild(
        *("bench", url, "--model", MODEL, "--trace", trace(trtbuild, *prompts), "--warmup", "0"),
        *("--priority", "1=0.5,2=0.5", "--slo", "ttft=5s,tpot=5s", "--slo", "1:ttft=4s"),
        *("--json", "out.json", "--records", "out.jsonl", "--html", "out.html"),
    )
    assert done.returncode == 0, done.stderr
    assert f"{url}, model scripted: 3 requests in" in done.stdout and "2 completed, 1 refused" in done.stdout
    assert re.search(r"^TTFT +[\d.]+ +[\d.]+", done.stdout, re.M) and f"1 refused: {FULL}" in done.stdout
    assert "66.7% of 3 (ttft ≤ 5 s, tpot ≤ 5 s; priority 1: ttft ≤ 4 s)" in done.stdout
    told = json.loads((trtbuild.place / "out.json").read_text())
    (target,) = told["targets"]
    assert target["all"]["outcomes"] == {"completed": 2, "refused": 1} and target["stopped"] == ""
    assert target["all"]["goodput"]["share"] == pytest.approx(2 / 3)
    assert target["all"]["ttft"]["count"] == 2 and set(target["by_priority"]) <= {"1", "2"}
    assert target["generator"]["send_lag"]["count"] == 3 and told["workload"]["arrivals"] == "a trace"
    records = [json.loads(line) for line in (trtbuild.place / "out.jsonl").read_text().splitlines()]
    assert [(record["index"], record["outcome"]) for record in records] == [
        (0, "completed"), (1, "completed"), (2, "refused"),
    ]  # fmt: skip
    assert len(records[0]["response_times"]) == 10 and records[0]["response_tokens"] == [1] * 10
    assert "<svg" in (trtbuild.place / "out.html").read_text()


@SLOW
def test_the_same_on_two_interfaces(trtbuild: Command, url: str, front: Front) -> None:
    options = ["--model", MODEL, "--rate", "20", "--requests", "5", "--input-tokens", "20", "--output-tokens", "10"]
    done = trtbuild("bench", url, "--against", front.url, *options, "--json", "-")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [target["target"] for target in told["targets"]] == [url, front.url]
    assert all(target["all"]["outcomes"] == {"completed": 5} for target in told["targets"])
    assert told["ratios"]["completed"] == 1.0 and told["ratios"]["TTFT p50"] > 0
    assert "No tokenizer was at hand" in done.stderr, "JSON alone goes to standard output"


@SLOW
def test_a_folder_is_served_for_as_long_as_it_takes(trtbuild: Command) -> None:
    """And the server is gone afterwards; with two models one must be named."""
    write_scripted(trtbuild.place / "model_repository")
    refused = trtbuild("bench", ".", "--clients", "1")
    assert refused.returncode == 2 and "several models: narrow, scripted. Name one with --model" in refused.stderr
    (trtbuild.place / "model_repository" / MODEL / "1" / "tokenizer_config.json").write_text("{}")
    done = trtbuild("bench", ".", "--clients", "2", "--requests", "6", "--model", MODEL, "--json", "-")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["targets"][0]["all"]["outcomes"] == {"completed": 6}
    about_prompts = [note for note in told["notes"] if not note.startswith("The generator")]  # on a busy machine
    assert about_prompts == [], "its own tokenizer measured the prompts"
    running = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert not [line for line in running if str(trtbuild.place) in line]


@SLOW
def test_what_was_measured_is_kept_when_a_run_is_stopped(trtbuild: Command, url: str, scripted: Path) -> None:
    """By Ctrl-C; test_generator.py has SIGTERM too."""
    events = scripted / MODEL / "1" / "events"
    begun = len(events.read_text().splitlines())
    prompts = [(0.0, script()), (0.0, script(repeat=2, pause=60)), (60.0, script())]
    options = ["--model", MODEL, "--trace", trace(trtbuild, *prompts), "--warmup", "0", "--json", "out.json"]
    process = trtbuild.start("bench", url, *options)
    wait_for(lambda: len(events.read_text().splitlines()) > begun, process)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "1 completed, 1 unfinished" in stdout
    assert "This is a part of the run: stopped by SIGINT; 1 requests were not sent" in stderr
    told = json.loads((trtbuild.place / "out.json").read_text())["targets"][0]
    assert told["stopped"] == "stopped by SIGINT" and told["not_sent"] == 1


@SLOW
def test_what_was_measured_is_kept_when_the_server_dies(trtbuild: Command, tmp_path: Path) -> None:
    write_scripted(tmp_path / "repository")
    events = tmp_path / "repository" / MODEL / "1" / "events"
    prompts = [(0.0, script()), (0.0, script(repeat=2, pause=60)), (60.0, script())]
    options = ["--model", MODEL, "--trace", trace(trtbuild, *prompts), "--warmup", "0"]
    with TritonServer(tmp_path / "repository", log_file=tmp_path / "log") as server:
        process = trtbuild.start("bench", server.grpc_url, *options)
        wait_for(lambda: events.exists() and events.read_text() != "", process)
        time.sleep(0.3)
        server.kill()
        stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "1 completed, 1 connection lost" in stdout and "1 connection lost: the connection was lost" in stdout
    assert "This is a part of the run: the server is gone: the connection was lost" in stderr


@SLOW
def test_nothing_completed(trtbuild: Command, url: str) -> None:
    prompts = [(0.0, script(say=[], fail=["UNAVAILABLE", FULL]))] * 2
    options = ["--trace", trace(trtbuild, *prompts), "--warmup", "0", "--html", "out.html"]
    done = trtbuild("bench", url, "--model", MODEL, *options)
    assert done.returncode == 1
    assert "2 requests" in done.stdout and f"2 refused: {FULL}" in done.stdout
    assert "error: No request was completed." in done.stderr
    assert "2 refused" not in (trtbuild.place / "out.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Say when requests come by one of --rate, --arrivals, --trace and --clients"),
        (["--rate", "1", "--clients", "2"], "by one of --rate"),
        (["--rate", "1", "--slo", "ttft"], "--slo 'ttft': 'ttft' is no limit"),
        (["--rate", "1", "--priority", "1=0.5"], "the shares sum to 0.5, and must sum to 1"),
        (["--rate", "1", "--input-tokens", "few"], "--input-tokens 'few' is none of N, uniform"),
        (["--rate", "1", "--duration", "long"], "--duration: 'long' is no length of time"),
        (["--arrivals", "waves:1:1"], "is not bursts:SIZE:PERIOD"),
        (["--trace", "wrong"], "wrong:2: not JSON"),
        (["--rate", "1", "--json", "there"], "there exists. Choose another --json, or give --force"),
        (["--rate", "1", "--html", "there"], "there exists. Choose another --html, or give --force"),
        (["--rate", "1", "--text", "nothing"], "--text nothing cannot be read"),
        (["--rate", "1", "--shared-prefix", "x"], "--shared-prefix 'x' is not TOKENS"),
        (["--rate", "1", "--tokenizer", "nowhere"], "The tokenizer in nowhere cannot be read"),
    ],
)
def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str) -> None:
    """Before anything is asked of the server."""
    monkeypatch.chdir(tmp_path)
    Path("wrong").write_text('{"arrival": 0, "prompt": "x"}\nx\n')
    Path("there").write_text("mine")
    refused = CliRunner().invoke(app, ["bench", "localhost:1", *arguments]).exception
    assert isinstance(refused, InputError) and message in str(refused)


def test_no_server(trtbuild: Command) -> None:
    done = trtbuild("bench", "localhost:1", "--rate", "1")
    assert done.returncode == 1
    assert done.stderr.startswith("error: There is no server at localhost:1")


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Until `condition` holds, while the process runs."""
    for _ in range(400):
        if condition():
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    raise AssertionError("it took too long")


@SLOW
@pytest.mark.parametrize("missing", ["hpack", "httptools"])
def test_without_the_extra(trtbuild: Command, url: str, front: Front, missing: str) -> None:
    (trtbuild.place / f"{missing}.py").write_text(f"raise ImportError('No module named {missing}')")
    target = url if missing == "hpack" else front.url
    command = ("bench", target, "--model", MODEL, "--rate", "1", "--requests", "1")
    result = trtbuild(*command, PYTHONPATH=str(trtbuild.place))
    assert result.returncode == 2 and f"needs {missing} (" in result.stderr
    assert "pip install 'trtbuild[bench]'" in result.stderr
