"""Ctrl-C and SIGTERM in every stage that takes time: the exit code says which, nothing is left, no process either."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.conftest import ROOT

EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


@pytest.fixture(params=EXIT_CODES, ids=lambda number: number.name)
def number(request: pytest.FixtureRequest) -> signal.Signals:
    return request.param


def stop(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """A terminal sends Ctrl-C to the whole group; `kill` and service managers send SIGTERM to the process."""
    if number is signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)


def stop_in_stage(command: Command, stage: str, number: signal.Signals, *arguments: str | Path) -> None:
    process = command.start("compile", *arguments, "--out", "out")
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if line == f"{stage} …\n":
            break
    time.sleep(0.15)  # into the stage
    stop(process, number)
    started = time.monotonic()
    _, rest = process.communicate(timeout=60)
    assert process.returncode == EXIT_CODES[number], "".join(said) + rest
    assert rest == f"error: Stopped by {number.name}; nothing half-written was left.\n"
    assert time.monotonic() - started < 5
    nothing_is_left(command, process)


def nothing_is_left(command: Command, process: subprocess.Popen[str]) -> None:
    assert not {name for name in command.left() if "tmp" in name or name == "out"}
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def synthetic(folder: Path, tokenizer: Path, *arguments: str) -> Path:
    script = ROOT / "scripts" / "synthetic_checkpoint.py"
    shape = ["--hidden", "1024", "--heads", "8", "--kv-heads", "2", "--mlp", "4096", "--vocab", "512"]
    subprocess.run([sys.executable, script, folder, *shape, *arguments], check=True, cwd=ROOT)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / file).write_bytes((tokenizer / file).read_bytes())
    return folder


def test_while_hashing(trtbuild: Command, tmp_path: Path, smollm2: Path, number: signal.Signals) -> None:
    model = synthetic(tmp_path / "sparse", smollm2, "--layers", "64", "--shards", "2")  # 2 GB, on no disk
    stop_in_stage(trtbuild, "hash", number, model, "--backend", "onnx")


def test_while_quantising(trtbuild: Command, tmp_path: Path, smollm2: Path, number: signal.Signals) -> None:
    model = synthetic(tmp_path / "random", smollm2, "--layers", "6", "--shards", "1", "--seed", "0")  # 200 MB
    stop_in_stage(trtbuild, "int4", number, model, "--backend", "onnx", "--precision", "int4")


def test_while_building(trtbuild: Command, tiny_checkpoint: Callable[..., Path], number: signal.Signals) -> None:
    model = tiny_checkpoint(dtype="float16", num_hidden_layers=8)
    stop_in_stage(trtbuild, "engine", number, model, "--backend", "rtx", "--capacity", "64")


@pytest.mark.slow
def test_at_any_moment(trtbuild: Command, tiny_checkpoint: Callable[..., Path]) -> None:
    """Between stages and in the short ones; an output that appeared before the signal is whole."""
    model = tiny_checkpoint(dtype="float16")
    chance = random.Random(0)
    codes = set()
    for attempt in range(12):
        number = chance.choice(list(EXIT_CODES))
        out = trtbuild.place / f"out-{attempt}"
        process = trtbuild.start(
            "compile", model, "--out", out, "--backend", "rtx", "--capacity", "64", "--precision", "int4",
            TRTBUILD_CACHE=str(trtbuild.place / f"cache-{attempt}"),
        )  # fmt: skip
        assert process.stderr is not None
        assert process.stderr.readline() == "checkpoint …\n"  # the handlers are there from here on
        time.sleep(chance.uniform(0, 1.5))
        stop(process, number)
        process.communicate(timeout=60)
        codes.add(process.returncode)
        # A Python that is shutting down after its work has given the signals back to the system.
        assert process.returncode in (0, -number, EXIT_CODES[number])
        assert out.exists() or process.returncode == EXIT_CODES[number]
        assert not out.exists() or (out / "timings.json").exists()
        assert not [path for path in trtbuild.place.rglob("*") if ".tmp-" in path.name]
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, 0)
    assert codes & {*EXIT_CODES.values()}
