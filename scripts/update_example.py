#!/usr/bin/env python3
"""Write model_repository/ again: what is emitted for SmolLM2 with an engine of TensorRT 10.16, without the large files.

Left out are weights, graph and plan, the tokenizer's files and the copy of trtbuild/serving.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from trtbuild.serving.config import Backend, Cache, Profile, ServingConfig
from trtbuild.triton.repository import PACKAGE, REPOSITORY, PlacedFile, RepositorySpec, version_folder, write_repository

EXAMPLE = Path(__file__).resolve().parent.parent / "model_repository"

SERVING = ServingConfig(
    model_name="smollm2-135m-instruct",
    vocab_size=49152,
    cache=Cache(layers=30, slots=8, kv_heads=3, capacity=2048, key_dim=64, value_dim=64),
    prefill_chunk=512,
    eos_token_ids=(2,),
    profiles=(
        Profile("decode", batch=(1, 4, 8), tokens=(1, 1, 1), kv=(1, 512, 2048)),
        Profile("prefill", batch=(1, 1, 1), tokens=(1, 128, 512), kv=(1, 512, 2048)),
    ),
    backends=(
        Backend("tensorrt", "model.plan", "bfloat16", "10.16.1.11"),
        Backend("onnxruntime", "model.onnx", "float32"),
    ),
)


def write_example(folder: Path) -> None:
    """Write the example's README.md, Dockerfile and model into the empty folder `folder`."""
    with tempfile.TemporaryDirectory() as temporary:
        sources = {name: Path(temporary) / name for name in ("tokenizer.json", "tokenizer_config.json")}
        sources |= {backend.file: Path(temporary) / backend.file for backend in SERVING.backends}
        for source in sources.values():
            source.touch()
        out = Path(temporary) / "out"
        files = tuple(PlacedFile(sources[backend.file], backend.file) for backend in SERVING.backends)
        tokenizer = (sources["tokenizer.json"], sources["tokenizer_config.json"])
        write_repository(out, RepositorySpec(SERVING, tokenizer, files))
        version = version_folder(out, SERVING.model_name)
        for name in sources:
            (version / name).unlink()
        shutil.rmtree(version / PACKAGE)
        shutil.copytree(out / REPOSITORY, folder, dirs_exist_ok=True)
        for name in ("README.md", "Dockerfile"):
            shutil.copyfile(out / name, folder / name)


if __name__ == "__main__":
    shutil.rmtree(EXAMPLE, ignore_errors=True)
    write_example(EXAMPLE)
