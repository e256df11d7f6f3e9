"""What `simulate --measured` says of a model, beside what its real server does with the same requests.

    trtbuild compile MODEL --precision int4 --backend onnx --out COMPILED
    python scripts/bench_simulator.py COMPILED [--rates 1,2,3] [--requests 120]

Poisson arrivals, prompts around 96 tokens and answers around 48 (log-normal), greedy; the server is a real tritonserver
on this machine, and so is the client. The steps are measured right before the first run. A ratio is simulated / real.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from trtbuild.loadtest.bench import BenchOptions, bench
from trtbuild.loadtest.endpoint import parse_endpoint
from trtbuild.loadtest.lengths import parse_lengths
from trtbuild.loadtest.summary import Summary
from trtbuild.loadtest.target import Asking
from trtbuild.loadtest.trace import read_trace
from trtbuild.loadtest.workload import WorkloadOptions
from trtbuild.simulation.measuring import find_model, fitted, measure, read_config, served
from trtbuild.simulation.run import Policy, serve
from trtbuild.simulation.steps import read_steps
from trtbuild.simulation.summary import summary
from trtbuild.simulation.workload import Workload, mixed
from trtbuild.slo import parse_slo

SLO = parse_slo(["ttft=1s,tpot=100ms"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("compiled", type=Path)
    parser.add_argument("--rates", default="1,2,3")
    parser.add_argument("--requests", type=int, default=120)
    parser.add_argument("--steps", type=Path, help="a record of steps, in place of measuring")
    arguments = parser.parse_args()
    version = find_model(arguments.compiled)
    config = read_config(version)
    steps = read_steps(arguments.steps) if arguments.steps else measure(config, version)
    found = fitted(config, steps)
    print(f"{steps.about}, {found.steps} steps")
    print(f"fit: R² {found.r_squared:.3f}, mean relative error {found.mean_error:.0%}, in all {found.total:.2f}")
    print("µs: " + ", ".join(f"{name} {1e6 * seconds:.4g}" for name, seconds in found.cost.terms.items()), flush=True)
    server = served(config, found.cost)
    print(f"{'rate':>5} {'':<10}{'real':>9}{'simulated':>11}{'ratio':>7}")
    for number, rate in enumerate(map(float, arguments.rates.split(","))):
        asked = mixed(
            arguments.requests,
            rate,
            prompts=parse_lengths("lognormal:96:0.6", "prompts"),
            answers=parse_lengths("lognormal:48:0.5", "answers"),
            most_prompt=1024,
            most_answer=256,
            seed=number + 1,
        )
        simulated = summary("", asked, serve(Policy.ADAPTIVE, asked, server), SLO)
        real = run(arguments.compiled, asked, number + 1)
        if real.ttft is None or real.itl is None or real.tpot is None or real.goodput is None:
            raise SystemExit(f"the server completed nothing: {real.outcomes}")
        for name, measured, said in (
            ("TTFT p50", 1e3 * real.ttft.p50, 1e3 * (simulated.ttft_p50 or 0)),
            ("TTFT p99", 1e3 * real.ttft.p99, 1e3 * (simulated.ttft_p99 or 0)),
            ("ITL p50", 1e3 * real.itl.p50, 1e3 * (simulated.itl_p50 or 0)),
            ("ITL p99", 1e3 * real.itl.p99, 1e3 * (simulated.itl_p99 or 0)),
            ("TPOT p99", 1e3 * real.tpot.p99, 1e3 * (simulated.tpot_p99 or 0)),
            ("tokens/s", real.output_tokens_per_second, simulated.tokens_per_second),
            ("good, %", 100 * real.goodput.share, 100 * simulated.good_share),
        ):
            ratio = f"{said / measured:.2f}" if measured else ""
            print(f"{rate:>5g} {name:<10}{measured:>9.1f}{said:>11.1f}{ratio:>7}", flush=True)


def run(compiled: Path, asked: Workload, seed: int) -> Summary:
    """The summary of a real run of the same requests."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.jsonl"
        keys = ("arrival", "prompt_tokens", "output_tokens", "priority")
        rows = zip(
            *(values.tolist() for values in (asked.arrivals, asked.prompts, asked.answers, asked.priorities)),
            strict=True,
        )
        trace.write_text("".join(json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in rows))
        workload = WorkloadOptions(trace=read_trace(trace), seed=seed)
    options = BenchOptions(workload, asking=Asking(temperature=0.0), slo=SLO)
    return bench(parse_endpoint(str(compiled)), options).measured[0].summary


if __name__ == "__main__":
    main()
