"""Time to first token of urgent requests while less urgent ones ask for more than the model can do.

    trtbuild compile MODEL --precision int4 --backend onnx --out COMPILED
    python scripts/bench_priority.py COMPILED [--low 16] [--requests 40] [--in-order 60]

First alone, then beside `--low` clients of priority 3 that ask again as soon as they are answered (twice the slots: the
load is what the model can do, and as much again waits). All prompts are of about `--prompt` tokens and none begins as
another does. The objective: the 99th percentile at most 1.5 times that without load, and every other request answered.
Then, for `--in-order` seconds, what everybody gets where all are alike: one more client of priority 3, which the
scheduler takes in order of arrival.
"""

from __future__ import annotations

import argparse
import random
import statistics
import threading
import time
from pathlib import Path

from trtbuild.triton.client import Sampling, only_model, stream_generate
from trtbuild.triton.server import TritonServer

WORDS = ("river", "stone", "light", "seven", "paper", "green", "north", "table", "music", "winter", "glass", "horse")


class Load:
    """Clients of the lowest priority, each with one request after the other."""

    def __init__(self, url: str, model: str, clients: int, prompt: int) -> None:
        self.answered, self.longest, self.tokens = 0, 0.0, 0
        self.first: list[tuple[float, float]] = []
        """When each request was sent, and the seconds to its first token."""
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._work, args=(url, model, prompt, client)) for client in range(clients)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _work(self, url: str, model: str, prompt: int, client: int) -> None:
        source = random.Random(client)
        while not self._over.is_set():
            begin, tokens = time.perf_counter(), 0
            for chunk in stream_generate(url, model, prompt=text(source, prompt), sampling=sampling(96), priority=3):
                if not tokens:
                    self.first.append((begin, time.perf_counter() - begin))
                tokens += len(chunk.token_ids)
            with self._lock:
                self.answered += 1
                self.tokens += tokens
                self.longest = max(self.longest, time.perf_counter() - begin)


def p99(values: list[float]) -> float:
    """Of sorted ones; the largest of fewer than a hundred."""
    return values[-(-99 * len(values) // 100) - 1]


def text(source: random.Random, tokens: int) -> str:
    return " ".join(source.choice(WORDS) for _ in range(tokens))


def sampling(tokens: int) -> Sampling:
    return Sampling(max_tokens=tokens, ignore_eos=True)


def first_tokens(url: str, model: str, requests: int, prompt: int, pause: float, seed: int) -> list[float]:
    """Seconds to the first token of `requests` of priority 1, one after the other; sorted."""
    source, seconds = random.Random(seed), []
    for _ in range(requests):
        time.sleep(pause * source.random())
        begin = time.perf_counter()
        answer = stream_generate(url, model, prompt=text(source, prompt), sampling=sampling(4), priority=1)
        next(answer)
        seconds.append(time.perf_counter() - begin)
        list(answer)
    return sorted(seconds)


def in_order(url: str, model: str, clients: int, prompt: int, seconds: float) -> list[float]:
    """Seconds to the first token where nobody is more urgent, of the requests that were sent in that time; sorted."""
    load = Load(url, model, clients, prompt)
    time.sleep(5.0)
    begin = time.perf_counter()
    time.sleep(seconds)
    end = time.perf_counter()
    load.stop()
    return sorted(waited for sent, waited in load.first if begin <= sent < end)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("compiled", type=Path, help="what `trtbuild compile` made")
    parser.add_argument("--low", type=int, default=16)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between urgent requests, at most")
    parser.add_argument("--in-order", type=float, default=60.0, help="seconds of a load where all are alike")
    arguments = parser.parse_args()
    with TritonServer(arguments.compiled / "model_repository") as server:
        url, model = server.grpc_url, only_model(server.grpc_url)
        common = (arguments.requests, arguments.prompt, arguments.pause)
        alone = first_tokens(url, model, *common, seed=1000)
        load = Load(url, model, arguments.low, arguments.prompt)
        time.sleep(5.0)
        begin, tokens = time.perf_counter(), load.tokens
        beside = first_tokens(url, model, *common, seed=1001)
        rate = (load.tokens - tokens) / (time.perf_counter() - begin)
        load.stop()
        alike = in_order(url, model, arguments.low + 1, arguments.prompt, arguments.in_order)
    for name, values in (("alone", alone), (f"beside {arguments.low} clients", beside), ("in order of arrival", alike)):
        print(f"{name:20} median {statistics.median(values):6.3f} s   p99 {p99(values):6.3f} s   of {len(values)}")
    for name, values in (("beside / alone", alone), ("beside / in order", alike)):
        median, worst = statistics.median(beside) / statistics.median(values), p99(beside) / p99(values)
        print(f"{name:20} median {median:6.3f}     p99 {worst:6.3f}")
    print(
        f"the others: {load.answered} answered, the longest after {load.longest:.1f} s; {rate:.0f} tokens/s meanwhile"
    )


if __name__ == "__main__":
    main()
