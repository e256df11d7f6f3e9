"""`trtbuild audit`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from trtbuild.cli import arguments as a
from trtbuild.cli.console import output, print_json, progress, stage_table

SHOWN = 20


def audit_command(
    model: a.ModelArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="The JSON file to write.")],
    recipe: a.RecipeOption = "quick",
    data: a.DataOption = None,
    samples: a.SamplesOption = None,
    length: a.LengthOption = None,
    seed: a.SeedOption = None,
    revision: a.RevisionOption = None,
    ignore_config: a.IgnoreOption = None,
    force: a.ForceOption = False,
    cache: a.CacheOption = None,
    json: a.JsonOption = False,
) -> None:
    """Find what FP16 cannot hold: run text in FP32 and record the magnitude of every value and weight.

    `compile` and `export` keep exactly those parts in FP32 when they are given the file.

    ```
    trtbuild audit ./model --out model.audit.json
    trtbuild compile ./model --precision fp16 --audit model.audit.json --out engine
    ```
    """
    from trtbuild.auditing import audit
    from trtbuild.calibration.recipes import load_recipe

    options = a.export_options(None, None, None, "attention,mlp", revision, ignore_config, False, cache)
    wanted = load_recipe(recipe).changed(data, samples, length, seed)
    with progress(quiet=json) as shown:
        result = audit(model, out, wanted, options, force=force, progress=shown)
    if json:
        print_json(
            {
                "file": result.file,
                "values": len(result.ranges),
                "unsafe": [{**asdict(found), "fault": found.fault} for found in result.unsafe],
                "samples": result.samples.description,
                "stages": [asdict(stage) for stage in result.stages],
            }
        )
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("value")
    for column in ("largest", "flushed to 0", "error"):
        table.add_column(column, justify="right")
    table.add_column("in FP16")
    worst = sorted(result.ranges, key=lambda found: (found.fault is None, -found.largest))[:SHOWN]
    for found in worst:
        table.add_row(
            found.name.removeprefix("/model/").removesuffix("/output_0"),
            f"{found.largest:.4g}",
            f"{100 * found.flushed:.2f}%",
            f"{found.error:.1e}",
            found.fault or "safe",
        )
    output.print(table)
    output.print(stage_table(result.stages))
    output.print(
        f"{result.file}: {len(result.unsafe)} of {len(result.ranges)} values and weights are not safe in FP16."
        + (f" Next: --precision fp16 --audit {result.file}" if result.unsafe else "")
    )
