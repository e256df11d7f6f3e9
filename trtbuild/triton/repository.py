"""Writing what Triton serves: the model's folder, and how to run it."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import trtbuild.serving
from trtbuild.errors import BuildError, InputError
from trtbuild.files import link_or_copy
from trtbuild.serving.config import ServingConfig
from trtbuild.triton.check import check_repository
from trtbuild.triton.config import WARMUP_FILES, llm_config, write_config
from trtbuild.triton.readme import dockerfile, readme

REPOSITORY = "model_repository"
VERSION = "1"
PACKAGE = "trtbuild_serving"

_MODEL_PY = f'''\
"""Triton's Python backend loads this file; the model is in the package beside it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from {PACKAGE}.triton_model import TritonPythonModel  # noqa: E402

__all__ = ["TritonPythonModel"]
'''


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """A file to put into the version's folder."""

    source: Path
    name: str


@dataclass(frozen=True, slots=True)
class RepositorySpec:
    """What `write_repository` writes for one LLM."""

    serving: ServingConfig
    tokenizer_files: tuple[Path, ...]
    """tokenizer.json, tokenizer_config.json and, if any, chat_template.jinja; each keeps its name."""
    files: tuple[PlacedFile, ...] = ()
    """Graph, weights and plan, unless they are in `version_folder` already."""


def model_name(text: str) -> str:
    """A name for Triton and the file system from any text, such as a hub id: its last part, in small letters, with '_'
    for whatever is not a letter, a digit, '-', '_' or '.'.

    Raises InputError if nothing is left.
    """
    name = re.sub(r"[^a-z0-9._-]+", "_", text.rstrip("/").rsplit("/", 1)[-1].lower()).strip("._-")[:100]
    if not name:
        raise InputError(f"No model name can be made from {text!r}. Give one with --name.")
    return name


def refuse_bad_name(name: str) -> None:
    """Raise InputError for a name that Triton's URLs or the file system would not take as it is."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", name):
        raise InputError(
            f"{name!r} cannot be a model's name: use up to 100 letters, digits, '-', '_' and '.', beginning with a "
            "letter, a digit or '_'."
        )


def version_folder(out: Path, name: str) -> Path:
    """Where the files of the model's only version go."""
    return out / REPOSITORY / name / VERSION


def write_repository(out: Path, spec: RepositorySpec) -> None:
    """Write README.md, Dockerfile and model_repository into the folder `out`; the same input gives the same bytes.

    `spec.files` become hard links where the file system has them. Raises InputError for a bad model name or a missing
    file, and BuildError if the result breaks a rule of `check_repository`.
    """
    name = spec.serving.model_name
    refuse_bad_name(name)
    version = version_folder(out, name)
    version.mkdir(parents=True, exist_ok=True)
    for source in spec.tokenizer_files:
        _refuse_missing(source)
        shutil.copyfile(source, version / source.name)  # no link: editing one there must not change the checkpoint
    for file in spec.files:
        _refuse_missing(file.source)
        link_or_copy(file.source, version / file.name)
    (version / "model.py").write_text(_MODEL_PY, encoding="utf-8")
    (version / "serving.json").write_text(spec.serving.to_json(), encoding="utf-8")
    _copy_package(version / PACKAGE)
    (version.parent / "config.pbtxt").write_text(write_config(llm_config(spec.serving)), encoding="utf-8")
    warmup = version.parent / "warmup"
    warmup.mkdir()
    for file_name, content in WARMUP_FILES.items():
        (warmup / file_name).write_bytes(content)
    (out / "README.md").write_text(readme(spec.serving), encoding="utf-8")
    (out / "Dockerfile").write_text(dockerfile(spec.serving), encoding="utf-8")
    problems = check_repository(out / REPOSITORY)
    if problems:
        raise BuildError("The repository that was written is not valid: " + "; ".join(map(str, problems)))


def _refuse_missing(source: Path) -> None:
    if not source.is_file():
        raise InputError(f"{source} does not exist, and the model's repository needs it.")


def _copy_package(destination: Path) -> None:
    """The serving package, from wherever it is installed, as one that imports nothing of trtbuild."""
    (source,) = (Path(place) for place in trtbuild.serving.__path__)
    for file in sorted(source.rglob("*.py")):
        target = destination / file.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
