"""What `write_repository` writes."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.triton.conftest import MODEL, serving_config
from trtbuild.errors import BuildError, InputError
from trtbuild.serving.config import Backend, ServingConfig
from trtbuild.triton.repository import PlacedFile, RepositorySpec, model_name, version_folder, write_repository


def contents(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


def test_the_layout(tmp_path: Path, repository_spec: RepositorySpec) -> None:
    write_repository(tmp_path, repository_spec)
    files = [name for name in contents(tmp_path) if "trtbuild_serving/" not in name]
    assert files == [
        "Dockerfile",
        "README.md",
        "model_repository/tiny/1/model.onnx",
        "model_repository/tiny/1/model.py",
        "model_repository/tiny/1/model.safetensors",
        "model_repository/tiny/1/serving.json",
        "model_repository/tiny/1/tokenizer.json",
        "model_repository/tiny/1/tokenizer_config.json",
        "model_repository/tiny/config.pbtxt",
        "model_repository/tiny/warmup/max_tokens",
        "model_repository/tiny/warmup/text_input",
    ]
    assert ServingConfig.load(version_folder(tmp_path, MODEL) / "serving.json") == serving_config()


def test_the_same_input_gives_the_same_bytes(tmp_path: Path, repository_spec: RepositorySpec) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_repository(tmp_path / name, repository_spec)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_weights_are_links_and_tokenizer_files_are_not(tmp_path: Path, repository_spec: RepositorySpec) -> None:
    write_repository(tmp_path, repository_spec)
    version = version_folder(tmp_path, MODEL)
    for file in repository_spec.files:
        assert (version / file.name).samefile(file.source)
    for source in repository_spec.tokenizer_files:
        assert not (version / source.name).samefile(source)


def test_the_serving_package_runs_without_trtbuild(tmp_path: Path, repository_spec: RepositorySpec) -> None:
    write_repository(tmp_path, repository_spec)
    code = (
        "import sys; sys.path.insert(0, '.'); import trtbuild_serving.engine, trtbuild_serving.runners.onnxruntime\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('trtbuild', 'torch', 'transformers')])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=version_folder(tmp_path, MODEL), capture_output=True, text=True, check=True
    )
    assert result.stdout == "[]\n"


def test_files_already_in_place_stay(tmp_path: Path, repository_spec: RepositorySpec) -> None:
    version = version_folder(tmp_path, MODEL)
    version.mkdir(parents=True)
    for file in repository_spec.files:
        (version / file.name).write_bytes(file.source.read_bytes())
    write_repository(tmp_path, replace(repository_spec, files=()))
    assert (version / "model.onnx").is_file()


def test_a_missing_source_is_named(tmp_path: Path, repository_spec: RepositorySpec) -> None:
    missing = PlacedFile(tmp_path / "none.plan", "model.plan")
    with pytest.raises(InputError, match="none.plan does not exist"):
        write_repository(tmp_path / "out", replace(repository_spec, files=(missing,)))


def test_a_file_that_serving_json_names_and_nobody_placed_is_a_failure(
    tmp_path: Path, repository_spec: RepositorySpec
) -> None:
    serving = serving_config(backends=(Backend("tensorrt", "model.plan", "float16", "10.15.1.29"),))
    with pytest.raises(BuildError, match="model.plan: the file is missing"):
        write_repository(tmp_path, replace(repository_spec, serving=serving))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("meta-llama/Llama-3.2-1B-Instruct", "llama-3.2-1b-instruct"),
        ("SmolLM2 (135M)", "smollm2_135m"),
        ("models/tiny/", "tiny"),
        ("x" * 300, "x" * 100),
        ("..hidden", "hidden"),
    ],
)
def test_a_name_from_anything(text: str, name: str) -> None:
    assert model_name(text) == name


def test_nothing_usable_is_refused() -> None:
    with pytest.raises(InputError, match="No model name"):
        model_name("模型")


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "ü", "-x", "x" * 101, "a\nb", "a\n"])
def test_a_bad_name_is_refused(tmp_path: Path, repository_spec: RepositorySpec, name: str) -> None:
    with pytest.raises(InputError, match="cannot be a model's name"):
        write_repository(tmp_path, replace(repository_spec, serving=serving_config(model_name=name)))


def engine(kind: str, version: str, *targets: str) -> ServingConfig:
    return serving_config(
        backends=(
            Backend(kind, "model.plan", "bfloat16", version, targets),
            Backend("onnxruntime", "model.onnx", "float32"),
        )
    )


@pytest.mark.parametrize(
    ("serving", "in_dockerfile", "in_readme"),
    [
        (
            engine("tensorrt", "10.15.1.29", "sm_90"),
            [
                "FROM nvcr.io/nvidia/tritonserver:26.02-py3",
                "--no-deps \"tensorrt-cu13-bindings==10.15.1.29\"",
                "pycuda",
            ],
            [
                "reported to hold TensorRT 10.15.1",
                "TensorRT 10.15.1.29 on sm_90; without a GPU on ONNX Runtime",
                "--gpus all",
            ],
        ),
        (
            engine("tensorrt", "10.16.1.11"),
            ["FROM nvcr.io/nvidia/tritonserver:26.04-py3"],
            ["reported to hold TensorRT 10.16.1"],
        ),
        (
            engine("tensorrt", "10.99.0.1"),
            ["\"tensorrt-cu13==10.99.0.1\"", "is not known to have TensorRT 10.99.0.1"],
            ["No Triton container with TensorRT 10.99.0.1 is known"],
        ),
        (
            engine("tensorrt_rtx", "1.7.1.116", "sm_89", "sm_120"),
            ["\"tensorrt-rtx-cu13==1.7.1.116\"", "pycuda", "onnxruntime"],
            ["compute capability sm_89, sm_120"],
        ),
    ],
)  # fmt: skip
def test_how_to_run_an_engine(
    tmp_path: Path,
    repository_spec: RepositorySpec,
    serving: ServingConfig,
    in_dockerfile: list[str],
    in_readme: list[str],
) -> None:
    plan = tmp_path / "model.plan"
    plan.write_bytes(b"plan")
    spec = replace(repository_spec, serving=serving, files=(*repository_spec.files, PlacedFile(plan, "model.plan")))
    write_repository(tmp_path / "out", spec)
    dockerfile, readme = ((tmp_path / "out" / name).read_text() for name in ("Dockerfile", "README.md"))
    for text in in_dockerfile:
        assert text in dockerfile
    for text in in_readme:
        assert text in readme


def test_how_to_run_on_the_cpu(emitted: Path) -> None:
    dockerfile, readme = ((emitted / name).read_text() for name in ("Dockerfile", "README.md"))
    assert "pycuda" not in dockerfile and "tensorrt" not in dockerfile
    assert "--gpus" not in readme and "CUDA_VISIBLE_DEVICES" not in readme
    for name in ("text_input", "stop_words", "finish_reason"):
        assert f"| `{name}` |" in readme


def test_the_command_line_is_json(emitted: Path) -> None:
    last = (emitted / "Dockerfile").read_text().splitlines()[-1]
    assert json.loads(last.removeprefix("CMD "))[0] == "tritonserver"
