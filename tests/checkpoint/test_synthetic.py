"""scripts/synthetic_checkpoint.py, and how long opening 70B's headers takes."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from pathlib import Path

from trtbuild.checkpoint import open_checkpoint
from trtbuild.dtypes import DType
from trtbuild.hashing import Hasher

SCRIPT = Path(__file__).resolve().parent.parent.parent / "scripts" / "synthetic_checkpoint.py"


def write(folder: Path, *options: str) -> Path:
    subprocess.run(
        [sys.executable, SCRIPT, folder, *options], check=True, capture_output=True, cwd=SCRIPT.parent.parent
    )
    return folder


def test_seventy_billion_parameters_take_no_disk_and_no_time(tmp_path: Path) -> None:
    folder = write(tmp_path / "70b")
    begin = time.perf_counter()
    checkpoint = open_checkpoint(folder, cache=tmp_path)
    assert time.perf_counter() - begin < 0.5
    assert len(checkpoint.tensors) == 723
    assert len(checkpoint.weight_files) == 30
    assert sum(math.prod(ref.shape) for ref in checkpoint.tensors.values()) == 70_553_706_496
    assert {ref.dtype for ref in checkpoint.tensors.values()} == {DType.BF16}
    assert checkpoint.tensors["model.layers.79.self_attn.k_proj.weight"].shape == (1024, 8192)
    assert checkpoint.config["rope_parameters"]["rope_type"] == "llama3"
    sizes = [file.stat().st_size for file in checkpoint.weight_files]
    assert sum(sizes) > 141e9
    assert max(sizes) < 1.5 * min(sizes)
    assert sum(file.stat().st_blocks * 512 for file in folder.iterdir()) < 2_000_000


def weight_hashes(folder: Path) -> dict[str, str]:
    return Hasher().files(open_checkpoint(folder, cache=folder).weight_files)


SMALL = ("--layers=2", "--hidden=64", "--heads=4", "--kv-heads=2", "--mlp=96", "--vocab=300")


def test_a_small_one_with_random_weights_runs(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    folder = write(tmp_path / "small", *SMALL, "--shards=2", "--seed=0")
    same = write(tmp_path / "same", *SMALL, "--shards=2", "--seed=0")
    other = write(tmp_path / "other", *SMALL, "--shards=1", "--seed=1")
    hashes = weight_hashes(folder)
    assert hashes == weight_hashes(same)
    assert len(hashes) == 2 and list(weight_hashes(other)) == ["model.safetensors"]
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert 0.01 < model(torch.tensor([[1, 2, 3]])).logits.float().std().item() < 1
    weight = model.state_dict()["model.layers.0.mlp.up_proj.weight"].float()
    assert abs(weight.std().item() - 0.02) < 0.001
