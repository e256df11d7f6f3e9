"""`trtbuild simulate`."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from trtbuild.cli.console import output, print_json, progress
from trtbuild.errors import InputError

if TYPE_CHECKING:
    from trtbuild.loadtest.lengths import Lengths
    from trtbuild.simulation.run import Policy
    from trtbuild.simulation.server import Server
    from trtbuild.simulation.summary import Summary
    from trtbuild.simulation.workload import Workload
    from trtbuild.slo import Slo

_DEFAULT_SLO = "ttft=1s,tpot=50ms"
_SERVER, _REQUESTS, _RESULTS = "What serves", "What is asked", "Results"


class Size(str, Enum):
    B8 = "8b"
    B70 = "70b"


class Board(str, Enum):
    H100 = "h100"
    H200 = "h200"


def simulate_command(
    model: Annotated[
        Optional[Size], typer.Option(help="Llama 3's dimensions, in FP16; 70b if not given.", rich_help_panel=_SERVER)
    ] = None,
    gpu: Annotated[
        Optional[Board], typer.Option(help="By its data sheet; h100 if not given.", rich_help_panel=_SERVER)
    ] = None,
    gpus: Annotated[
        Optional[int], typer.Option(min=1, help="How many share each layer; 8 if not given.", rich_help_panel=_SERVER)
    ] = None,
    batch: Annotated[
        Optional[int], typer.Option(min=1, help="Sequences at once; 256 if not given.", rich_help_panel=_SERVER)
    ] = None,
    measured: Annotated[
        Optional[Path],
        typer.Option(
            help="In place of these, what `compile` made: it is served here, on the engine or the CPU, and asked by "
            "more and more clients at once for a minute or a few; each of its steps is timed.",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    steps: Annotated[
        Optional[Path],
        typer.Option(
            help="With --measured: do not serve it, but take this record of its steps, which a server anywhere writes "
            "while the environment variable TRTBUILD_STEP_LOG names a folder.",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    rate: Annotated[
        float, typer.Option(min=0.001, help="Requests per second, Poisson.", rich_help_panel=_REQUESTS)
    ] = 10.0,
    requests: Annotated[int, typer.Option(min=1, rich_help_panel=_REQUESTS)] = 20_000,
    trace: Annotated[
        Optional[Path], typer.Option(help="Requests from a file, as `bench` replays it.", rich_help_panel=_REQUESTS)
    ] = None,
    input_tokens: Annotated[
        str, typer.Option(help="Of a prompt, in `bench`'s forms.", rich_help_panel=_REQUESTS)
    ] = "lognormal:500:1",
    output_tokens: Annotated[
        str, typer.Option(help="Of an answer, in the same forms.", rich_help_panel=_REQUESTS)
    ] = "lognormal:150:0.8",
    max_input_tokens: Annotated[
        Optional[int],
        typer.Option(
            min=1, help="Longer ones are cut to this; 8000, or what fits, if not given.", rich_help_panel=_REQUESTS
        ),
    ] = None,
    max_output_tokens: Annotated[
        Optional[int],
        typer.Option(
            min=1, help="Longer ones are cut to this; 1000, or what fits, if not given.", rich_help_panel=_REQUESTS
        ),
    ] = None,
    urgent: Annotated[float, typer.Option(min=0, max=1, help="Share of priority 1.", rich_help_panel=_REQUESTS)] = 0.2,
    seed: Annotated[int, typer.Option(min=0, rich_help_panel=_REQUESTS)] = 0,
    slo: Annotated[
        Optional[list[str]],
        typer.Option(
            help="Objectives, as `bench` takes them: ttft=500ms,itl=200ms,tpot=100ms,e2e=10s; 1:ttft=200ms for "
            f"priority 1. May be repeated; {_DEFAULT_SLO} if not given. The adaptive policy aims at them, but with "
            "--measured at what the model was compiled for.",
            rich_help_panel=_RESULTS,
        ),
    ] = None,
    size_for: Annotated[
        Optional[float],
        typer.Option(
            help="Find the fewest replicas, requests dealt round robin, that keep this share of them good: 0.99.",
            rich_help_panel=_RESULTS,
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON, and no progress.", rich_help_panel=_RESULTS)
    ] = False,
) -> None:
    """Serve requests of mixed lengths on hardware that is not there: which policy keeps to its objectives.

    The scheduler and the cache are those of the emitted model; a step takes what its bytes and operations take, or what
    was measured. No two prompts begin alike here.

    ```
    trtbuild simulate --model 70b --gpu h100 --gpus 8 --rate 20 --slo ttft=1s,tpot=50ms --slo 1:ttft=300ms
    trtbuild simulate --model 8b --gpu h200 --gpus 1 --rate 30 --requests 100000 --json
    trtbuild simulate --model 8b --gpus 1 --trace AzureLLMInferenceTrace_conv.csv
    trtbuild simulate --measured smollm2 --rate 2 --input-tokens 128 --output-tokens 64 --requests 500
    trtbuild simulate --measured smollm2 --steps production/smollm2.csv --rate 20 --size-for 0.99
    trtbuild simulate --model 70b --gpus 8 --rate 200 --slo ttft=1s,tpot=50ms --size-for 0.99
    ```
    """
    from trtbuild.loadtest.lengths import parse_lengths
    from trtbuild.simulation.run import Policy
    from trtbuild.simulation.summary import check_objectives
    from trtbuild.slo import parse_slo

    objectives = parse_slo(slo or [_DEFAULT_SLO])
    if size_for is not None and not 0 < size_for <= 1:
        raise InputError(f"--size-for {size_for:g}: it is a share of the requests, above 0 and up to 1.")
    if measured is not None and any(given is not None for given in (model, gpu, gpus, batch)):
        raise InputError("--measured says what serves: leave --model, --gpu, --gpus and --batch out.")
    if steps is not None and measured is None:
        raise InputError("--steps are those of an emitted model: name it, too, with --measured.")
    load = _Load(
        trace=trace,
        rate=rate,
        requests=requests,
        prompts=parse_lengths(input_tokens, "--input-tokens"),
        answers=parse_lengths(output_tokens, "--output-tokens"),
        most_prompt=max_input_tokens,
        most_answer=max_output_tokens,
        urgent=urgent,
        seed=seed,
    )
    if measured is not None:
        server, about = _measured(measured, steps, json)
    else:
        server, about = _modelled(model or Size.B70, gpu or Board.H100, gpus or 8, batch or 256, objectives)
    workload = load.workload(server)
    check_objectives(objectives, workload)
    rate = len(workload.arrivals) / float(workload.arrivals[-1] or 1.0) if trace else rate
    asked = {**about, "requests": len(workload.arrivals), "rate": rate, "slo": list(objectives.lines())}
    if not json:
        output.print(f"{about['server']}, {len(workload.arrivals)} requests at {rate:.4g}/s", markup=False)
        output.print(f"good: {'; '.join(objectives.lines())}", markup=False)
    if size_for is not None:
        _size(workload, size_for, server, objectives, asked, json)
        return
    found = [_serve(policy, workload, server, objectives, json) for policy in Policy]
    if json:
        policies = [{**asdict(result), "simulated_in": seconds} for result, seconds in found]
        print_json({**asked, "policies": policies})
        return
    _show([result for result, _ in found])


@dataclass(frozen=True, slots=True)
class _Load:
    """What is asked, as the options say it."""

    trace: Path | None
    rate: float
    requests: int
    prompts: Lengths
    answers: Lengths
    most_prompt: int | None
    most_answer: int | None
    urgent: float
    seed: int

    def workload(self, server: Server) -> Workload:
        """Cut to what was asked for, else so that a prompt and its answer fit."""
        from trtbuild.loadtest.trace import read_trace
        from trtbuild.simulation.workload import MOST_ANSWER, MOST_PROMPT, mixed, traced

        most_answer = self.most_answer or min(MOST_ANSWER, server.capacity // 2)
        most_prompt = self.most_prompt or max(1, min(MOST_PROMPT, server.capacity - most_answer))
        if self.trace is not None:
            return traced(read_trace(self.trace), most_prompt=most_prompt, most_answer=most_answer)
        return mixed(
            self.requests,
            self.rate,
            prompts=self.prompts,
            answers=self.answers,
            most_prompt=most_prompt,
            most_answer=most_answer,
            urgent=self.urgent,
            seed=self.seed,
        )


def _modelled(model: Size, gpu: Board, gpus: int, batch: int, slo: Slo) -> tuple[Server, dict[str, Any]]:
    from trtbuild.simulation.cost import DECODERS, GPUS, Roofline
    from trtbuild.simulation.server import modelled
    from trtbuild.simulation.workload import MOST_ANSWER, MOST_PROMPT

    server = modelled(Roofline(DECODERS[model.value], GPUS[gpu.value], gpus), batch=batch, slo=slo)
    if server.positions < MOST_PROMPT + MOST_ANSWER:
        raise InputError(f"The weights of {model.value} leave too little room for a cache on {gpus} x {gpu.value}.")
    return server, {"server": f"{model.value} on {gpus} x {gpu.value}"}


def _measured(folder: Path, recorded: Path | None, quiet: bool) -> tuple[Server, dict[str, Any]]:
    from trtbuild.simulation.measuring import find_model, fitted, measure, read_config, served
    from trtbuild.simulation.steps import read_steps

    version = find_model(folder)
    config = read_config(version)
    if recorded is not None:
        steps = read_steps(recorded)
        if not steps.about.startswith(f"{config.model_name} on "):
            raise InputError(f"--steps {recorded} is of {steps.about}, and {folder} holds {config.model_name}.")
    else:
        with progress(quiet) as shown:
            steps = measure(config, version, shown)
    found = fitted(config, steps)
    if not quiet:
        terms = ", ".join(f"{name} {1e6 * seconds:.4g}" for name, seconds in found.cost.terms.items())
        output.print(f"a step's µs: {terms}", markup=False)
        output.print(
            f"against {found.steps} steps: R² {found.r_squared:.3f}, mean relative error {found.mean_error:.0%}; "
            f"all together {found.total:.2f} of what they took"
        )
    quality = {name: getattr(found, name) for name in ("r_squared", "mean_error", "total", "steps")}
    return served(config, found.cost), {"server": steps.about, "seconds": found.cost.terms, "fit": quality}


def _size(workload: Workload, share: float, server: Server, slo: Slo, asked: dict[str, Any], json: bool) -> None:
    from rich.table import Table

    from trtbuild.simulation.fleet import fewest, size_fleet
    from trtbuild.simulation.run import Policy, serve

    with progress(json) as shown:
        tried = size_fleet(workload, share, slo, lambda part: serve(Policy.ADAPTIVE, part, server), progress=shown)
    replicas = fewest(tried, share).replicas
    if json:
        print_json({**asked, "share": share, "replicas": replicas, "tried": [asdict(each) for each in tried]})
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("replicas", "good", "worst replica", "good/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in tried:
        row = (str(each.replicas), f"{each.good_share:.2%}", f"{each.worst_share:.2%}", f"{each.goodput:.2f}")
        table.add_row(*row, style="bold" if each.replicas == replicas else "")
    output.print(table)
    output.print(f"{replicas} replica{'s' if replicas > 1 else ''}, round robin, keep {100 * share:g}% or more good")


def _serve(policy: Policy, workload: Workload, server: Server, slo: Slo, quiet: bool) -> tuple[Summary, float]:
    """What came of it, and the seconds that it took to find out."""
    from trtbuild.simulation.run import serve
    from trtbuild.simulation.summary import summary

    with progress(quiet) as shown:
        if shown is not None:
            shown.stage(policy.value)
        begin = time.perf_counter()
        outcome = serve(policy, workload, server, progress=shown)
        return summary(policy.value, workload, outcome, slo), time.perf_counter() - begin


def _show(results: list[Summary]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("policy", no_wrap=True)
    for heading in ("good", "urgent", "good/s", "TTFT p50", "p99", "ITL p50", "p99", "TPOT p99", "tok/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        latencies = (result.ttft_p50, result.ttft_p99, result.itl_p50, result.itl_p99, result.tpot_p99)
        table.add_row(
            result.policy,
            _share(result.good_share),
            _share(result.good_share_urgent),
            f"{result.goodput:.2f}",
            *map(_milliseconds, latencies),
            f"{result.tokens_per_second:.0f}",
        )
    output.print(table)
    output.print("latencies in ms")


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _milliseconds(seconds: float | None) -> str:
    from trtbuild.cli.bench_tables import milliseconds

    return "" if seconds is None else milliseconds(seconds)
