"""The hub, as a user meets it: the real huggingface_hub in a process of its own, its real environment variables."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
from safetensors.numpy import save

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "generation_config.json": b'{"eos_token_id": 2}',
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors": save({"a": np.zeros(2, np.float32)}),
    "pytorch_model.bin": b"a pickle",
    "consolidated.safetensors": b"a second copy",
    "onnx/config.json": b"{}",
    "README.md": b"read me",
}
DATA = {"data/train.jsonl": b'{"text": "one"}\n', "data/[test].jsonl": b'{"text": "two"}\n', "README.md": b"read me"}
LOCATE = """
import json, sys
from trtbuild.calibration.documents import locate
from trtbuild.errors import TrtbuildError
try:
    print(json.dumps({"text": locate(sys.argv[1]).read_text()}))
except TrtbuildError as error:
    print(json.dumps({"error": str(error), "exit_code": error.exit_code}))
"""
OPEN = """
import json, sys
from pathlib import Path
from trtbuild.checkpoint import open_checkpoint
from trtbuild.errors import TrtbuildError
try:
    c = open_checkpoint(sys.argv[1], revision=sys.argv[2] or None, cache=Path("unused"))
    print(json.dumps({"name": c.name, "source": c.source, "config": c.config, "tensors": list(c.tensors),
                      "generation": c.generation_config, "tokenizer": [f.name for f in c.tokenizer_files],
                      "folder": str(next(iter(c.tensors.values())).file.parent)}))
except TrtbuildError as error:
    print(json.dumps({"error": str(error), "exit_code": error.exit_code}))
"""


def open_model(home: Path, model: str, *, revision: str = "", **environment: str) -> dict[str, Any]:
    """What open_checkpoint returns or raises in a new process whose hub cache is under `home`."""
    return in_new_process(home, OPEN, model, revision, **environment)


def in_new_process(home: Path, program: str, *arguments: str, **environment: str) -> dict[str, Any]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**clean, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", **environment},
        cwd=Path(__file__).resolve().parent.parent.parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def fill_cache(home: Path, files: Mapping[str, bytes], repo: str = "org/model", ref: str = "main") -> Path:
    """The hub's cache layout: blobs by hash, snapshots of symlinks to them, refs that name the commit."""
    place = home / "hub" / f"models--{repo.replace('/', '--')}"
    snapshot = place / "snapshots" / COMMIT
    for folder in (place / "blobs", place / "refs", snapshot):
        folder.mkdir(parents=True, exist_ok=True)
    (place / "refs" / ref).write_text(COMMIT)
    for number, (name, content) in enumerate(files.items()):
        blob = place / "blobs" / f"{number:040}"
        blob.write_bytes(content)
        (snapshot / name).symlink_to(f"../../blobs/{blob.name}")
    return snapshot


CACHED = {name: content for name, content in FILES.items() if "/" not in name}


def test_a_cached_model_opens_offline(tmp_path: Path) -> None:
    snapshot = fill_cache(tmp_path, CACHED)
    opened = open_model(tmp_path, "org/model", HF_HUB_OFFLINE="1")
    assert opened == {
        "name": "model",
        "source": f"org/model@{COMMIT}",
        "config": {"model_type": "llama"},
        "tensors": ["a"],
        "generation": {"eos_token_id": 2},
        "tokenizer": ["tokenizer.json", "chat_template.jinja"],
        "folder": str(snapshot),
    }


@pytest.mark.parametrize(("model", "revision"), [("org/model@v1", ""), ("org/model", "v1"), ("org/model@v1", "v1")])
def test_a_revision_is_an_argument_or_behind_an_at(model: str, revision: str, tmp_path: Path) -> None:
    fill_cache(tmp_path, CACHED, ref="v1")
    assert open_model(tmp_path, model, revision=revision, HF_HUB_OFFLINE="1")["source"] == f"org/model@{COMMIT}"


def test_two_revisions_are_one_too_many(tmp_path: Path) -> None:
    opened = open_model(tmp_path, "org/model@v1", revision="v2", HF_HUB_OFFLINE="1")
    assert "'v1' and the option 'v2'" in opened["error"]


def test_offline_and_not_in_the_cache(tmp_path: Path) -> None:
    opened = open_model(tmp_path, "org/model", revision="v2", HF_HUB_OFFLINE="1")
    assert "org/model at revision v2 is not whole in the cache" in opened["error"]
    assert "HF_HUB_OFFLINE is set. Unset it" in opened["error"]
    assert opened["exit_code"] == 2


def test_offline_and_half_in_the_cache(tmp_path: Path) -> None:
    fill_cache(tmp_path, {"config.json": b"{}"})
    opened = open_model(tmp_path, "org/model", HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE" in opened["error"]


@pytest.fixture
def closed_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def test_no_network(tmp_path: Path, closed_port: str) -> None:
    opened = open_model(tmp_path, "org/model", HF_ENDPOINT=closed_port)
    assert f"{closed_port} cannot be reached and org/model is not in the cache" in opened["error"]
    assert "Check the network" in opened["error"]
    assert opened["exit_code"] == 1


def test_no_network_and_in_the_cache(tmp_path: Path, closed_port: str) -> None:
    fill_cache(tmp_path, CACHED)
    assert open_model(tmp_path, "org/model", HF_ENDPOINT=closed_port)["source"] == f"org/model@{COMMIT}"


@dataclass
class Hub:
    """A hub on loopback that has org/model (main only) and answers as the real one does."""

    url: str = ""
    fetched: set[str] = field(default_factory=set)
    gated_files: bool = False


@pytest.fixture
def hub() -> Iterator[Hub]:
    state = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer()

        def do_HEAD(self) -> None:
            self.answer()

        def answer(self) -> None:
            path = unquote(self.path.partition("?")[0])
            if path in ("/api/models/org/model", "/api/models/org/model/revision/main"):
                names = [{"rfilename": name} for name in FILES]
                self.send({"id": "org/model", "sha": COMMIT, "siblings": names, "private": False})
            elif path.startswith("/api/models/org/model/tree/"):
                self.send(
                    [
                        {"type": "file", "path": name, "size": len(content), "oid": f"{number:040}"}
                        for number, (name, content) in enumerate(FILES.items())
                    ]
                )
            elif path.startswith("/api/models/org/model/revision/"):
                self.refuse(404, "RevisionNotFound")
            elif path.startswith(prefix := f"/org/model/resolve/{COMMIT}/"):
                self.file(path.removeprefix(prefix))
            elif path == "/api/datasets/org/data/revision/main":
                names = [{"rfilename": name} for name in DATA]
                self.send({"id": "org/data", "sha": COMMIT, "siblings": names, "private": False})
            elif path.startswith("/api/datasets/org/data/tree/"):
                self.send([{"type": "file", "path": name, "size": len(DATA[name]), "oid": "1" * 40} for name in DATA])
            elif path.startswith("/api/datasets/org/data/revision/"):
                self.refuse(404, "RevisionNotFound")
            elif path.startswith(prefix := f"/datasets/org/data/resolve/{COMMIT}/"):
                state.fetched.add(path.removeprefix(prefix))
                self.send(DATA[path.removeprefix(prefix)], **{"ETag": f'"{"1" * 40}"', "X-Repo-Commit": COMMIT})
            elif path.startswith("/api/datasets/org/missing"):
                self.refuse(404, "RepoNotFound")
            elif path.startswith("/api/models/org/gated"):
                self.refuse(403, "GatedRepo")
            elif path.startswith("/api/models/org/broken"):
                self.refuse(500, "")
            elif path.startswith("/api/models/org/missing"):
                self.refuse(404, "RepoNotFound")
            elif path.startswith("/api/models/org/private"):
                self.refuse(401, "RepoNotFound")
            else:
                self.refuse(401, "", "Invalid credentials in Authorization header")

        def file(self, name: str) -> None:
            if state.gated_files:
                self.refuse(403, "GatedRepo")
                return
            state.fetched.add(name)
            number = f'"{list(FILES).index(name):040}"'
            self.send(FILES[name], **{"ETag": number, "X-Repo-Commit": COMMIT})

        def send(self, content: Any, **headers: str) -> None:
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(200)
            for header, value in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(header, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

        def refuse(self, status: int, code: str, message: str = "") -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            if code:
                self.send_header("X-Error-Code", code)
            if message:
                self.send_header("X-Error-Message", message)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}"
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield state
    server.shutdown()
    server.server_close()


def test_a_download_takes_no_pickle_and_no_second_copy(tmp_path: Path, hub: Hub) -> None:
    opened = open_model(tmp_path, "org/model", HF_ENDPOINT=hub.url)
    assert opened["source"] == f"org/model@{COMMIT}"
    assert opened["tokenizer"] == ["tokenizer.json", "chat_template.jinja"]
    assert hub.fetched == {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "chat_template.jinja",
        "model.safetensors",
    }
    hub.fetched.clear()
    again = open_model(tmp_path, "org/model", HF_HUB_OFFLINE="1")
    assert again == opened
    assert not hub.fetched


@pytest.mark.parametrize(
    ("model", "message", "exit_code"),
    [
        ("org/missing", "has no model org/missing, and there is no folder of that name here", 2),
        ("org/private", "has no model org/private, .*if it is private, log in", 2),
        ("org/any", "refuses access to org/any: .*correct HF_TOKEN", 2),
        ("org/gated", "org/gated is gated: .*Accept it at .*/org/gated, .*HF_TOKEN", 2),
        ("org/model@v9", "org/model has no revision 'v9'", 2),
        ("org/broken", "org/broken .*500", 1),
        ("org/-bad..", "'org/-bad..' is not a hub id", 2),
    ],
)
def test_what_the_hub_refuses(model: str, message: str, exit_code: int, tmp_path: Path, hub: Hub) -> None:
    opened = open_model(tmp_path, model, HF_ENDPOINT=hub.url)
    assert re.search(message, opened["error"]), opened
    assert opened["exit_code"] == exit_code
    assert "\n" not in opened["error"]


def test_a_model_whose_files_are_gated(tmp_path: Path, hub: Hub) -> None:
    hub.gated_files = True
    assert "org/model is gated" in open_model(tmp_path, "org/model", HF_ENDPOINT=hub.url)["error"]


@pytest.mark.parametrize(
    ("name", "text"), [("data/train.jsonl", '{"text": "one"}\n'), ("data/[test].jsonl", '{"text": "two"}\n')]
)
def test_a_file_of_a_data_set(tmp_path: Path, hub: Hub, name: str, text: str) -> None:
    """That file only, and from the cache the second time."""
    assert in_new_process(tmp_path, LOCATE, f"hub:org/data/{name}", HF_ENDPOINT=hub.url) == {"text": text}
    assert hub.fetched == {name}
    assert in_new_process(tmp_path, LOCATE, f"hub:org/data/{name}", HF_HUB_OFFLINE="1") == {"text": text}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("hub:org/data/none.jsonl", "data set org/data has no file none.jsonl"),
        ("hub:org/data@v9/data/train.jsonl", "org/data has no revision 'v9'. Look at .*/datasets/org/data/tree/main"),
        ("hub:org/missing/a.jsonl", "has no dataset org/missing. Check the spelling"),
        ("hub:org/data", "'hub:org/data' is no file of a data set. One looks like hub:org/name/train.jsonl"),
        ("hub:org/data/../../secret", "is no file of a data set"),
    ],
)
def test_a_file_of_a_data_set_that_is_not_there(tmp_path: Path, hub: Hub, source: str, message: str) -> None:
    found = in_new_process(tmp_path, LOCATE, source, HF_ENDPOINT=hub.url)
    assert re.search(message, found["error"]), found
    assert found["exit_code"] == 2
