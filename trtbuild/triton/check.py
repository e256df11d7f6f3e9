"""Checking a model repository by our own rules, before a build is called finished."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild.errors import InputError
from trtbuild.serving.config import ServingConfig
from trtbuild.serving.interface import INPUTS, OUTPUTS, TensorSpec
from trtbuild.triton.config import read_config
from trtbuild.triton.config_rules import config_faults

_NEEDED = ("model.py", "trtbuild_serving/triton_model.py", "tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault and the file or folder that has it."""

    where: Path
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


def check_repository(folder: Path) -> list[Problem]:
    """Every fault found in the models of the repository `folder`; an empty list if there is none.

    A model whose version holds a serving.json is one of ours, and is held to what model.py inside expects.
    Raises InputError if `folder` is no folder.
    """
    if not folder.is_dir():
        raise InputError(f"The model repository {folder} does not exist.")
    models = sorted(entry for entry in folder.iterdir() if entry.is_dir())
    if not models:
        return [Problem(folder, "there is no model in it")]
    return [problem for model in models for problem in _check_model(model)]


def _check_model(model: Path) -> Iterator[Problem]:
    file = model / "config.pbtxt"
    if not file.is_file():
        yield Problem(file, "the file is missing")
        return
    try:
        config = read_config(file.read_text(encoding="utf-8"), str(file))
    except (InputError, UnicodeDecodeError) as error:
        yield Problem(file, str(error))
        return
    if config.name != model.name:
        yield Problem(file, f"the model's name is '{config.name}', and its folder's '{model.name}'")
    for fault in config_faults(config):
        yield Problem(file, fault)
    for sample in config.model_warmup:
        for _, data in sorted(sample.inputs.items()):
            if data.input_data_file and not (model / "warmup" / data.input_data_file).is_file():
                yield Problem(model / "warmup" / data.input_data_file, f"warm-up '{sample.name}' needs this file")
    versions = sorted(entry for entry in model.iterdir() if entry.is_dir() and entry.name.isdecimal())
    if not versions:
        yield Problem(model, "there is no version folder such as '1'")
    for version in versions:
        if (version / "serving.json").is_file():
            yield from _check_llm(config, file, version)
        elif (version / "trtbuild_serving").is_dir():
            yield Problem(version / "serving.json", "the file is missing")


def _check_llm(config: Any, file: Path, version: Path) -> Iterator[Problem]:
    for name in _NEEDED:
        if not (version / name).is_file():
            yield Problem(version / name, "the file is missing")
    for fault in _llm_config_faults(config):
        yield Problem(file, fault)
    try:
        serving = ServingConfig.load(version / "serving.json")
    except (ValueError, OSError) as error:
        yield Problem(version / "serving.json", str(error))
        return
    for fault in _serving_faults(config, serving):
        yield Problem(version / "serving.json", fault)
    for backend in serving.backends:
        if not (version / backend.file).is_file():
            yield Problem(version / backend.file, f"the file is missing; serving.json names it for {backend.kind}")
        for library in backend.plugins:
            if not (version / library).is_file():
                yield Problem(version / library, f"the library is missing; the plan {backend.file} needs its plugins")


def _llm_config_faults(config: Any) -> Iterator[str]:
    if config.backend != "python":
        yield f"the backend is '{config.backend}'; model.py needs 'python'"
    if not config.model_transaction_policy.decoupled:
        yield "model_transaction_policy is not decoupled, so the model could not stream"
    groups = [(group.count or 1) * max(len(group.gpus), 1) for group in config.instance_group]
    if sum(groups) != 1:
        yield f"there are {sum(groups)} instances; each holds the whole model and its cache, so there must be one"
    yield from _tensor_faults("input", config.input, INPUTS)
    yield from _tensor_faults("output", config.output, OUTPUTS)


def _tensor_faults(label: str, tensors: Any, specs: Iterable[TensorSpec]) -> Iterator[str]:
    from tritonclient.grpc.model_config_pb2 import DataType

    found = {tensor.name: tensor for tensor in tensors}
    for spec in specs:
        tensor = found.pop(spec.name, None)
        if tensor is None:
            yield f"{label} '{spec.name}' is missing"
            continue
        if tensor.data_type != DataType.Value(spec.data_type):
            yield f"{label} '{spec.name}' is {DataType.Name(tensor.data_type)}; model.py takes {spec.data_type}"
        if tuple(tensor.dims) != spec.dims:
            yield f"{label} '{spec.name}' has dims {list(tensor.dims)}; model.py takes {list(spec.dims)}"
    for name in found:
        yield f"{label} '{name}' is unknown to model.py"


def _serving_faults(config: Any, serving: ServingConfig) -> Iterator[str]:
    if serving.model_name != config.name:
        yield f"it describes '{serving.model_name}', and config.pbtxt '{config.name}'"
    slots = serving.cache.slots
    if config.max_batch_size > slots:
        yield f"max_batch_size of config.pbtxt is {config.max_batch_size}, above the {slots} slots of the cache"
    if config.max_batch_size < 1:
        yield "max_batch_size of config.pbtxt is 0; requests carry a batch dimension, so it must be 1 or more"
    widest = max((profile.batch[2] for profile in serving.profiles), default=slots)
    if widest < slots:
        yield f"there are {slots} slots, and no profile takes a batch above {widest}"
    if not serving.backends:
        yield "it names no backend, so nothing can run the model"
