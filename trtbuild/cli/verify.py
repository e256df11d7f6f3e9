"""`trtbuild verify`."""

from __future__ import annotations

import json as json_module
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.table import Table

from trtbuild.cli import arguments as a
from trtbuild.cli.console import output, print_error, print_json, progress
from trtbuild.errors import InputError


def verify_command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="What `compile` or `export` made.")],
    reference: Annotated[
        Optional[str],
        typer.Option(help="The checkpoint it was made from; that of build.json if not given."),
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Greedy tokens a prompt.")] = 64,
    max_kl: Annotated[
        Optional[float],
        typer.Option(help="Fail above this mean KL divergence (nats); by precision if not given, none for int4."),
    ] = None,
    engine: Annotated[
        bool, typer.Option(help="Where there is a GPU, compare the engine with ONNX Runtime too (polygraphy).")
    ] = True,
    cache: a.CacheOption = None,
    json: a.JsonOption = False,
) -> None:
    """Compare logits and greedy tokens with transformers in FP32, over ten prompts.

    ```
    trtbuild verify smollm2
    trtbuild verify smollm2-onnx --reference ./SmolLM2-135M-Instruct --json
    ```
    """
    from trtbuild.checkpoint import open_checkpoint
    from trtbuild.store import default_cache
    from trtbuild.verify import bound_for, verify
    from trtbuild.verify.backends import compare_engine

    onnx_file, made_from = _find(folder)
    model = reference or made_from
    if model is None:
        raise InputError(f"{folder} has no build.json that says what it was made from. Name it with --reference.")
    with progress(quiet=json) as shown:
        checkpoint = open_checkpoint(model, cache=cache or default_cache())
        result = verify(onnx_file, checkpoint, tokens=tokens, progress=shown)
        comparison = compare_engine(folder, progress=shown) if engine else None
    bound = max_kl if max_kl is not None else bound_for(result.precision)
    failed = bound is not None and not result.distance.kl_mean <= bound
    failed = failed or (comparison is not None and not comparison.passed)
    if json:
        print_json(
            {
                "onnx": result.onnx_file,
                "precision": result.precision,
                "distance": asdict(result.distance),
                "max_kl": bound,
                "same_prompts": result.same_prompts,
                "prompts": [asdict(prompt) for prompt in result.prompts],
                "engine": None if comparison is None else asdict(comparison),
                "passed": not failed,
            }
        )
    else:
        distance = result.distance
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("prompt")
        table.add_column("same greedy tokens", justify="right")
        for prompt in result.prompts:
            first = prompt.prompt.splitlines()[0]
            table.add_row(first[:60], f"{prompt.same_tokens} of {prompt.tokens}")
        output.print(table)
        output.print(
            f"{result.precision} against transformers in FP32, {distance.tokens} tokens: logits differ by at most "
            f"{distance.largest:.2g} (mean {distance.mean:.2g}); KL divergence {distance.kl_mean:.2g} nats (largest "
            f"{distance.kl_largest:.2g}); the most likely token is the same for {100 * distance.same_top1:.1f}%."
        )
        if comparison is not None:
            output.print(comparison.text)
    if failed:
        print_error(
            f"The mean KL divergence {result.distance.kl_mean:.3g} is above {bound:.3g}."
            if comparison is None or comparison.passed
            else f"The engine does not agree with ONNX Runtime: {comparison.text}"
        )
        raise typer.Exit(1)


def _find(folder: Path) -> tuple[Path, str | None]:
    """The network's ONNX file, and the checkpoint that build.json names."""
    for file in (folder / "onnx" / "model.onnx", folder / "model.onnx"):
        if file.exists():
            manifest = folder / "build.json"
            if not manifest.exists():
                return file, None
            built = json_module.loads(manifest.read_text())
            int4 = built["precision"]["int4"] or {}
            return file, int4.get("source", built["source"])["name"]
    raise InputError(f"{folder} holds neither onnx/model.onnx nor model.onnx. Name what compile or export made.")
