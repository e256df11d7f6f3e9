"""`trtbuild calibrate`: from a checkpoint to one whose projections are integers, fitted to calibration text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import trtbuild
from trtbuild.calibration.attempt import REPORT_FILE, TIMINGS_FILE, Attempt, Calibration
from trtbuild.calibration.bound import within
from trtbuild.calibration.budget import spend
from trtbuild.calibration.layer_fit import MatrixReport
from trtbuild.calibration.options import CalibrationOptions
from trtbuild.calibration.samples import Samples, read_samples
from trtbuild.errors import BuildError, InputError
from trtbuild.exporting import Weights, read_weights, refuse_overwriting, unpacked
from trtbuild.files import put_in_place, refuse_existing, resumable_folder
from trtbuild.options import Device
from trtbuild.progress import Progress, Silent
from trtbuild.quantize.rtn import Int4Options, plan_int4
from trtbuild.quantize.stored import DEFAULT_LAYERS, Int4Layers
from trtbuild.stages import Stage, Stages


@dataclass(frozen=True, slots=True)
class CalibrationResult:
    """A calibrated checkpoint, which `compile` and `export` take as their MODEL."""

    folder: Path
    method: str
    bits_per_weight: float
    """Of the layers that were chosen, scales included, and matrices that the budget left as they were."""
    kl: float | None
    """KL divergence from the model in FP32 on text that was left over, in nats, where a bound was asked for."""
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
    bytes. Raises InputError for wrong input, BuildError where nothing can be fitted or no plan keeps the bound; `out`
    appears whole or not at all.
    """
    need_torch()
    _check(options)
    _need_device(options.device)
    stages = Stages(progress or Silent())
    refuse_existing(out, replace=options.force)
    with stages.stage("checkpoint"):
        weights = _read(model, options, stages.progress)
        int4 = Int4Options(weights.dtype, options.export.block_size, options.export.int4_layers)
        chosen = plan_int4(weights.binding, int4)
        if not chosen:
            raise InputError(
                "--int4-layers embedding alone leaves nothing to calibrate: it is rounded to nearest either way. Name "
                "the groups to calibrate too, or compile with --precision int4 --int4-layers embedding."
            )
        left = sorted(set(weights.packed_matrices) - set(chosen))
        if left:
            raise InputError(f"{left[0]} comes in INT4 and --int4-layers leaves it out. Name its group too.")
    refuse_overwriting(weights.checkpoint, out)
    with stages.stage("samples") as stage:
        samples = read_samples(options.samples, weights.checkpoint)
        stage.note = "{} of {} tokens".format(*samples.tokens.shape)
    limit = weights.binding.spec.max_positions
    if samples.tokens.shape[1] > limit:
        raise InputError(f"Samples of {samples.tokens.shape[1]} tokens are longer than the model's {limit} positions.")
    if options.max_kl is not None and not len(samples.left_over):
        raise InputError(
            f"All of the calibration text is in the {len(samples.tokens)} samples, and --max-kl measures on what is "
            "left over. Give more text with --data, or fewer --samples."
        )
    identity = {
        "version": trtbuild.__version__,
        "weights": weights.checkpoint.fingerprint(),
        "modified": [file.stat().st_mtime_ns for file in weights.checkpoint.weight_files],
        "tokens": hashlib.sha256(samples.tokens.tobytes()).hexdigest(),
        "scale_type": weights.dtype.value,
        "method": options.method.value,
        "grids": {name: str(grid) for name, (_, grid) in chosen.items()},
        "layers": sorted(group.value for group in options.export.int4_layers),
        "budget": [options.bits, options.max_kl],
        "device": options.device.value,
    }
    with resumable_folder(out, identity) as folder:
        weights = unpacked(weights, options.export, folder, stages)
        rounds_table = Int4Layers.EMBEDDING in options.export.int4_layers
        job = Calibration(weights, chosen, options.method, samples, folder, stages, rounds_table, options.device)
        made = _made(job, options)
        put_in_place(made.result, out)
    return CalibrationResult(
        out, options.method.value, made.bits, made.kl, tuple(made.reports), samples, tuple(stages.done)
    )


def _check(options: CalibrationOptions) -> None:
    """Raise InputError for options that contradict each other."""
    budgets = [name for name, value in (("--bits", options.bits), ("--max-kl", options.max_kl)) if value is not None]
    if len(budgets) > 1:
        raise InputError("--bits and --max-kl are two budgets for one thing. Give one of them.")
    if budgets and options.export.block_size is not None:
        raise InputError(
            f"{budgets[0]} chooses the block sizes, so --block-size cannot be given with it. Leave one out."
        )
    if options.max_kl is not None and not options.max_kl > 0:
        raise InputError(f"--max-kl {options.max_kl:g}: only a model that is not rounded at all has no divergence.")


def _read(model: str | Path, options: CalibrationOptions, progress: Progress) -> Weights:
    """The weights to be fitted. Raises InputError for those that are in INT4, unless that is what is asked for."""
    export = replace(options.export, block_size=None, int4_layers=DEFAULT_LAYERS)
    weights = read_weights(model, export, progress)
    if weights.calibrated is not None:
        raise InputError(f"{weights.checkpoint.name} is calibrated already, from {weights.source_name}. Give that one.")
    if weights.packed is not None and not options.requantise:
        raise InputError(
            f"{weights.checkpoint.name} is INT4 already. Give the checkpoint it was made from, or round it again with "
            "--requantise."
        )
    if options.requantise and weights.packed is None:
        raise InputError(f"{weights.checkpoint.name} is not in another library's INT4. Leave out --requantise.")
    return weights


def _need_device(device: Device) -> None:
    import torch

    if device is Device.CUDA and not torch.cuda.is_available():
        raise InputError("--device cuda: this torch sees no GPU. Leave it out, or install a CUDA build of torch.")


def _made(job: Calibration, options: CalibrationOptions) -> Attempt:
    """What was asked for. Raises BuildError if the device has too little memory for a layer's moments."""
    import torch

    try:
        return _attempts(job, options)
    except torch.cuda.OutOfMemoryError as error:
        raise BuildError(
            f"The GPU has too little memory to fit the widest layer ({error}). Calibrate with --device cpu."
        ) from error


def _attempts(job: Calibration, options: CalibrationOptions) -> Attempt:
    """One attempt, or as many as the bound takes."""
    bits, bound = options.bits, options.max_kl
    if bits is None and bound is None:
        return job.attempt(job.chosen)
    with job.stages.stage("sensitivity") as stage:
        sensitivities = job.sensitivities()
        stage.note = f"{len(sensitivities)} matrices"
    if bits is not None:
        plan = spend(sensitivities, bits)
        if not plan:
            raise InputError(
                f"--bits {bits:g} leaves every matrix as it is. Give fewer, or compile the model as it is."
            )
        return job.attempt(plan)
    assert bound is not None
    return within(job, sensitivities, bound)


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


def need_torch() -> None:
    """Raise InputError, with what to install, where calibration cannot run."""
    try:
        import onnxruntime  # noqa: F401
        import torch  # noqa: F401
    except ImportError as error:
        raise InputError(f"Calibration needs {error.name}: pip install 'trtbuild[calibrate]'.") from error
