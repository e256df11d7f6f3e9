"""`trtbuild evaluate`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.table import Table

from trtbuild.cli import arguments as a
from trtbuild.cli.console import output, print_json, progress


def evaluate_command(
    model: a.ModelArgument,
    text: Annotated[Path, typer.Option("--text", help="UTF-8 text that the model was not calibrated on.")],
    reference: Annotated[
        Optional[str], typer.Option(help="What to compare with; what `calibrate` was given, if not named.")
    ] = None,
    windows: Annotated[int, typer.Option(min=1, help="How many windows of the text.")] = 8,
    length: Annotated[int, typer.Option(min=2, help="Tokens of each.")] = 1024,
    tokens: Annotated[
        int,
        typer.Option(
            min=0, help="Greedy tokens after each of ten prompts; 0 makes none, and needs memory for one layer only."
        ),
    ] = 48,
    html: Annotated[Optional[Path], typer.Option(help="Also write a page with plots, one file.")] = None,
    force: a.ForceOption = False,
    cache: a.CacheOption = None,
    json: a.JsonOption = False,
) -> None:
    """Perplexity, KL divergence and top-1 agreement of a quantised model against FP32, on held-out text, and what both
    write.

    Both run in FP32, so that only the weights differ. The text goes through a layer at a time; for the continuations
    (`--tokens`) each model is in memory as a whole.

    ```
    trtbuild evaluate smollm2-int4 --text wikitext.txt
    trtbuild evaluate smollm2-int4 --text wikitext.txt --html report.html
    trtbuild evaluate llama-70b-int4 --text wikitext.txt --windows 32 --tokens 0 --json
    ```
    """
    from trtbuild.evaluating import EvaluationOptions, evaluate_model
    from trtbuild.report.rendering import check_page
    from trtbuild.report.save import save_evaluation

    if html is not None:
        check_page(html, force=force)
    options = EvaluationOptions(text, reference, windows, length, tokens=tokens, cache=cache)
    with progress(quiet=json) as shown:
        result = evaluate_model(model, options, progress=shown)
    if html is not None:
        save_evaluation(result, html)
    found = result.evaluation
    if json:
        print_json(
            {
                **asdict(found),
                "ratio": found.ratio,
                "windows": result.windows[0],
                "length": result.windows[1],
                "continuations": [asdict(each) for each in result.continuations],
                "html": html,
            }
        )
        return
    if result.continuations:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("prompt", no_wrap=True, max_width=24)
        table.add_column("same", justify="right")
        table.add_column("FP32", max_width=44)
        table.add_column("quantised", max_width=44)
        for each in result.continuations:
            texts = (" ".join(text.split()) for text in (each.reference, each.model))
            table.add_row(" ".join(each.prompt.split()), f"{each.same_tokens} of {each.tokens}", *texts)
        output.print(table, soft_wrap=False)
    output.print(
        f"{result.windows[0]} windows of {result.windows[1]} tokens: perplexity {found.perplexity:.3f} against "
        f"{found.reference_perplexity:.3f} ({found.ratio:.4f} times); KL divergence {found.kl_mean:.4f} nats "
        f"(99% of tokens below {found.kl_p99:.2f}); the most likely token is the same for "
        f"{100 * found.same_top1:.1f}%."
    )
    if html is not None:
        output.print(f"{html} has it with plots.")
