"""Our own rules for a model repository."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from tests.triton.conftest import MODEL, SLOTS, serving_config
from trtbuild.errors import InputError
from trtbuild.serving.config import Backend, Profile
from trtbuild.triton.check import check_repository
from trtbuild.triton.client import ready_models
from trtbuild.triton.server import TritonServer

Edit = Callable[[Any], object]


@pytest.fixture
def repository(emitted: Path, tmp_path: Path) -> Path:
    """A copy of the emitted repository that a test may break."""
    shutil.copytree(emitted / "model_repository", tmp_path / "models")
    return tmp_path / "models"


def edit_config(repository: Path, edit: Edit) -> None:
    file = repository / MODEL / "config.pbtxt"
    config = text_format.Parse(file.read_text(), pb.ModelConfig())
    edit(config)
    file.write_text(text_format.MessageToString(config))


def faults(repository: Path) -> list[str]:
    return [f"{problem.where.relative_to(repository)}: {problem.what}" for problem in check_repository(repository)]


def test_what_is_emitted_has_no_fault(repository: Path) -> None:
    assert check_repository(repository) == []


def levels(config: Any, count: int, default: int) -> Any:
    """Give Triton's queue priorities."""
    config.dynamic_batching.priority_levels, config.dynamic_batching.default_priority_level = count, default
    return config.dynamic_batching


@pytest.mark.parametrize(
    ("edit", "fault"),
    [
        (lambda c: setattr(c, "name", "other"), "the model's name is 'other', and its folder's 'tiny'"),
        (lambda c: setattr(c, "max_batch_size", SLOTS + 1), "max_batch_size of config.pbtxt is 9, above the 8 slots"),
        (lambda c: setattr(c, "max_batch_size", -1), "max_batch_size -1 is negative"),
        (lambda c: setattr(c, "max_batch_size", 0), "the model takes no batches"),
        (lambda c: setattr(c, "backend", "tensorrt"), "the backend is 'tensorrt'; model.py needs 'python'"),
        (lambda c: setattr(c.model_transaction_policy, "decoupled", False), "not decoupled"),
        (lambda c: setattr(c.instance_group[0], "count", 2), "there are 2 instances"),
        (lambda c: c.instance_group[0].gpus.extend([0, 1]), "there are 2 instances"),
        (lambda c: c.instance_group.pop(), "there are 0 instances"),
        (lambda c: c.input.append(c.input[0]), "input 'text_input' is listed 2 times"),
        (lambda c: c.input.add(name="x", data_type="TYPE_FP32", dims=[1]), "input 'x' is unknown to model.py"),
        (lambda c: c.output.pop(0), "output 'text_output' is missing"),
        (lambda c: c.output[2].dims.__setitem__(0, 7), "output 'output_ids' has dims [7]; model.py takes [-1]"),
        (lambda c: c.input[2].dims.__setitem__(0, 0), "input 'max_tokens' has a dimension of 0"),
        (lambda c: setattr(c.input[2], "data_type", 0), "input 'max_tokens' has no data_type"),
        (lambda c: setattr(c.input[2], "data_type", pb.TYPE_INT64), "input 'max_tokens' is TYPE_INT64"),
        (lambda c: c.input[2].ClearField("dims"), "input 'max_tokens' has no dims"),
        (
            lambda c: levels(c, 0, 2),
            "default_priority_level 2 is there without priority_levels",
        ),
        (
            lambda c: levels(c, 3, 4),
            "default_priority_level 4 is not between 1 and priority_levels 3",
        ),
        (
            lambda c: levels(c, 3, 0),
            "default_priority_level 0 is not between 1 and priority_levels 3",
        ),
        (
            lambda c: setattr(levels(c, 3, 2).priority_queue_policy[7], "max_queue_size", 1),
            "priority_queue_policy has level 7, and priority_levels is 3",
        ),
        (lambda c: c.dynamic_batching.preferred_batch_size.append(16), "preferred_batch_size 16 is not between"),
        (lambda c: c.model_warmup[0].inputs["y"], "gives 'y', which is no input"),
        (lambda c: setattr(c.model_warmup[0], "batch_size", 9), "has batches of 9, above max_batch_size"),
    ],
)
def test_a_fault_in_the_config_is_found(repository: Path, edit: Edit, fault: str) -> None:
    edit_config(repository, edit)
    assert any(fault in found for found in faults(repository)), faults(repository)


@pytest.mark.parametrize(
    "name",
    ["1/model.py", "1/tokenizer.json", "1/trtbuild_serving/triton_model.py", "1/model.onnx", "warmup/text_input"],
)
def test_a_missing_file_is_found(repository: Path, name: str) -> None:
    (repository / MODEL / name).unlink()
    assert [found.split(": ")[0] for found in faults(repository)] == [f"{MODEL}/{name}"]


def test_a_missing_serving_json_config_or_version_is_found(repository: Path) -> None:
    (repository / MODEL / "1" / "serving.json").unlink()
    assert faults(repository) == ["tiny/1/serving.json: the file is missing"]
    shutil.rmtree(repository / MODEL / "1")
    assert faults(repository) == ["tiny: there is no version folder such as '1'"]
    (repository / MODEL / "config.pbtxt").unlink()
    assert faults(repository) == ["tiny/config.pbtxt: the file is missing"]


def test_a_config_that_is_no_config_is_found(repository: Path) -> None:
    (repository / MODEL / "config.pbtxt").write_text("name: 'tiny' nonsense: 1")
    assert "is not a model configuration of Triton's: 1:14" in faults(repository)[0]
    (repository / MODEL / "config.pbtxt").write_bytes(b"name: '\xff'")
    assert "tiny/config.pbtxt" in faults(repository)[0]


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"model_name": "other"}, "it describes 'other', and config.pbtxt 'tiny'"),
        ({"backends": ()}, "it names no backend"),
        ({"backends": (Backend("tensorrt", "model.plan", "float16"),)}, "serving.json names it for tensorrt"),
        ({"profiles": (Profile("p", (1, 1, 4), (1, 1, 8), (1, 8, 8)),)}, "no profile takes a batch above 4"),
    ],
)
def test_a_serving_json_that_disagrees_is_found(repository: Path, changes: dict[str, Any], fault: str) -> None:
    (repository / MODEL / "1" / "serving.json").write_text(serving_config(**changes).to_json())
    assert any(fault in found for found in faults(repository)), faults(repository)


def test_a_serving_json_of_another_format_is_found(repository: Path) -> None:
    (repository / MODEL / "1" / "serving.json").write_text("{}")
    assert "serving.json has format None" in faults(repository)[0]


def test_no_repository_and_an_empty_one(tmp_path: Path) -> None:
    assert "there is no model in it" in str(check_repository(tmp_path)[0])
    with pytest.raises(InputError, match="does not exist"):
        check_repository(tmp_path / "none")


WRONG = {
    "default_without_levels": "max_batch_size: 4 dynamic_batching { default_priority_level: 2 }",
    "batching_without_batches": "max_batch_size: 0 dynamic_batching { }",
    "input_twice": "max_batch_size: 4 input { name: 'I' data_type: TYPE_INT32 dims: 1 }",
}


@pytest.mark.slow
def test_the_real_server_accepts_what_we_refuse(write_model: Callable[..., Path]) -> None:
    tensors = "input { name: 'I' data_type: TYPE_INT32 dims: 1 } output { name: 'O' data_type: TYPE_INT32 dims: 1 }"
    for name, wrong in WRONG.items():
        repository = write_model(name, f"name: '{name}' backend: 'python' {tensors} {wrong}")
    with TritonServer(repository) as server:
        assert ready_models(server.grpc_url) == sorted(WRONG)
    assert sorted({problem.where.parent.name for problem in check_repository(repository)}) == sorted(WRONG)
