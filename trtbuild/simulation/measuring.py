"""What the steps of an emitted model take on this machine: its real server, asked by more and more clients at once."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from trtbuild.errors import BuildError, InputError
from trtbuild.loadtest.bench import BenchOptions, bench
from trtbuild.loadtest.endpoint import GrpcAddress
from trtbuild.loadtest.lengths import Lengths, Shape
from trtbuild.loadtest.target import Asking
from trtbuild.loadtest.workload import WorkloadOptions
from trtbuild.progress import Progress, Silent
from trtbuild.serving.config import ServingConfig
from trtbuild.serving.engine import make_scheduler
from trtbuild.serving.step_log import VARIABLE
from trtbuild.simulation.cost import Cost
from trtbuild.simulation.measured import Fit, fit
from trtbuild.simulation.server import Server
from trtbuild.simulation.steps import Steps, read_steps
from trtbuild.triton.repository import PACKAGE
from trtbuild.triton.server import TritonServer

EACH = 4
"""Requests of each client; a client alone sends more, for steps of one answer to be as well known as others."""
LEAST = 12
SECONDS = 30.0
"""No request begins later in the time of as many clients."""


def find_model(folder: Path) -> Path:
    """The version's folder in what `compile` made, in a model repository, or itself. Raises InputError."""
    if (folder / "serving.json").is_file():
        return folder.absolute()
    found = sorted(folder.glob("model_repository/*/*/serving.json")) or sorted(folder.glob("*/*/serving.json"))
    if len(found) != 1:
        what = "none" if not found else f"{len(found)}: name one model's version folder"
        raise InputError(
            f"--measured {folder}: it must hold one emitted model (NAME/1/serving.json), and holds {what}."
        )
    return found[0].parent.absolute()


def read_config(version: Path) -> ServingConfig:
    """Raises InputError."""
    try:
        return ServingConfig.load(version / "serving.json")
    except ValueError as error:
        raise InputError(f"{version / 'serving.json'}: {error}") from error


def measure(config: ServingConfig, version: Path, progress: Progress | None = None) -> Steps:
    """Serve the model and ask it, greedily, with 1, 2, 4 ... clients up to its slots, prompts and answers of all
    lengths.

    Must be called in the main thread (see TritonServer). Raises InputError without a tritonserver or the load
    generator's parts, BuildError if the model cannot be served or fails.
    """
    if not (version / PACKAGE / "step_log.py").is_file():
        raise InputError(
            f"The model in {version} records no steps, since an older trtbuild compiled it. Compile it again."
        )
    progress = progress or Silent()
    name = version.parent.name
    only_it = ["--model-control-mode=explicit", f"--load-model={name}"]
    with tempfile.TemporaryDirectory(prefix="trtbuild-steps-") as folder:
        with TritonServer(
            version.parent.parent, arguments=only_it, environment={VARIABLE: folder}, progress=progress
        ) as server:
            progress.stage("measure")
            counts = list(_doubling(config.cache.slots))
            for place, clients in enumerate(counts):
                progress.update(place, len(counts), f"{clients} at once")
                _ask(GrpcAddress(server.grpc_url, name), version, _workload(config, clients))
            progress.update(len(counts), len(counts))
        return read_steps(Path(folder) / f"{config.model_name}.csv")


def fitted(config: ServingConfig, steps: Steps) -> Fit:
    """What the model's steps cost, in the terms of its form."""
    return fit(steps.works, steps.seconds, ragged=config.cache.page_size > 0)


def served(config: ServingConfig, cost: Cost) -> Server:
    """The emitted model with its own slots or pages, priorities and objective."""
    scheduler = make_scheduler(replace(config, prefix_reuse=False))
    cache = scheduler.cache
    return Server(cost, scheduler.policy, cache.pages, cache.page_size, config.cache.capacity)


def _ask(endpoint: GrpcAddress, version: Path, workload: WorkloadOptions) -> None:
    result = bench(endpoint, BenchOptions(workload, asking=Asking(temperature=0.0), tokenizer=version))
    run = result.measured[0].run
    if run.signal is not None:
        signal.raise_signal(run.signal)
    for record in run.records:
        if record.message:
            raise BuildError(f"A request to the model failed while its steps were measured: {record.message}")


def _workload(config: ServingConfig, clients: int) -> WorkloadOptions:
    capacity = config.cache.capacity
    return WorkloadOptions(
        clients=clients,
        seconds=SECONDS,
        requests=max(LEAST, EACH * clients),
        seed=clients,  # no prompt of one is another's
        input_tokens=Lengths(Shape.LOGNORMAL, max(1, capacity // 16), 1.0),
        output_tokens=Lengths(Shape.LOGNORMAL, min(48, max(1, capacity // 16)), 0.7),
        most_input=max(1, capacity * 3 // 4),
        most_output=max(1, capacity // 8),
    )


def _doubling(last: int) -> Iterator[int]:
    """1, each twice the one before, and `last`."""
    count = 1
    while count < last:
        yield count
        count *= 2
    yield last
