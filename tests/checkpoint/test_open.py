from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.checkpoint.gguf_files import write_gguf
from trtbuild.checkpoint import open_checkpoint
from trtbuild.errors import InputError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "org" / "name"
    place.mkdir(parents=True)
    save_file({"a": np.zeros(2, np.float32)}, place / "model.safetensors")
    (place / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return place


def test_a_folder_a_gguf_and_what_exists_before_the_hub(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    assert open_checkpoint(folder, cache=cache).source == str(folder)
    assert open_checkpoint(str(folder), cache=cache).name == "name"
    gguf = write_gguf(tmp_path / "small.gguf")
    assert open_checkpoint(gguf, cache=cache).name == "small"
    monkeypatch.chdir(tmp_path)
    assert open_checkpoint("org/name", cache=cache).source == "org/name"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_checkpoint("~/org/name", cache=cache).name == "name"


@pytest.mark.parametrize(
    "model",
    [
        "./nowhere",
        "/no/where",
        "~/nowhere",
        "nowhere",
        "a/b/c",
        "../x",
        "x/",
        "models/x.gguf",
        "x\\y/z",
        "a/b.bin",
        "org/@v1",
    ],
)
def test_a_path_that_does_not_exist_is_not_looked_up_in_the_hub(model: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"does not exist\. Name a folder, a \.gguf file, or a hub id"):
        open_checkpoint(model, cache=tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        open_checkpoint(Path("org/unknown"), cache=tmp_path)


@pytest.mark.parametrize("model", ["org/name@", "org/na me", "org/name@v 1", "org/näme"])
def test_what_is_not_a_hub_id(model: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a hub id"):
        open_checkpoint(model, cache=tmp_path)


@pytest.mark.parametrize("revision", ["../../x", "v 1", "a..b"])
def test_what_is_not_a_revision(revision: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a hub id"):
        open_checkpoint("org/unknown", revision=revision, cache=tmp_path)


def test_a_revision_of_a_folder(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a revision \('main'\) is for a hub id only"):
        open_checkpoint(folder, revision="main", cache=tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pytorch_model.bin", "run any code"),
        ("model.pth", "run any code"),
        ("model.safetensors", "neither a folder nor a .gguf file"),
        ("config.json", "Name the folder that holds config.json"),
        ("x.gguf", "not a GGUF file"),
    ],
)
def test_a_file_that_is_not_a_gguf(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"????")
    with pytest.raises(InputError, match=message):
        open_checkpoint(tmp_path / name, cache=tmp_path)


def test_a_folder_needs_no_library(folder: Path, tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from trtbuild.checkpoint import open_checkpoint
open_checkpoint(sys.argv[1], cache=Path("unused"))
print(sorted({"numpy", "gguf", "tokenizers", "huggingface_hub", "torch", "safetensors"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", script, folder], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_smollm2_itself(smollm2: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(smollm2, cache=tmp_path)
    assert len(checkpoint.tensors) == 272
    assert "lm_head.weight" not in checkpoint.tensors
    assert checkpoint.tensors["model.embed_tokens.weight"].shape == (49152, 576)
    copy = tmp_path / "copy"
    shutil.copytree(smollm2, copy)
    assert open_checkpoint(copy, cache=tmp_path).fingerprint() == checkpoint.fingerprint()
