"""`trtbuild simulate`."""

from __future__ import annotations

import time
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from trtbuild.cli.console import output, print_json, progress
from trtbuild.errors import InputError

if TYPE_CHECKING:
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
    model: Annotated[Size, typer.Option(help="Llama 3's dimensions, in FP16.", rich_help_panel=_SERVER)] = Size.B70,
    gpu: Annotated[Board, typer.Option(help="By its data sheet.", rich_help_panel=_SERVER)] = Board.H100,
    gpus: Annotated[int, typer.Option(min=1, help="How many share each layer.", rich_help_panel=_SERVER)] = 8,
    batch: Annotated[int, typer.Option(min=1, help="Sequences that run at once.", rich_help_panel=_SERVER)] = 256,
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
            f"priority 1. May be repeated; {_DEFAULT_SLO} if not given.",
            rich_help_panel=_RESULTS,
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON, and no progress.", rich_help_panel=_RESULTS)
    ] = False,
) -> None:
    """Serve requests of mixed lengths on hardware that is not there: which policy keeps to its objectives.

    The scheduler and the cache are those of the emitted model; a step takes what its bytes and operations take.

    ```
    trtbuild simulate --model 70b --gpu h100 --gpus 8 --rate 20 --slo ttft=1s,tpot=50ms --slo 1:ttft=300ms
    trtbuild simulate --model 8b --gpu h200 --gpus 1 --rate 30 --requests 100000 --json
    trtbuild simulate --model 8b --gpus 1 --trace AzureLLMInferenceTrace_conv.csv
    ```
    """
    from trtbuild.simulation.run import Policy
    from trtbuild.simulation.summary import check_objectives
    from trtbuild.slo import parse_slo

    objectives = parse_slo(slo or [_DEFAULT_SLO])
    server, name = _modelled(model, gpu, gpus, batch, objectives), f"{model.value} on {gpus} x {gpu.value}"
    most = _most_tokens(server, max_input_tokens, max_output_tokens)
    workload = _workload(trace, rate, requests, input_tokens, output_tokens, most, urgent, seed)
    check_objectives(objectives, workload)
    rate = len(workload.arrivals) / float(workload.arrivals[-1] or 1.0) if trace else rate
    asked: dict[str, Any] = {"server": name, "requests": len(workload.arrivals), "rate": rate}
    asked["slo"] = list(objectives.lines())
    found = [_serve(policy, workload, server, objectives, json) for policy in Policy]
    if json:
        policies = [{**asdict(result), "simulated_in": seconds} for result, seconds in found]
        print_json({**asked, "policies": policies})
        return
    output.print(f"{name}, {len(workload.arrivals)} requests at {rate:.4g}/s; latencies in ms", markup=False)
    output.print(f"good: {'; '.join(objectives.lines())}", markup=False)
    _show([result for result, _ in found])


def _modelled(model: Size, gpu: Board, gpus: int, batch: int, slo: Slo) -> Server:
    from trtbuild.simulation.cost import DECODERS, GPUS, Roofline
    from trtbuild.simulation.server import modelled
    from trtbuild.simulation.workload import MOST_ANSWER, MOST_PROMPT

    server = modelled(Roofline(DECODERS[model.value], GPUS[gpu.value], gpus), batch=batch, itl=_between_tokens(slo))
    if server.positions < MOST_PROMPT + MOST_ANSWER:
        raise InputError(f"The weights of {model.value} leave too little room for a cache on {gpus} x {gpu.value}.")
    return server


def _most_tokens(server: Server, prompt: int | None, answer: int | None) -> tuple[int, int]:
    """The most of a prompt and of an answer: as asked, else so that both fit."""
    from trtbuild.simulation.workload import MOST_ANSWER, MOST_PROMPT

    answer = answer or min(MOST_ANSWER, server.capacity // 2)
    return prompt or max(1, min(MOST_PROMPT, server.capacity - answer)), answer


def _workload(
    trace: Path | None,
    rate: float,
    requests: int,
    input_tokens: str,
    output_tokens: str,
    most: tuple[int, int],
    urgent: float,
    seed: int,
) -> Workload:
    from trtbuild.loadtest.lengths import parse_lengths
    from trtbuild.loadtest.trace import read_trace
    from trtbuild.simulation.workload import mixed, traced

    most_prompt, most_answer = most
    if trace is not None:
        return traced(read_trace(trace), most_prompt=most_prompt, most_answer=most_answer)
    return mixed(
        requests,
        rate,
        prompts=parse_lengths(input_tokens, "--input-tokens"),
        answers=parse_lengths(output_tokens, "--output-tokens"),
        most_prompt=most_prompt,
        most_answer=most_answer,
        urgent=urgent,
        seed=seed,
    )


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

    table = Table(box=None, pad_edge=False, header_style="bold")
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


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _milliseconds(seconds: float | None) -> str:
    from trtbuild.cli.bench_tables import milliseconds

    return "" if seconds is None else milliseconds(seconds)


def _between_tokens(slo: Slo) -> float:
    """The shortest time between two tokens that anybody was promised, in seconds; infinite if nobody was."""
    from trtbuild.slo import Latency

    promised = (slo.general, *slo.by_priority.values())
    limits = [limits[each] for limits in promised for each in (Latency.ITL, Latency.TPOT) if each in limits]
    return min(limits, default=float("inf"))
