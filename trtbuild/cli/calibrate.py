"""`trtbuild calibrate`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Optional

import typer
from rich.table import Table

from trtbuild.cli import arguments as a
from trtbuild.cli.console import output, print_json, progress, stage_table
from trtbuild.options import Device, Method, Precision


def calibrate_command(
    model: a.ModelArgument,
    out: a.OutOption,
    method: Annotated[Method, typer.Option(help="How weights are rounded; the later, the better and the slower.")] = (
        Method.AWQ_GPTQ
    ),
    block_size: a.BlockOption = None,
    bits: Annotated[
        Optional[float],
        typer.Option(
            min=4, max=16, help="Bits a weight on average: the most sensitive projections get smaller blocks, or INT8."
        ),
    ] = None,
    max_kl: Annotated[
        Optional[float],
        typer.Option(help="The fewest bits that keep the KL divergence from FP32 below this, in nats, in their place."),
    ] = None,
    requantise: Annotated[
        bool, typer.Option(help="Round an AutoAWQ, GPTQ or compressed-tensors checkpoint again, without zero-points.")
    ] = False,
    int4_layers: a.LayersOption = "attention,mlp",
    activations: a.ActivationsOption = None,
    recipe: a.RecipeOption = "default",
    data: a.DataOption = None,
    samples: a.SamplesOption = None,
    length: a.LengthOption = None,
    seed: a.SeedOption = None,
    revision: a.RevisionOption = None,
    ignore_config: a.IgnoreOption = None,
    device: Annotated[
        Device, typer.Option(help="cuda fits on a GPU; its bytes are not those that the CPU gives on every machine.")
    ] = Device.CPU,
    force: a.ForceOption = False,
    cache: a.CacheOption = None,
    json: a.JsonOption = False,
) -> None:
    """Write a model with INT4 weights that are fitted to text, layer by layer, as a checkpoint for `compile`.

    Memory is one layer and its activations, whatever the model's size. A job that was stopped goes on where it was
    when it is started again.

    ```
    trtbuild calibrate ./SmolLM2-135M-Instruct --block-size 32 --out smollm2-int4
    trtbuild compile smollm2-int4 --out smollm2
    trtbuild calibrate ./SmolLM2-135M-Instruct --bits 4.4 --out smollm2-mixed
    trtbuild calibrate ./SmolLM2-135M-Instruct --max-kl 0.05 --out smollm2-close
    trtbuild calibrate ./Llama-3.2-1B-AWQ --requantise --out llama-int4
    trtbuild calibrate Qwen/Qwen3-8B --data support-chats.jsonl --samples 64 --out qwen3-int4
    ```
    """
    from trtbuild.calibrating import calibrate
    from trtbuild.calibration.layer_fit import by_role
    from trtbuild.calibration.options import CalibrationOptions
    from trtbuild.calibration.recipes import load_recipe

    export = a.export_options(
        Precision.INT4, activations, block_size, int4_layers, revision, ignore_config, False, cache
    )
    wanted = load_recipe(recipe).changed(data, samples, length, seed)
    with progress(quiet=json) as shown:
        result = calibrate(
            model,
            out,
            CalibrationOptions(export, wanted, method, bits, max_kl, requantise, device, force),
            progress=shown,
        )
    if json:
        print_json(
            {
                "folder": result.folder,
                "method": result.method,
                "bits_per_weight": result.bits_per_weight,
                "kl": result.kl,
                "samples": result.samples.description,
                "matrices": [asdict(report) for report in result.matrices],
                "stages": [asdict(stage) for stage in result.stages],
            }
        )
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("projection")
    for column in ("block", "SQNR of rtn", "SQNR", "worst layer"):
        table.add_column(column, justify="right")
    for role, own in by_role(result.matrices).items():
        worst = min(own, key=lambda report: report.sqnr)
        mean, plain = (sum(values) / len(own) for values in ([r.sqnr for r in own], [r.sqnr_rtn for r in own]))
        where = f"{worst.sqnr:.1f} dB" + ("" if worst.layer is None else f" ({worst.layer})")
        blocks = ", ".join(dict.fromkeys(str(report.block or "INT8") for report in own))
        table.add_row(role, blocks, f"{plain:.1f} dB", f"{mean:.1f} dB", where)
    output.print(table)
    output.print(stage_table(result.stages))
    kept = "" if result.kl is None else f", a KL divergence of {result.kl:.4f} nats"
    output.print(
        f"{result.folder}: {result.method}, {result.bits_per_weight:.2f} bits a weight{kept}. "
        f"Next: trtbuild compile {result.folder} --out DIR"
    )
