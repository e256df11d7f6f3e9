"""How much of a KV cache is reserved and not filled: pages of several sizes, and a row of full length a sequence.

    python scripts/simulate_pages.py [--context 131072] [--requests 2000]

A mixed workload: 60% chats (prompts of about 400 tokens, answers of 250), 30% answers from retrieved text (3,000 and
200), 10% long documents (12,000 and 600), log-normal, at most 32,768 positions. Requests are admitted while those that
run will not fill more than `--context` positions; each step adds a token to every one. Positions are counted after
every step.
"""

from __future__ import annotations

import argparse
import random as random_module
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from trtbuild.serving.cache import KVCache, Table

LONGEST = 32_768
KINDS = ((0.6, 400, 250), (0.3, 3_000, 200), (0.1, 12_000, 600))
"""Share, median prompt, median answer."""
SPREAD = 0.6
"""Of the logarithm of a length."""


@dataclass(frozen=True)
class Result:
    wasted: float
    """Share of the reserved positions that are not filled, over all steps."""
    contiguous_wasted: float
    """The same where each sequence reserves a row of the longest length."""
    mean_length: float
    mean_sequences: float


def simulate(page_size: int, *, context: int, requests: int, random: random_module.Random) -> Result:
    """Run `requests` requests through a cache that holds `context` positions and half a page of each sequence."""

    def length(median: int) -> int:
        return max(1, int(median * random.lognormvariate(0, SPREAD)))

    waiting: deque[tuple[int, int]] = deque()
    for _, prompt, answer in random.choices(KINDS, [share for share, _, _ in KINDS], k=requests):
        asked = min(length(prompt), LONGEST - 1)
        waiting.append((asked, min(length(answer), LONGEST - asked)))
    cache = KVCache(2 * context // page_size, page_size, reuse=False)
    running: dict[int, tuple[Table, int, int]] = {}  # table, tokens left, its whole length
    promised = 0
    number = filled = reserved = rows = steps = 0
    while waiting or running:
        while waiting and promised + sum(waiting[0]) <= context:
            prompt, answer = waiting.popleft()
            table = Table([0] * prompt)
            cache.open(table, 0.0)
            table.length = prompt
            running[number] = table, answer, prompt + answer
            number += 1
            promised += prompt + answer
        if not waiting:
            break  # the cache runs empty: no mixed workload any more
        for key, (table, left, whole) in list(running.items()):
            if table.length == table.room:
                cache.extend(table, 0.0)
            table.length += 1
            table.tokens.append(0)
            if left > 1:
                running[key] = table, left - 1, whole
            else:
                cache.close(table, 0.0, 1)
                del running[key]
                promised -= whole
        filled += sum(table.length for table, _, _ in running.values())
        reserved += cache.used * page_size
        rows += len(running)
        steps += 1
    cache.check([table for table, _, _ in running.values()])
    return Result(1 - filled / reserved, 1 - filled / (rows * LONGEST), filled / rows, rows / steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--context", type=int, default=131_072, help="positions that the running requests may fill")
    parser.add_argument("--requests", type=int, default=2000)
    arguments = parser.parse_args()
    for page_size in (16, 32, 64, 128):
        found = simulate(
            page_size, context=arguments.context, requests=arguments.requests, random=random_module.Random(0)
        )
        print(
            f"pages of {page_size:3}: {found.wasted:6.2%} wasted; rows of {LONGEST}: {found.contiguous_wasted:.1%} "
            f"({found.mean_sequences:.0f} sequences of {found.mean_length:.0f} positions at a time)"
        )


if __name__ == "__main__":
    main()
