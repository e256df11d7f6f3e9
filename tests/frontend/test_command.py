"""`trtbuild serve --openai` as a user runs it, and `trtbuild generate` against it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cli.conftest import Command
from tests.frontend.conftest import MODEL

FREE = ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", "--openai", "--openai-port", "0"]


@contextlib.contextmanager
def serving(command: Command, repository: Path, **environment: str) -> Iterator[tuple[subprocess.Popen[str], Any]]:
    """The process, and the addresses that it writes when it is ready."""
    process = command.start("serve", repository, *FREE, "--ports-file", "ports.json", **environment)
    try:
        file = command.place / "ports.json"
        while not file.exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        yield process, json.loads(file.read_text())
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        process.communicate()


def ask(address: str, prompt: str, **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(address, timeout=20)
    body = json.dumps({"model": MODEL, "prompt": prompt})
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json", **headers})
    response = connection.getresponse()
    return response.status, json.loads(response.read())


@pytest.mark.slow
def test_it_serves_with_a_key_and_lets_answers_finish(trtbuild: Command, scripted: Path) -> None:
    with serving(trtbuild, scripted, TRTBUILD_API_KEY="k") as (process, addresses):
        assert set(addresses) == {"http", "grpc", "metrics", "openai"}
        assert ask(addresses["openai"], "the")[0] == 401
        status, answer = ask(addresses["openai"], "the", Authorization="Bearer k")
        assert (status, answer["choices"][0]["text"]) == (200, "the")

        arguments = ["--raw", "--model", MODEL, "--ports-file", "ports.json", "--json", "--priority", "1"]
        options = {
            "--max-tokens": 9, "--temperature": 0.5, "--top-k": 3, "--top-p": 0.5, "--min-p": 0.25, "--seed": 7,
            "--repetition-penalty": 1.5, "--frequency-penalty": -0.5, "--presence-penalty": 1.0, "--min-tokens": 2,
            "--stop": "END", "--queue-timeout": 2.5,
        }  # fmt: skip
        values = [str(part) for option in options.items() for part in option]
        result = trtbuild("generate", '{"show": true}', *arguments, "--ignore-eos", *values)
        assert result.returncode == 0, result.stderr
        document = json.loads(result.stdout)
        assert json.loads(document["text"]) == {
            "text_input": '{"show": true}', "stream": True, "max_tokens": 9, "temperature": 0.5, "top_k": 3,
            "top_p": 0.5, "min_p": 0.25, "random_seed": 7, "repetition_penalty": 1.5, "frequency_penalty": -0.5,
            "presence_penalty": 1.0, "min_tokens": 2, "ignore_eos": True, "stop_words": "END", "priority": 1,
            "queue_timeout_ms": 2500,
        }  # fmt: skip
        assert document["cached_tokens"] == document["prompt_tokens"] // 2 > 0

        found: list[Any] = []
        prompt = json.dumps({"wait": 1, "say": ["late"]})
        running = threading.Thread(
            target=lambda: found.append(ask(addresses["openai"], prompt, Authorization="Bearer k"))
        )
        running.start()
        time.sleep(0.3)
        os.killpg(process.pid, signal.SIGINT)
        stdout, stderr = process.communicate(timeout=30)
        running.join()
    assert process.returncode == 0, stderr
    assert found[0][1]["choices"][0]["text"] == "late"
    assert "openai 127.0.0.1:" in stdout and stdout.endswith("Stopping; what runs may finish.\n")
    assert "--api-key" not in stderr
    assert not (trtbuild.place / "ports.json").exists()


@pytest.mark.slow
def test_it_ends_with_triton(trtbuild: Command, scripted: Path) -> None:
    with serving(trtbuild, scripted) as (process, _):
        (server,) = (p for p in psutil.Process(process.pid).children() if p.name() == "tritonserver")
        server.kill()
        _, stderr = process.communicate(timeout=10)
        assert process.returncode == 1
        assert "error: tritonserver ended with signal SIGKILL" in stderr


def test_what_cannot_be_served(trtbuild: Command, scripted: Path, write_model: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = trtbuild("serve", scripted, "--openai", "--openai-port", str(port))
        assert result.returncode == 2 and f"cannot listen at 127.0.0.1:{port}" in result.stderr
    result = trtbuild("serve", scripted, *FREE, "--host", "no.such.host.invalid")
    assert result.returncode == 2 and "cannot listen at no.such.host.invalid:0" in result.stderr
    result = trtbuild("serve", scripted, *FREE, "--api-key", "")
    assert result.returncode == 2 and "The API key is empty" in result.stderr
    result = trtbuild("serve", write_model("echo", 'name: "echo"'), *FREE)
    assert result.returncode == 2 and "holds no language model" in result.stderr
    result = trtbuild("serve", "missing", *FREE)
    assert result.returncode == 2 and "The model repository missing does not exist" in result.stderr


def test_without_the_extra(trtbuild: Command, scripted: Path) -> None:
    (trtbuild.place / "fastapi.py").write_text("raise ImportError('No module named fastapi')")
    result = trtbuild("serve", scripted, *FREE, PYTHONPATH=str(trtbuild.place))
    assert result.returncode == 2 and "pip install 'trtbuild[openai]'" in result.stderr
