"""Finding the reason in tritonserver's log."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtbuild.triton.server_log import failure, loaded_models

NOISE = """\
W1201 13:00:00.000001 7 pinned_memory_manager.cc:273] "Unable to allocate pinned system memory: CUDA driver missing"
E1201 13:00:00.000002 7 cuda_memory_manager.cc:117] "Failed to initialize CUDA memory manager"
E1201 13:00:00.000003 7 metrics.cc:800] "Unable to get DCGM version"
I1201 13:00:00.000004 7 model_lifecycle.cc:472] "loading: m:1"
"""
PYTHON = (
    NOISE
    + """\
E1201 13:00:01.000001 7 model_lifecycle.cc:654] "failed to load 'm' version 1: Internal: BackendError: No backend works

At:
  /models/m/1/model.py(55): initialize
"
I1201 13:00:01.000002 7 server.cc:674] ok
error: creating server: Internal - failed to load all models
"""
)


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (NOISE, ""),
        (PYTHON, "Model 'm', version 1: BackendError: No backend works"),
        (
            NOISE + "E1201 13:00:01.1 7 model_lifecycle.cc:654] \"failed to load 'm' version 1: "
            "Invalid argument: unable to find backend library for backend 'x'\"\n",
            "Model 'm', version 1: unable to find backend library for backend 'x'",
        ),
        (
            NOISE + "error: failed to start HTTP service: Unavailable - Socket '127.0.0.1:8000' already in use\n",
            "failed to start HTTP service: Unavailable - Socket '127.0.0.1:8000' already in use",
        ),
    ],
)
def test_the_reason_without_the_noise(tmp_path: Path, log: str, reason: str) -> None:
    (tmp_path / "log").write_text(log)
    assert failure(tmp_path / "log") == reason


def test_loaded_models_are_counted(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(NOISE + "I1201 13:00:02.1 7 model_lifecycle.cc:839] \"successfully loaded 'm'\"\n")
    assert loaded_models(tmp_path / "log") == ["m"]
