"""`trtbuild evaluate`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Optional

import typer

from trtbuild.cli import arguments as a
from trtbuild.cli.console import output, print_json, progress
from trtbuild.errors import InputError


def evaluate_command(
    model: a.ModelArgument,
    text: Annotated[Path, typer.Option("--text", help="UTF-8 text that the model was not calibrated on.")],
    reference: Annotated[
        Optional[str], typer.Option(help="What to compare with; what `calibrate` was given, if not named.")
    ] = None,
    windows: Annotated[int, typer.Option(min=1, help="How many windows of the text.")] = 8,
    length: Annotated[int, typer.Option(min=2, help="Tokens of each.")] = 1024,
    cache: a.CacheOption = None,
    json: a.JsonOption = False,
) -> None:
    """Perplexity, KL divergence and top-1 agreement of a calibrated model against FP32, on held-out text.

    Both run in FP32 a layer at a time, so that a model of any size fits and only the weights differ.

    ```
    trtbuild evaluate smollm2-int4 --text wikitext.txt
    trtbuild evaluate smollm2-int4 --text wikitext.txt --windows 32 --json
    ```
    """
    from trtbuild.evaluation import evaluate
    from trtbuild.evaluation import windows as windows_of
    from trtbuild.exporting import read_weights
    from trtbuild.options import ExportOptions
    from trtbuild.progress import Silent
    from trtbuild.store import default_cache

    options = ExportOptions(cache=cache or default_cache())
    with progress(quiet=json) as shown:
        weights = read_weights(model, options, shown or Silent())
        if reference is None and weights.calibrated is None:
            raise InputError(
                f"{weights.checkpoint.name} is not a calibrated model. Name what to compare with: --reference."
            )
        other = read_weights(reference or weights.source_name, options, shown or Silent())
        tokens = windows_of(text, other.checkpoint, windows, length)
        result = evaluate(weights, other, tokens, progress=shown)
    if json:
        print_json({**asdict(result), "ratio": result.ratio, "windows": tokens.shape[0], "length": tokens.shape[1]})
        return
    output.print(
        f"{tokens.shape[0]} windows of {tokens.shape[1]} tokens: perplexity {result.perplexity:.3f} against "
        f"{result.reference_perplexity:.3f} ({result.ratio:.4f} times); KL divergence {result.kl_mean:.4f} nats "
        f"(99% of tokens below {result.kl_p99:.2f}); the most likely token is the same for "
        f"{100 * result.same_top1:.1f}%."
    )
