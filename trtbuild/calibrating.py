"""`trtbuild calibrate`: from a checkpoint to one whose projections are INT4, fitted to calibration text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import trtbuild
from trtbuild.architectures import Matrix, Role
from trtbuild.calibration.budget import spend
from trtbuild.calibration.layer_fit import MatrixReport
from trtbuild.calibration.layerwise import Work, copy_rest, layout, run, sensitivities
from trtbuild.calibration.options import CalibrationOptions
from trtbuild.calibration.samples import Samples, read_samples
from trtbuild.checkpoint.base import QUANTIZATION
from trtbuild.errors import InputError
from trtbuild.exporting import Weights, read_weights, refuse_overwriting
from trtbuild.files import link_or_copy, put_in_place, refuse_existing, resumable_folder, write_json
from trtbuild.progress import Progress, Silent
from trtbuild.quantize.calibrated import describe
from trtbuild.quantize.rtn import plan_int4
from trtbuild.quantize.stored import Grid
from trtbuild.quantize.weights_file import WeightsFile
from trtbuild.stages import Stage, Stages

SENSITIVITY_SAMPLES = 8

WEIGHTS_FILE, REPORT_FILE, TIMINGS_FILE = "model.safetensors", "calibration.json", "timings.json"


@dataclass(frozen=True, slots=True)
class CalibrationResult:
    """A calibrated checkpoint, which `compile` and `export` take as their MODEL."""

    folder: Path
    method: str
    bits_per_weight: float
    """Of the layers that were chosen, scales included, and matrices that the budget left as they were."""
    matrices: tuple[MatrixReport, ...]
    samples: Samples
    stages: tuple[Stage, ...]


@dataclass(frozen=True, slots=True)
class CalibrationReport:
    """What a calibrated folder says of how it was made."""

    bits_per_weight: float
    matrices: tuple[MatrixReport, ...]
    samples: Mapping[str, Any]


def calibrate(
    model: str | Path, out: Path, options: CalibrationOptions, *, progress: Progress | None = None
) -> CalibrationResult:
    """Write `model` with its projections in INT4, fitted layer by layer, as a checkpoint folder `out`.

    A job that was killed goes on at the layer where it was when it is started again. The same inputs give the same
    bytes. Raises InputError for wrong input, BuildError where nothing can be fitted; `out` appears whole or not at all.
    """
    need_torch()
    if options.bits is not None and options.export.block_size is not None:
        raise InputError("--bits chooses the block sizes, so --block-size cannot be given with it. Leave one out.")
    stages = Stages(progress or Silent())
    refuse_existing(out, replace=options.force)
    with stages.stage("checkpoint"):
        weights = read_weights(model, options.export, stages.progress)
        if weights.int4_options is None:
            raise InputError(f"{weights.checkpoint.name} is INT4 already. Give the checkpoint it was made from.")
        chosen = plan = plan_int4(weights.binding, weights.int4_options)
    refuse_overwriting(weights.checkpoint, out)
    with stages.stage("samples") as stage:
        samples = read_samples(options.samples, weights.checkpoint)
        stage.note = "{} of {} tokens".format(*samples.tokens.shape)
    limit = weights.binding.spec.max_positions
    if samples.tokens.shape[1] > limit:
        raise InputError(f"Samples of {samples.tokens.shape[1]} tokens are longer than the model's {limit} positions.")
    if options.bits is not None:
        with stages.stage("sensitivity") as stage:
            draft = Work(weights.binding, chosen, options.method, weights.dtype, samples.tokens, out)
            plan = spend(sensitivities(draft, SENSITIVITY_SAMPLES, stages.progress), options.bits)
            stage.note = f"{len(plan)} of {len(chosen)} matrices in INT4"
    config = describe(plan, weights.binding.tensors, options.method.value, weights.checkpoint, samples.description)
    identity = {
        "version": trtbuild.__version__,
        "weights": weights.checkpoint.fingerprint(),
        "modified": [file.stat().st_mtime_ns for file in weights.checkpoint.weight_files],
        "tokens": hashlib.sha256(samples.tokens.tobytes()).hexdigest(),
        "scale_type": weights.dtype.value,
        "config": hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest(),
    }
    with resumable_folder(out, identity) as folder:
        work = Work(weights.binding, plan, options.method, weights.dtype, samples.tokens, folder)
        result = folder / "result"
        result.mkdir(exist_ok=True)
        metadata = {"format": "pt", "trtbuild.version": trtbuild.__version__, "trtbuild.method": options.method.value}
        with WeightsFile(result / WEIGHTS_FILE, layout(work), metadata, resume=True) as output:
            with stages.stage("layers") as stage:
                reports = run(work, output, stages.progress)
                stage.note = f"{len(reports)} matrices by {options.method.value}"
            with stages.stage("rest") as stage:
                copy_rest(work, output)
        bits = _bits_per_weight(chosen, plan, weights)
        _finish(result, weights, config, reports, bits)
        write_json(result / TIMINGS_FILE, _timings(stages.done, reports))
        put_in_place(result, out)
    return CalibrationResult(out, options.method.value, bits, tuple(reports), samples, tuple(stages.done))


def _finish(
    folder: Path, weights: Weights, config: dict[str, object], reports: list[MatrixReport], bits: float
) -> None:
    checkpoint = weights.checkpoint
    write_json(folder / "config.json", {**checkpoint.config, QUANTIZATION: config})
    if checkpoint.generation_config:
        write_json(folder / "generation_config.json", checkpoint.generation_config)
    for file in checkpoint.tokenizer_files:
        if not (folder / file.name).exists():
            link_or_copy(file, folder / file.name)
    own = {key: config[key] for key in ("method", "source", "samples")}
    matrices = [{key: value for key, value in asdict(report).items() if key != "seconds"} for report in reports]
    write_json(folder / REPORT_FILE, {**own, "bits_per_weight": bits, "matrices": matrices})


def _timings(stages: list[Stage], reports: list[MatrixReport]) -> dict[str, object]:
    """In a file of their own, since times differ from run to run and nothing else does."""
    return {
        "stages": {stage.name: round(stage.seconds, 3) for stage in stages},
        "matrices": {report.name: round(report.seconds, 3) for report in reports},
    }


def read_report(folder: Path) -> CalibrationReport:
    """What `calibrate` left in `folder`. Raises InputError if it is not there whole."""
    try:
        found = json.loads((folder / REPORT_FILE).read_text(encoding="utf-8"))
        seconds = json.loads((folder / TIMINGS_FILE).read_text(encoding="utf-8"))["matrices"]
        matrices = tuple(
            MatrixReport(**{**entry, "shape": tuple(entry["shape"]), "seconds": seconds[entry["name"]]})
            for entry in found["matrices"]
        )
        return CalibrationReport(found["bits_per_weight"], matrices, found["samples"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InputError(
            f"{folder}: its {REPORT_FILE} and {TIMINGS_FILE} cannot be read ({type(error).__name__}: {error}). "
            "Keep a calibrated folder as it was made, or calibrate again."
        ) from error


def _bits_per_weight(
    chosen: Mapping[str, tuple[Matrix, Grid]], plan: Mapping[str, tuple[Matrix, Grid]], weights: Weights
) -> float:
    """Over the matrices that were `chosen` to be quantised, of which `plan` are."""
    plain = 8.0 * weights.binding.tensor(Role.EMBEDDING).dtype.size
    count = bits = 0.0
    for name, (matrix, _) in chosen.items():
        rows, width = matrix.shape
        count += rows * width
        bits += rows * width * (plan[name][1].bits_per_weight(width, weights.dtype.size) if name in plan else plain)
    return bits / count if count else 0.0


def need_torch() -> None:
    """Raise InputError, with what to install, where calibration cannot run."""
    try:
        import onnxruntime  # noqa: F401
        import torch  # noqa: F401
    except ImportError as error:
        raise InputError(f"Calibration needs {error.name}: pip install 'trtbuild[calibrate]'.") from error
