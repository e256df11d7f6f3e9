"""One calibration of a checkpoint by one plan, and the state that lets a stopped job go on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import trtbuild
from trtbuild.architectures import Matrix, Role
from trtbuild.calibration.budget import Sensitivity, restored, stored
from trtbuild.calibration.evaluation import evaluate
from trtbuild.calibration.layer_fit import MatrixReport
from trtbuild.calibration.layerwise import Work, copy_rest, layout, plain_bits, run, sensitivities
from trtbuild.calibration.samples import Samples
from trtbuild.checkpoint.base import QUANTIZATION, TensorRef
from trtbuild.exporting import Weights, read_weights
from trtbuild.files import link_or_copy, write_json
from trtbuild.options import Device, ExportOptions, Method
from trtbuild.progress import Silent
from trtbuild.quantize.calibrated import describe
from trtbuild.quantize.stored import Grid
from trtbuild.quantize.weights_file import WeightsFile
from trtbuild.stages import Stage, Stages

SENSITIVITY_SAMPLES = 8

WEIGHTS_FILE, REPORT_FILE, TIMINGS_FILE = "model.safetensors", "calibration.json", "timings.json"

Plan = Mapping[str, tuple[Matrix, Grid]]


@dataclass(frozen=True, slots=True)
class Attempt:
    """A plan that was carried out."""

    result: Path
    """The calibrated checkpoint."""
    bits: float
    """Of a weight, on average."""
    reports: list[MatrixReport]
    kl: float | None = None
    """From the model in FP32, where it was measured."""


@dataclass(frozen=True)
class Calibration:
    """A checkpoint, the samples, and a folder for what is not finished."""

    weights: Weights
    chosen: Plan
    """By name, the matrices that may be quantised, and to what if there is no budget."""
    method: Method
    samples: Samples
    folder: Path
    stages: Stages
    rounds_table: bool = False
    """Whether the embedding becomes INT4."""
    device: Device = Device.CPU

    def sensitivities(self) -> list[Sensitivity]:
        """Of the chosen matrices; measured once for a job, however often it is stopped."""
        file = self.folder / "sensitivities.json"
        if not file.exists():
            measured = sensitivities(self._work(self.chosen, self.folder), SENSITIVITY_SAMPLES, self.stages.progress)
            write_json(file, stored(measured))
            return measured
        return restored(json.loads(file.read_text()), self.chosen)

    def attempt(self, plan: Plan, name: str = "attempt") -> Attempt:
        """Carry the plan out in a folder of its own, or go on with it there."""
        folder = self.folder / name
        result = folder / "result"
        result.mkdir(parents=True, exist_ok=True)
        work = self._work(plan, folder)
        metadata = {"format": "pt", "trtbuild.version": trtbuild.__version__, "trtbuild.method": self.method.value}
        with WeightsFile(result / WEIGHTS_FILE, layout(work), metadata, resume=True) as output:
            with self.stages.stage("layers") as stage:
                reports = run(work, output, self.stages.progress)
                stage.note = f"{len(reports)} matrices by {self.method.value}"
            with self.stages.stage("rest"):
                copy_rest(work, output)
        made = Attempt(result, self.bits(plan), reports)
        self._finish(made, plan)
        return made

    def divergence(self, made: Attempt) -> float:
        """KL(model in FP32 || made) in nats on the text that the samples left over."""
        with self.stages.stage("divergence") as stage:
            own = read_weights(made.result, ExportOptions(), Silent())
            kl = evaluate(own, self.weights, self.samples.left_over, progress=self.stages.progress).kl_mean
            stage.note = f"{kl:.4f} nats at {made.bits:.2f} bits a weight"
        return kl

    def bits(self, plan: Plan) -> float:
        """A weight's, on average over the chosen matrices; those that the plan leaves out are stored as they were."""
        count = bits = 0.0
        plain = plain_bits(self.weights.binding)
        for name, (matrix, _) in self.chosen.items():
            rows, width = matrix.shape
            count += rows * width
            own = plan[name][1].bits_per_weight(width, self.weights.dtype.size) if name in plan else plain
            bits += rows * width * own
        return bits / count if count else 0.0

    @property
    def _table(self) -> TensorRef | None:
        return self.weights.binding.tensor(Role.EMBEDDING) if self.rounds_table else None

    def _work(self, plan: Plan, folder: Path) -> Work:
        weights = self.weights
        return Work(
            weights.binding,
            plan,
            self.method,
            weights.dtype,
            self.samples.tokens,
            folder,
            weights.quantised,
            self.rounds_table,
            self.device.value,
        )

    def _finish(self, made: Attempt, plan: Plan) -> None:
        """Everything beside the weights that makes a checkpoint of the folder."""
        weights, checkpoint, folder = self.weights, self.weights.checkpoint, made.result
        config = describe(
            plan, weights.binding.tensors, self.method.value, checkpoint, self.samples.description, self._table
        )
        write_json(folder / "config.json", {**checkpoint.config, QUANTIZATION: config})
        if checkpoint.generation_config:
            write_json(folder / "generation_config.json", checkpoint.generation_config)
        for file in checkpoint.tokenizer_files:
            if not (folder / file.name).exists():
                link_or_copy(file, folder / file.name)
        own = {key: config[key] for key in ("method", "source", "samples")}
        matrices = [{key: value for key, value in asdict(each).items() if key != "seconds"} for each in made.reports]
        write_json(folder / REPORT_FILE, {**own, "bits_per_weight": made.bits, "matrices": matrices})
        write_json(folder / TIMINGS_FILE, _timings(self.stages.done, made.reports))


def _timings(stages: list[Stage], reports: list[MatrixReport]) -> dict[str, object]:
    """In a file of their own, since times differ from run to run and nothing else does."""
    return {
        "stages": [{"name": stage.name, "seconds": round(stage.seconds, 3)} for stage in stages],
        "matrices": {report.name: round(report.seconds, 3) for report in reports},
    }
