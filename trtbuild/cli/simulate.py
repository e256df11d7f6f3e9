"""`trtbuild simulate`."""

from __future__ import annotations

import time
from dataclasses import asdict
from enum import Enum
from typing import Annotated

import typer

from trtbuild.cli.console import output, print_json


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
    ttft: Annotated[float, typer.Option(min=0, help="Objective: seconds to the first token.")] = 1.0,
    tpot: Annotated[float, typer.Option(min=0, help="Objective: seconds for each token after it.")] = 0.05,
    urgent: Annotated[float, typer.Option(min=0, max=1, help="Share of priority 1.")] = 0.2,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Serve requests of mixed lengths on hardware that is not there: which policy keeps to its objectives.

    The scheduler and the cache are those of the emitted model; a step takes what its bytes and operations take.

    ```
    trtbuild simulate --model 70b --gpu h100 --gpus 8 --rate 20
    trtbuild simulate --model 8b --gpu h200 --gpus 1 --rate 30 --requests 100000 --json
    ```
    """
    from rich.table import Table

    from trtbuild.errors import InputError
    from trtbuild.simulation import run
    from trtbuild.simulation.cost import DECODERS, GPUS, Roofline
    from trtbuild.simulation.summary import summary
    from trtbuild.simulation.workload import mixed

    cost = Roofline(DECODERS[model.value], GPUS[gpu.value], gpus)
    if cost.positions < 9_000:
        raise InputError(f"The weights of {model.value} leave too little room for a cache on {gpus} x {gpu.value}.")
    workload = mixed(requests, rate, urgent=urgent, seed=seed)
    results = []
    for policy in Policy:
        begin = time.perf_counter()
        if policy is Policy.ADAPTIVE:
            outcome = run.adaptive(workload, cost, batch=batch, objective=tpot)
        else:
            outcome = (run.fifo if policy is Policy.FIFO else run.static)(workload, cost, batch=batch)
        results.append((summary(policy.value, workload, outcome, ttft, tpot), time.perf_counter() - begin))
    if json:
        policies = [{**asdict(result), "simulated_in": seconds} for result, seconds in results]
        print_json({"model": model.value, "gpu": gpu.value, "gpus": gpus, "rate": rate, "policies": policies})
        return
    table = Table(title=f"{model.value} on {gpus} x {gpu.value}, {requests} requests at {rate:g}/s; times in seconds")
    for heading in ("policy", "good", "urgent", "good/s", "TTFT p50", "p99", "TPOT p99", "tokens/s", "took"):
        table.add_column(heading, justify="left" if heading == "policy" else "right")
    for result, seconds in results:
        table.add_row(
            result.policy,
            f"{result.good_share:.1%}",
            f"{result.good_share_urgent:.1%}",
            f"{result.goodput:.2f}",
            f"{result.ttft_p50:.3f}",
            f"{result.ttft_p99:.3f}",
            f"{result.tpot_p99:.4f}",
            f"{result.tokens_per_second:.0f}",
            f"{seconds:.1f}",
        )
    output.print(table)
