"""`trtbuild simulate`."""

from __future__ import annotations

import time
from dataclasses import asdict
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from trtbuild.cli.console import output, print_json

if TYPE_CHECKING:
    from trtbuild.slo import Slo

_DEFAULT_SLO = "ttft=1s,tpot=50ms"


class Policy(str, Enum):
    """How requests are served."""

    ADAPTIVE = "adaptive"
    FIFO = "fifo"
    STATIC = "static"


class Size(str, Enum):
    B8 = "8b"
    B70 = "70b"


class Board(str, Enum):
    H100 = "h100"
    H200 = "h200"


def simulate_command(
    model: Annotated[Size, typer.Option(help="Llama 3's dimensions, in FP16.")] = Size.B70,
    gpu: Annotated[Board, typer.Option(help="By its data sheet.")] = Board.H100,
    gpus: Annotated[int, typer.Option(min=1, help="How many share each layer.")] = 8,
    rate: Annotated[float, typer.Option(min=0.001, help="Requests per second.")] = 10.0,
    requests: Annotated[int, typer.Option(min=1)] = 20_000,
    batch: Annotated[int, typer.Option(min=1, help="Sequences that run at once.")] = 256,
    slo: Annotated[
        Optional[list[str]],
        typer.Option(
            help="Objectives, as `bench` takes them: ttft=500ms,itl=200ms,tpot=100ms,e2e=10s; 1:ttft=200ms for "
            f"priority 1. May be repeated; {_DEFAULT_SLO} if not given."
        ),
    ] = None,
    urgent: Annotated[float, typer.Option(min=0, max=1, help="Share of priority 1.")] = 0.2,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Serve requests of mixed lengths on hardware that is not there: which policy keeps to its objectives.

    The scheduler and the cache are those of the emitted model; a step takes what its bytes and operations take.

    ```
    trtbuild simulate --model 70b --gpu h100 --gpus 8 --rate 20 --slo ttft=1s,tpot=50ms --slo 1:ttft=300ms
    trtbuild simulate --model 8b --gpu h200 --gpus 1 --rate 30 --requests 100000 --json
    ```
    """
    from rich.table import Table

    from trtbuild.errors import InputError
    from trtbuild.simulation import run
    from trtbuild.simulation.cost import DECODERS, GPUS, Roofline
    from trtbuild.simulation.summary import check_objectives, summary
    from trtbuild.simulation.workload import mixed
    from trtbuild.slo import parse_slo

    objectives = parse_slo(slo or [_DEFAULT_SLO])
    cost = Roofline(DECODERS[model.value], GPUS[gpu.value], gpus)
    if cost.positions < 9_000:
        raise InputError(f"The weights of {model.value} leave too little room for a cache on {gpus} x {gpu.value}.")
    workload = mixed(requests, rate, urgent=urgent, seed=seed)
    check_objectives(objectives, workload)
    results = []
    for policy in Policy:
        begin = time.perf_counter()
        if policy is Policy.ADAPTIVE:
            outcome = run.adaptive(workload, cost, batch=batch, objective=_between_tokens(objectives))
        else:
            outcome = (run.fifo if policy is Policy.FIFO else run.static)(workload, cost, batch=batch)
        results.append((summary(policy.value, workload, outcome, objectives), time.perf_counter() - begin))
    if json:
        policies = [{**asdict(result), "simulated_in": seconds} for result, seconds in results]
        asked = {"model": model.value, "gpu": gpu.value, "gpus": gpus, "rate": rate, "slo": list(objectives.lines())}
        print_json({**asked, "policies": policies})
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in (
        "policy",
        "good",
        "urgent",
        "good/s",
        "TTFT p50",
        "TTFT p99",
        "ITL p99",
        "TPOT p99",
        "tokens/s",
        "took",
    ):
        table.add_column(heading, justify="left" if heading == "policy" else "right", no_wrap=True)
    for result, _ in results:
        table.add_row(
            result.policy,
            _share(result.good_share),
            _share(result.good_share_urgent),
            f"{result.goodput:.2f}",
            *map(_milliseconds, (result.ttft_p50, result.ttft_p99, result.itl_p99, result.tpot_p99)),
            f"{result.tokens_per_second:.0f}",
        )
    output.print(f"{model.value} on {gpus} x {gpu.value}, {requests} requests at {rate:g}/s; latencies in ms")
    output.print(f"good: {'; '.join(objectives.lines())}", markup=False)
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
