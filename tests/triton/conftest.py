"""A tiny random model in a repository written by `write_repository`, and the real server over it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.graph.harness import write_graph
from tests.serving import conftest as tiny
from trtbuild.serving.config import Backend, Cache, Profile, ServingConfig
from trtbuild.triton.repository import PlacedFile, RepositorySpec, write_repository
from trtbuild.triton.server import TritonServer

SLOTS, CAPACITY = 8, 4096
"""A cache so long that an answer that fills it takes seconds: time to cancel, disconnect and kill in."""
MODEL = "tiny"


def serving_config(**changes: Any) -> ServingConfig:
    """serving.json of the tiny model."""
    values: dict[str, Any] = {
        "model_name": MODEL,
        "vocab_size": tiny.VOCAB,
        "cache": Cache(tiny.LAYERS, SLOTS, tiny.KV_HEADS, CAPACITY, tiny.HEAD_DIM, tiny.HEAD_DIM),
        "prefill_chunk": 64,
        "eos_token_ids": (),
        "profiles": (Profile("decode", (1, 2, SLOTS), (1, 32, 64), (1, 128, CAPACITY)),),
        "backends": (Backend("onnxruntime", "model.onnx", "float32"),),
    }
    return ServingConfig(**{**values, **changes})


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of 2 layers with a byte-level tokenizer."""
    folder = tmp_path_factory.mktemp("checkpoint")
    tiny.write_checkpoint(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": CAPACITY}))
    tiny.byte_level_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<bos>", "eos_token": "<eos>", "chat_template": tiny.TEMPLATE})
    )
    return folder


@pytest.fixture(scope="session")
def repository_spec(checkpoint: Path) -> RepositorySpec:
    """What is written for the tiny model."""
    graph = write_graph(checkpoint, capacity=CAPACITY)
    weights = [file for file in graph.parent.iterdir() if file.suffix == ".safetensors"]
    return RepositorySpec(
        serving=serving_config(),
        tokenizer_files=(checkpoint / "tokenizer.json", checkpoint / "tokenizer_config.json"),
        files=tuple(PlacedFile(file, file.name) for file in (graph, *weights)),
    )


@pytest.fixture(scope="session")
def emitted(tmp_path_factory: pytest.TempPathFactory, repository_spec: RepositorySpec) -> Path:
    """The folder as a user gets it."""
    out = tmp_path_factory.mktemp("emitted")
    write_repository(out, repository_spec)
    return out


@pytest.fixture(scope="module")
def server(emitted: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """The emitted repository on the real tritonserver."""
    log = tmp_path_factory.mktemp("log") / "tritonserver.log"
    with TritonServer(emitted / "model_repository", log_file=log, arguments=["--log-verbose=1"], timeout=60) as server:
        yield server


ECHO = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("O", pb_utils.get_input_tensor_by_name(r, "I").as_numpy())])
                for r in requests]
"""


@pytest.fixture
def write_model(tmp_path: Path) -> Callable[..., Path]:
    """Write a small Python model, `write_model(name, config.pbtxt, model.py)`; returns the repository."""

    def write(name: str, config: str, code: str = ECHO) -> Path:
        (tmp_path / "models" / name / "1").mkdir(parents=True)
        (tmp_path / "models" / name / "config.pbtxt").write_text(config)
        (tmp_path / "models" / name / "1" / "model.py").write_text(code)
        return tmp_path / "models"

    return write
