from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from trtbuild.checkpoint.folder import open_folder
from trtbuild.errors import InputError

CONFIG = {"model_type": "llama", "hidden_size": 4}


def tensors(*names: str) -> dict[str, Any]:
    return {name: np.full((2, 2), number, np.float32) for number, name in enumerate(names)}


@pytest.fixture
def single(tmp_path: Path) -> Path:
    folder = tmp_path / "single"
    folder.mkdir()
    save_file(tensors("a", "b"), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    folder = tmp_path / "sharded"
    folder.mkdir()
    save_file(tensors("a", "b"), folder / "model-1.safetensors")
    save_file(tensors("c"), folder / "model-2.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    write_index(folder, {"a": "model-1.safetensors", "b": "model-1.safetensors", "c": "model-2.safetensors"})
    return folder


def write_index(folder: Path, weight_map: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_one_file(single: Path) -> None:
    (single / "generation_config.json").write_text('{"eos_token_id": 7}')
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "merges.txt", "README.md"):
        (single / name).write_text("{}")
    checkpoint = open_folder(single)
    assert checkpoint.name == "single"
    assert checkpoint.config == CONFIG
    assert checkpoint.generation_config == {"eos_token_id": 7}
    assert set(checkpoint.tensors) == {"a", "b"}
    assert checkpoint.weight_files == (single / "model.safetensors",)
    assert [file.name for file in checkpoint.tokenizer_files] == [
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "merges.txt",
    ]


def test_several_files(sharded: Path) -> None:
    checkpoint = open_folder(sharded)
    assert {name: ref.file.name for name, ref in checkpoint.tensors.items()} == {
        "a": "model-1.safetensors",
        "b": "model-1.safetensors",
        "c": "model-2.safetensors",
    }
    assert checkpoint.generation_config == {}


def test_the_fingerprint_follows_the_header_and_the_hashes_the_content(single: Path) -> None:
    before = open_folder(single)
    save_file({"a": np.full((2, 2), 9, np.float32), "b": np.ones((2, 2), np.float32)}, single / "model.safetensors")
    after = open_folder(single)
    assert after.fingerprint() == before.fingerprint()
    save_file(tensors("a", "z"), single / "model.safetensors")
    assert open_folder(single).fingerprint() != before.fingerprint()


def test_relative_and_symlinked_folders(single: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(single)
    assert open_folder(Path("link")).name == "single"
    assert all(ref.file.is_absolute() for ref in open_folder(Path("single")).tensors.values())


def test_remote_code_is_not_loaded(single: Path) -> None:
    (single / "config.json").write_text(json.dumps({**CONFIG, "auto_map": {"AutoModelForCausalLM": "evil.Model"}}))
    (single / "evil.py").write_text("raise SystemExit('ran')")
    open_folder(single)
    assert "evil" not in sys.modules


INDEX_FAULTS: dict[str, tuple[Any, str]] = {
    "a file that is not there": ({"a": "model-9.safetensors"}, "names model-9.safetensors, which is not in"),
    "a tensor that is not there": (
        {
            "a": "model-1.safetensors",
            "b": "model-1.safetensors",
            "z": "model-2.safetensors",
            "c": "model-2.safetensors",
        },
        "puts 'z' into model-2.safetensors, and it is not there",
    ),
    "a tensor in another file": (
        {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-2.safetensors"},
        r"puts 'b' into model-2.safetensors, .* \(it is in model-1.safetensors\)",
    ),
    "a shard's tensor left out": (
        {"a": "model-1.safetensors", "c": "model-2.safetensors"},
        "Tensor 'b' of .* is not in model.safetensors.index.json",
    ),
    "path traversal": ({"a": "../single/model.safetensors"}, "may not point outside"),
    "an absolute path": ({"a": "/etc/passwd"}, "may not point outside"),
    "a backslash": ({"a": "..\\model.safetensors"}, "may not point outside"),
    "dots": ({"a": ".."}, "may not point outside"),
    "a NUL": ({"a": "model\0.safetensors"}, "may not point outside"),
    "a number": ({"a": 5}, "may not point outside"),
    "an empty name": ({"a": ""}, "may not point outside"),
    "an empty map": ({}, "no 'weight_map'"),
    "a list": (["a"], "no 'weight_map'"),
}


@pytest.mark.parametrize("fault", INDEX_FAULTS)
def test_an_index_that_is_wrong(fault: str, sharded: Path) -> None:
    weight_map, message = INDEX_FAULTS[fault]
    write_index(sharded, weight_map)
    with pytest.raises(InputError, match=message):
        open_folder(sharded)


def test_a_tensor_in_two_shards(sharded: Path) -> None:
    save_file(tensors("c", "a"), sharded / "model-2.safetensors")
    with pytest.raises(InputError, match=r"'a' is in model-1.safetensors and again in model-2.safetensors"):
        open_folder(sharded)


def test_a_damaged_shard_is_named(sharded: Path) -> None:
    shard = sharded / "model-2.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"model-2.safetensors is truncated"):
        open_folder(sharded)


def test_two_models_in_one_folder(sharded: Path, single: Path) -> None:
    shutil.copy(single / "model.safetensors", sharded)
    with pytest.raises(InputError, match=r"both model.safetensors and an index"):
        open_folder(sharded)


def test_shards_without_their_index(sharded: Path) -> None:
    (sharded / "model.safetensors.index.json").unlink()
    with pytest.raises(InputError, match=r"has model-1.safetensors but neither"):
        open_folder(sharded)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickles_are_refused_with_the_reason_and_the_way_out(name: str, single: Path) -> None:
    (single / "model.safetensors").unlink()
    (single / name).write_bytes(b"\x80\x04.")
    with pytest.raises(InputError, match=rf"{name}: .*run any code.*safe_serialization=True"):
        open_folder(single)


def test_weights_of_another_kind(single: Path) -> None:
    (single / "model.safetensors").unlink()
    with pytest.raises(InputError, match="no weights"):
        open_folder(single)
    (single / "x.gguf").write_bytes(b"GGUF")
    with pytest.raises(InputError, match=r"name the file itself: .*x\.gguf"):
        open_folder(single)
    (single / "adapter_config.json").write_text("{}")
    with pytest.raises(InputError, match="adapter"):
        open_folder(single)


def test_no_config(single: Path) -> None:
    (single / "config.json").unlink()
    with pytest.raises(InputError, match=r"no config\.json"):
        open_folder(single)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{\n  "model_type": "llama"\n  "hidden_size": 4\n}', r"config.json, line 3, column 3: not JSON"),
        (b"", "line 1, column 1"),
        (b"[1]", "JSON list, not an object"),
        (b'{"a": "\xff"}', r"not UTF-8 text \(byte 7\)"),
        (b"[" * 200_000, "not JSON"),
        (b'{"a": ' + b"1" * 5000 + b"}", "not JSON"),
    ],
)
def test_a_config_that_is_not_a_json_object(content: bytes, message: str, single: Path) -> None:
    (single / "config.json").write_bytes(content)
    with pytest.raises(InputError, match=message):
        open_folder(single)
