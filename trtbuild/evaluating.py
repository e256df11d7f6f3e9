"""`trtbuild evaluate`: a model beside the one it was made from, on held-out text and in what it writes."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from trtbuild.calibrating import need_torch
from trtbuild.calibration.evaluation import Evaluation, evaluate, windows
from trtbuild.calibration.samples import tokenizer_of
from trtbuild.dtypes import DType
from trtbuild.errors import InputError
from trtbuild.exporting import MODEL_FILE, Weights, read_weights, unpacked, write_graph
from trtbuild.files import disk_errors
from trtbuild.options import ExportOptions
from trtbuild.progress import Progress, Silent
from trtbuild.stages import Stages
from trtbuild.verify.continuation import Continuation
from trtbuild.verify.onnx_decoder import OnnxDecoder
from trtbuild.verify.prompts import PROMPTS


@dataclass(frozen=True, slots=True)
class EvaluationOptions:
    """Of which text how much, and how long the continuations are."""

    text: Path
    reference: str | None = None
    """A checkpoint; None is the one that `calibrate` was given."""
    windows: int = 8
    length: int = 1024
    """Tokens of a window."""
    prompts: tuple[str, ...] = PROMPTS
    """To be continued greedily by both."""
    tokens: int = 48
    """Of each continuation; 0 makes none, and then no model is in memory as a whole."""
    cache: Path | None = None


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """What was measured."""

    model: Weights
    reference: Weights
    windows: tuple[int, int]
    """Their number and length."""
    evaluation: Evaluation
    continuations: tuple[Continuation, ...]


def evaluate_model(
    model: str | Path, options: EvaluationOptions, *, progress: Progress | None = None
) -> EvaluationResult:
    """Compare `model` with its reference, both in FP32 arithmetic, so that only the weights differ.

    The text goes through both a layer at a time; the continuations need each model as a whole in FP32. Raises
    InputError for wrong input.
    """
    need_torch()
    stages = Stages(progress or Silent())
    export = ExportOptions() if options.cache is None else ExportOptions(cache=options.cache)
    with stages.stage("checkpoint"):
        own = read_weights(model, export, stages.progress)
        if options.reference is None and own.calibrated is None:
            raise InputError(
                f"{own.checkpoint.name} is not a calibrated model. Name what to compare with: --reference."
            )
        reference = read_weights(options.reference or own.source_name, export, stages.progress)
        tokens = windows(options.text, reference.checkpoint, options.windows, options.length)
    with disk_errors(export.cache / "evaluate"):
        export.cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="evaluate-", dir=export.cache) as place:
            ready = unpacked(own, export, Path(place) / "own", stages)
            against = unpacked(reference, export, Path(place) / "against", stages)
            with stages.stage("text"):
                evaluation = evaluate(ready, against, tokens, progress=stages.progress)
            continuations: tuple[Continuation, ...] = ()
            if options.tokens and options.prompts:
                with stages.stage("prompts"):
                    continuations = _continued(ready, against, options, Path(place), stages.progress)
    return EvaluationResult(own, reference, (tokens.shape[0], tokens.shape[1]), evaluation, continuations)


def _continued(
    model: Weights, reference: Weights, options: EvaluationOptions, place: Path, progress: Progress
) -> tuple[Continuation, ...]:
    """One after the other, so that one model is in memory at a time."""
    tokenizer = tokenizer_of(reference.checkpoint)
    limit = model.binding.spec.max_positions
    if options.tokens >= limit:
        raise InputError(f"Continuations of {options.tokens} tokens do not fit the model's {limit} positions.")
    prompts = [tokenizer.encode(prompt)[: limit - options.tokens] for prompt in options.prompts]
    capacity = options.tokens + max(len(prompt) for prompt in prompts)
    written: list[list[list[int]]] = []
    for name, weights in (("reference", reference), ("model", model)):
        folder = place / name
        folder.mkdir()
        write_graph(weights, folder / MODEL_FILE, capacity, dtype=DType.F32)
        decoder = OnnxDecoder(folder / MODEL_FILE)
        written.append([])
        for prompt in prompts:
            written[-1].append(decoder.greedy(prompt, options.tokens))
            progress.update(sum(map(len, written)), 2 * len(prompts), name)
    return tuple(
        Continuation.of(prompt, want, have, tokenizer.decode)
        for prompt, want, have in zip(options.prompts, *written, strict=True)
    )
