"""The `trtbuild` command: arguments, progress and messages; the work is in the Python API."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Annotated

import typer

import trtbuild
from trtbuild.cli import (
    audit,
    bench,
    build,
    calibrate,
    compile,
    evaluate,
    export,
    generate,
    monitor,
    plugin,
    serve,
    simulate,
    verify,
)
from trtbuild.cli.console import print_error
from trtbuild.errors import TrtbuildError

app = typer.Typer(
    name="trtbuild",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(name="compile")(compile.compile_command)
app.command(name="serve")(serve.serve_command)
app.command(name="generate")(generate.generate_command)
app.command(name="bench")(bench.bench_command)
app.command(name="simulate")(simulate.simulate_command)
app.command(name="monitor")(monitor.monitor_command)
app.command(name="export")(export.export_command)
app.command(name="build")(build.build_command)
app.command(name="calibrate")(calibrate.calibrate_command)
app.command(name="audit")(audit.audit_command)
app.command(name="evaluate")(evaluate.evaluate_command)
app.command(name="verify")(verify.verify_command)
app.add_typer(plugin.app)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"trtbuild {trtbuild.__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback when something fails.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Compile a Hugging Face model to a TensorRT engine and a Triton model repository, and serve it.

    ```
    trtbuild compile meta-llama/Llama-3.2-1B-Instruct --precision int4 --out llama
    trtbuild serve llama
    trtbuild generate "What is the capital of France?"
    ```
    """


class Stopped(BaseException):
    """Ctrl-C or SIGTERM, unwinding; not KeyboardInterrupt, out of which typer makes an exit without a word."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


def _stop(number: int, frame: FrameType | None) -> None:
    for stopping in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stopping, signal.SIG_IGN)  # a second one would interrupt the removal of temporaries
    raise Stopped(number)


def run() -> None:
    """The entry point: exit code 2 for wrong input, 1 for a failure, 130 for Ctrl-C, 143 for SIGTERM."""
    debug = "--debug" in sys.argv
    for stopping in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stopping, _stop)
    try:
        app()
    except TrtbuildError as error:
        if debug:
            raise
        print_error(str(error))
        sys.exit(error.exit_code)
    except Stopped as stopped:
        if debug:
            raise
        print_error(f"Stopped by {stopped}; nothing half-written was left.")
        sys.exit(stopped.exit_code)
    except MemoryError:
        if debug:
            raise
        print_error("This machine is out of memory. Close other programs, or compile a smaller model or profile.")
        sys.exit(1)
    except Exception as error:
        if debug:
            raise
        print_error(f"Internal error, a fault of trtbuild's: {type(error).__name__}: {error}")
        print_error("Please report it with what `trtbuild --debug …` prints.")
        sys.exit(1)
