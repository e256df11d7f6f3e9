"""`trtbuild plugin`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.table import Table

from trtbuild.cli import arguments as a
from trtbuild.cli.console import output, print_json, progress, stage_table

FOLDER = Path("trtbuild-plugin")

app = typer.Typer(
    name="plugin",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Compile the attention plugin for TensorRT, and say what a compiled one holds.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command(name="build")
def build_command(
    target: Annotated[
        Optional[list[str]],
        typer.Option("--target", "-t", help="GPUs to compile for: sm_90, may be repeated; this machine's by default."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to make.")] = FOLDER,
    jobs: Annotated[Optional[int], typer.Option(min=1, help="Compilers at a time; one for each core.")] = None,
    force: a.ForceOption = False,
    json: a.JsonOption = False,
) -> None:
    """Compile `libtrtbuild_plugin.so`, which TensorRT loads, and its kernels alone, `libtrtbuild_kernels.so`.

    ```
    trtbuild plugin build --target sm_89 --target sm_90 --out plugin
    ```
    """
    from trtbuild.engine.targets import parse_targets
    from trtbuild.plugin.build import build_plugin
    from trtbuild.progress import Silent
    from trtbuild.stages import Stages

    targets = parse_targets(target) if target else ()
    with progress(quiet=json) as shown:
        stages = Stages(shown or Silent())
        made = build_plugin(out, targets, stages=stages, jobs=jobs, force=force)
    if json:
        print_json({**asdict(made), "stages": [asdict(stage) for stage in stages.done]})
        return
    output.print(stage_table(stages.done))
    output.print(f"{made.plugin.library}: {made.plugin.name} for {', '.join(made.plugin.targets)}")


@app.command(name="info")
def info_command(
    library: Annotated[Path, typer.Argument(help="The library, or the folder of `trtbuild plugin build`.")] = FOLDER,
    json: a.JsonOption = False,
) -> None:
    """Say which operator a library holds, for which GPUs it was compiled, and which fields a node may have.

    ```
    trtbuild plugin info plugin/libtrtbuild_plugin.so
    ```
    """
    from trtbuild.plugin.info import read_info

    info = read_info(library)
    if json:
        print_json(asdict(info))
        return
    output.print(f"{info.name} version {info.plugin_version}, namespace {info.namespace}")
    output.print(f"trtbuild {info.version}, kernels {info.kernels}, TensorRT {info.tensorrt_headers} headers")
    output.print(f"compiled for {', '.join(info.targets)}")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("field", "type", "default", "meaning"):
        table.add_column(column)
    for field in info.fields:
        default = "required" if field.required else "none" if field.default is None else f"{field.default:g}"
        table.add_row(field.name, field.type.replace("[", r"\["), default, field.meaning)
    output.print(table)
