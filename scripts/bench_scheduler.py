"""What scheduling costs: planning, committing and appending for a full batch, without a model.

    python scripts/bench_scheduler.py [--running 256] [--steps 2000]

Requests of mixed lengths and priorities keep the batch full, in pages of 64; prompts of 16 groups begin alike. The
objective is under 1 ms a step at 256 running requests.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from trtbuild.serving.cache import KVCache
from trtbuild.serving.config import Level
from trtbuild.serving.scheduler import Policy, Scheduler
from trtbuild.serving.sequence import Sequence

PAGE_SIZE = 64


def request(source: random.Random, now: float) -> Sequence:
    group = source.randrange(16)
    own = [source.randrange(32_000) for _ in range(int(source.lognormvariate(5, 0.8)))]
    limit = max(1, int(source.lognormvariate(5, 0.6)))
    return Sequence([group] * 128 + own, limit, priority=source.choice((1, 2, 2, 3)), arrival=now)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--running", type=int, default=256)
    parser.add_argument("--steps", type=int, default=2000)
    arguments = parser.parse_args()
    source = random.Random(0)
    levels = (Level(10_000, 1e9),) * 3
    policy = Policy(batch=arguments.running, prefill=2048, tokens=4096, levels=levels, mixes=True)
    scheduler = Scheduler(KVCache(arguments.running * 12, PAGE_SIZE), policy)
    seconds: list[float] = []
    full: list[float] = []
    waiting = 0
    for step in range(arguments.steps):
        now = step * 0.02
        while len(scheduler.waiting) < 64:
            scheduler.add(request(source, now))
        begin = time.perf_counter()
        plan = scheduler.plan(now)
        assert plan is not None
        rows = [row for row in plan.rows if row.completes]
        scheduler.commit(plan, now + 0.02)
        for row in rows:
            scheduler.append(row.sequence, 7)
            if row.sequence.remaining <= 0:
                scheduler.finish(row.sequence)
        seconds.append(time.perf_counter() - begin)
        if len(plan.rows) >= 0.9 * arguments.running:
            full.append(seconds[-1])
        waiting = max(waiting, len(scheduler.waiting))
    for name, values in (("all steps", seconds), (f"steps of {0.9 * arguments.running:.0f} rows or more", full)):
        ordered = sorted(values)
        print(
            f"{name:28} {len(values):6}  median {1e3 * statistics.median(ordered):.3f} ms  "
            f"p99 {1e3 * ordered[int(0.99 * len(ordered))]:.3f} ms  most {1e3 * ordered[-1]:.3f} ms"
        )
    print(f"preemptions {scheduler.preemptions}, most that waited {waiting}")


if __name__ == "__main__":
    main()
