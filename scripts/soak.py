"""Serve more than the model can do for minutes, with clients and accidents of every kind, and look for what breaks.

    trtbuild compile MODEL --precision int4 --backend onnx --out COMPILED
    python scripts/soak.py COMPILED [--minutes 10] [--load 1.2] [--seed 0] [--json FILE]

The real tritonserver serves a copy of the repository, in which the scheduler's and the cache's books are checked
before and after every step and the queues are short. A closed loop measures what it can do; then requests arrive at
random, at `--load` times that: of all priorities and lengths, some with answers known from an unloaded server, some
malformed, some from clients that go away or stop reading. tritonserver, and later its model's process, is killed with
-9 and started again. Exit code 1 if a property does not hold.

A tritonserver that crashes by itself is counted apart and no failure, if every request still ends with an error: 2.51
does so soon with `--codes 1` (triton/failures.py), and rarely when a stream is cancelled.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from soak_client import Clients, Ended, Judge
from soak_requests import SHARES, Kind, Mix, Wanted, known_prompts
from soak_server import METRICS_SECONDS, Growth, Life, checked_copy, describe, growth

from trtbuild.files import atomic_file
from trtbuild.serving.tokenizer import Tokenizer
from trtbuild.triton.generation import Chunk

KNOWN = 12
TELL_SECONDS = 15.0
LOOK_SECONDS = 0.1
"""How often it is asked whether the server lives."""
KILLS = ((0.08, 0, "tritonserver killed"), (0.16, 1, "model killed"))
"""At which share of the time, which of the processes, and what that is."""
ERROR_SECONDS = 10.0
"""A request whose server died has its error within so long."""
DRAIN_SECONDS = 120.0
"""After the last arrival everything has ended within so long; the queues' own limits are 30 s."""
SHORT_SECONDS = 120.0
"""A run of less says nothing of memory."""
MEGABYTES_PER_MINUTE, FILES_PER_MINUTE = 1.0, 1.0
"""What memory and open files may grow by."""


class Load:
    """The clients, in a thread and an event loop of their own."""

    def __init__(self, mix: Mix, model: str) -> None:
        self.mix, self._model = mix, model
        self.ended: list[Ended] = []
        self.open: dict[asyncio.Task[None], Wanted] = {}
        self.enough = False
        self._clients: list[Clients] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def use(self, life: Life) -> None:
        """Send requests there from now on."""

        async def change() -> None:
            self._clients.append(Clients(life.server.grpc_url, self._model, life.number))

        self.do(change()).result()

    def do(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Start it; a concurrent Future."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    async def send(self, wanted: Wanted) -> Ended:
        ended = await self._clients[-1].send(wanted)
        self.ended.append(ended)
        return ended

    async def closed(self, clients: int, seconds: float) -> float:
        """Requests a second that so many clients get answered, each one after the other, but for the first quarter."""
        begin = time.monotonic()
        done = 0

        async def client() -> None:
            nonlocal done
            while time.monotonic() < begin + seconds:
                await self.send(self.mix.draw(calm=True))
                done += begin + seconds / 4 <= time.monotonic() < begin + seconds

        await asyncio.gather(*(client() for _ in range(clients)))
        return done / (seconds * 0.75)

    async def arrive(self, rate: float) -> None:
        """So many requests a second at random moments, until they have been enough."""
        due = time.monotonic()
        while not self.enough:
            due += self.mix.source.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            wanted = self.mix.draw()
            task = asyncio.ensure_future(self._one(wanted))
            self.open[task] = wanted
            task.add_done_callback(self.open.pop)

    async def _one(self, wanted: Wanted) -> None:
        await self.send(wanted)

    def stop(self) -> list[Wanted]:
        """End; returns the requests that did not."""

        async def close() -> list[Wanted]:
            left = dict(self.open)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            for clients in self._clients:
                await clients.close()
            return list(left.values())

        left: list[Wanted] = self.do(close()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        return left


@dataclasses.dataclass(slots=True)
class Property:
    """A line of the table."""

    name: str
    holds: bool
    found: str


class Soak:
    """One run."""

    def __init__(self, compiled: Path, folder: Path, minutes: float, load: float, seed: int, codes: float) -> None:
        self._repository, self._logs = folder / "model_repository", folder
        self._served = checked_copy(compiled, self._repository)
        self.judge = Judge(Tokenizer(self._served.folder).token_bytes, self._served.ends)
        self.seconds, self._factor = minutes * 60.0, load
        mix = Mix(random.Random(seed), known_prompts(KNOWN), codes, pause=min(5.0, self.seconds / 20))
        self.load = Load(mix, self._served.model)
        self.lives: list[Life] = []
        self._without = 0.0
        """Seconds during which there was no server."""
        self.capacity = self.rate = 0.0
        self.hung: list[Wanted] = []
        self.metrics: list[str] = []

    def run(self) -> None:
        try:
            self._begin()
            self._learn()
            arriving = self.load.do(self.load.arrive(self.rate))
            self._watch()
            self.load.enough = True
            arriving.result()
            end = time.monotonic() + DRAIN_SECONDS
            while self.load.open and time.monotonic() < end:
                self._look()
            self.hung = self.load.stop()
            end = time.monotonic() + DRAIN_SECONDS / 6
            while (wrong := self._wrong_metrics()) and time.monotonic() < end:
                time.sleep(METRICS_SECONDS)
            self.metrics = wrong
            self._end()
        finally:
            for life in self.lives:
                life.server.kill()

    def _begin(self) -> None:
        number = len(self.lives)
        self.lives.append(Life.begin(number, self._repository, self._logs / f"tritonserver-{number}.log"))
        self.load.use(self.lives[-1])

    def _learn(self) -> None:
        """The known answers, and what the server can do."""
        for number, generation in enumerate(self.load.mix.known):
            wanted = Wanted(0, Kind.PLAIN, generation)
            ended: Ended = self.load.do(self.load.send(wanted)).result()
            if ended.outcome != "completed":
                sys.exit(f"The server does not answer: {ended.outcome} {ended.message}")
            self.judge.known[number] = _joined(ended.chunks)
        seconds = min(30.0, max(3.0, self.seconds / 10))
        self.capacity = self.load.do(self.load.closed(2 * self._served.slots, seconds)).result()
        undisturbed = 1.0 - SHARES[Kind.MALFORMED] - SHARES[Kind.CANCELLED]
        self.rate = self._factor * self.capacity / undisturbed
        tell(f"{self.capacity:.2f} requests/s can be answered; {self.rate:.2f} arrive, with those that nobody answers")

    def _watch(self) -> None:
        """For as long as there is to be load; the time without a server does not count."""
        begin, told, kills = time.monotonic(), 0.0, list(KILLS)
        while (elapsed := time.monotonic() - begin - self._without) < self.seconds:
            self._look()
            life = self.lives[-1]
            if kills and elapsed >= kills[0][0] * self.seconds:
                _, process, end = kills.pop(0)
                life.processes[process].kill()
                self._bury(end)
            if elapsed >= told + TELL_SECONDS:
                told = elapsed
                counts = Counter(ended.outcome for ended in self.load.ended)
                megabytes = life.samples[-1].megabytes if life.samples else 0.0
                tell(f"{elapsed:4.0f} s  {len(self.load.open)} open  {megabytes:.1f} MB  {dict(counts)}")

    def _look(self) -> None:
        """Once: a sample if it is time, and a new server if there is none."""
        life = self.lives[-1]
        time.sleep(LOOK_SECONDS)
        if life.has_died():
            self._bury("crashed" if life.crashed_by_itself() else "ended")
        elif not life.samples or time.monotonic() - life.samples[-1].time >= 1.0:
            life.sample()

    def _bury(self, end: str) -> None:
        life = self.lives[-1]
        died = time.monotonic()
        while not life.has_died() and time.monotonic() < died + ERROR_SECONDS:
            time.sleep(0.01)
        tell(f"server {life.number}: {end}")
        life.bury(end, died, self._repository)
        self._begin()
        self._without += time.monotonic() - died

    def _end(self) -> None:
        life = self.lives[-1]
        stopping = time.monotonic()
        life.server.process.terminate()
        life.server.process.wait(40)
        life.bury("stopped", stopping, self._repository)

    def _wrong_metrics(self) -> list[str]:
        """What the last server counted and its clients did not see. A client that left may have missed its end."""
        life = self.lives[-1]
        total = life.counted()
        ended = [
            each for each in self.load.ended if each.life == life.number and each.wanted.kind is not Kind.MALFORMED
        ]
        left = sum(each.wanted.answers for each in ended if each.outcome == "cancelled")
        left += sum(wanted.answers for wanted in self.hung)
        answered = [each for each in ended if each.outcome == "completed"]
        seen = {
            "stop": sum(chunk.finish_reason == "stop" for each in answered for chunk in each.chunks),
            "length": sum(chunk.finish_reason == "length" for each in answered for chunk in each.chunks),
            "refused": sum(each.outcome == "busy" for each in ended),
            "timeout": sum(each.outcome == "late" for each in ended),
            "error": sum(each.outcome == "failed" for each in ended),
            "cancelled": 0,
        }
        wrong = []
        for outcome, count in seen.items():
            there = total("trtbuild_requests_total", outcome=outcome)
            if not count <= there <= count + left:
                wrong.append(f"{there:.0f} answers ended with {outcome}; clients saw {count}, and {left} did not look")
        sums = [total("trtbuild_requests_total"), total("trtbuild_request_seconds_count")]
        if sums[0] != sums[1] or not sum(seen.values()) <= sums[0] <= sum(seen.values()) + left:
            wrong.append(f"{sums} answers ended; clients saw {sum(seen.values())}, and {left} did not look")
        gauges = ("trtbuild_running_requests", "trtbuild_waiting_requests", "trtbuild_cache_used_ratio")
        left_over = {name: total(name, gauge=True) for name in (*gauges, "nv_inference_pending_request_count")}
        return wrong + [f"{name} is {value:g} at the end" for name, value in left_over.items() if value]


def _joined(chunks: list[Chunk]) -> Chunk:
    return dataclasses.replace(
        chunks[-1],
        text="".join(chunk.text for chunk in chunks),
        token_ids=tuple(token for chunk in chunks for token in chunk.token_ids),
        top_log_probs=tuple(step for chunk in chunks for step in chunk.top_log_probs),
    )


def verdicts(soak: Soak) -> list[Property]:
    """The table."""
    ended, lives = soak.load.ended, soak.lives
    died = {life.number: life.died if life.end != "stopped" else None for life in lives}
    for each in ended:
        soak.judge.look(each, died[each.life])
    broken = [f"request {each.wanted.number}: {text}" for each in ended for text in each.violations]
    malformed = [each for each in ended if each.wanted.kind is Kind.MALFORMED]
    known = [each.identical for each in ended if each.identical is not None]
    late = [_after_death(each, died) for each in ended]
    own = [life.end for life in lives]
    looks = sum(life.checks.get("looks", 0) for life in lives)
    failures = [life.checks["failure"] for life in lives if life.checks.get("failure")]
    exceptions = sum(life.exceptions for life in lives)
    planned = {end for _, _, end in KILLS}
    unknown = [end for end in own if end not in (*planned, "crashed", "stopped")]
    answers = sum(each.finished_answers for each in ended)
    tokens = sum(len(chunk.token_ids) for each in ended for chunk in each.chunks)
    lines = [
        Property("every request ended", not soak.hung, f"{len(ended)} did, {len(soak.hung)} did not"),
        Property(
            "as it should: tokens in order, none lost or twice, text theirs",
            not broken,
            f"{answers} answers, {tokens} tokens; {len(broken)} faults",
        ),
        Property(
            "known answers: identical, or apart from a near tie on",
            not any("known answer" in text for text in broken) and bool(known),
            f"{sum(map(bool, known))} of {len(known)} identical",
        ),
        Property(
            "every malformed request got an error",
            not any(each.violations for each in malformed) and bool(malformed),
            f"{len(malformed)} of {len({each.wanted.spoiled for each in malformed})} kinds",
        ),
        Property(
            f"a dead server's requests failed within {ERROR_SECONDS:.0f} s",
            max(late) <= ERROR_SECONDS,
            f"{sum(seconds > 0 for seconds in late)} requests, the last after {max(late):.1f} s",
        ),
        Property(
            "servers ended as planned",
            planned <= set(own) and not unknown and not any(life.left for life in lives),
            f"{dict(Counter(own))}; {sum(life.left for life in lives)} processes left",
        ),
        Property("the books are right at every step", looks > 0 and not failures, f"{looks} looks"),
        Property("no exception in the servers' logs", not exceptions, f"{exceptions}"),
        Property(
            "metrics are what clients saw", not soak.metrics, "; ".join(soak.metrics) or "all equal, nothing left"
        ),
    ]
    return [*lines, *_flatness(soak)]


def _after_death(ended: Ended, died: dict[int, float | None]) -> float:
    """Seconds for which a request was open at a server that was dead."""
    death = died[ended.life]
    return 0.0 if death is None else max(0.0, ended.ended - max(death, ended.sent))


def longest(soak: Soak) -> Growth | None:
    """The growth over the longest time between two starts."""
    found = [growth(life.samples) for life in soak.lives if life.samples]
    return max((each for each in found if each is not None), key=lambda each: each.seconds, default=None)


def _flatness(soak: Soak) -> list[Property]:
    found = longest(soak)
    if found is None:
        return [Property("memory is flat", False, "not seen for a minute")] if soak.seconds > SHORT_SECONDS else []
    return [
        Property(
            f"memory grows by less than {MEGABYTES_PER_MINUTE:g} MB/min",
            found.per_minute - 2 * found.error < MEGABYTES_PER_MINUTE,
            f"{found.per_minute:+.2f} ± {found.error:.2f} in {found.seconds:.0f} s at {found.megabytes:.0f} MB, "
            f"{found.server_per_minute:+.2f} in tritonserver",
        ),
        Property(
            f"open files grow by less than {FILES_PER_MINUTE:g} a minute, /dev/shm as memory",
            found.files_per_minute < FILES_PER_MINUTE and found.shared_per_minute < MEGABYTES_PER_MINUTE,
            f"{found.files_per_minute:+.2f} files/min, {found.shared_per_minute:+.3f} MB/min",
        ),
    ]


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def report(soak: Soak, seed: int, load: tuple[float, float, float]) -> dict[str, Any]:
    """For JSON, after `verdicts`."""
    ended = soak.load.ended
    found = longest(soak)
    return {
        "seed": seed,
        "capacity_requests_per_s": soak.capacity,
        "arrivals_per_s": soak.rate,
        "machine_load": {"before": load, "after": os.getloadavg(), "cpus": os.cpu_count()},
        "requests": {
            kind.value: dict(Counter(each.outcome for each in ended if each.wanted.kind is kind)) for kind in Kind
        },
        "violations": [
            {"request": repr(each.wanted), "life": each.life, "outcome": each.outcome, "what": each.violations}
            for each in ended
            if each.violations
        ],
        "hung": [repr(wanted) for wanted in soak.hung],
        "growth": dataclasses.asdict(found) if found else None,
        "servers": [describe(life) for life in soak.lives],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("compiled", type=Path, help="what `trtbuild compile` made")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--load", type=float, default=1.2, help="arrivals by what the server can answer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--codes", type=float, default=0.0, help="share of requests that want errors as gRPC statuses")
    parser.add_argument("--json", type=Path, help="everything that was measured")
    arguments = parser.parse_args()
    load = os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="trtbuild-soak-") as folder:
        options = (arguments.minutes, arguments.load, arguments.seed, arguments.codes)
        soak = Soak(arguments.compiled, Path(folder), *options)
        soak.run()
        lines = verdicts(soak)
        document = {**report(soak, arguments.seed, load), "properties": [dataclasses.asdict(line) for line in lines]}
        if arguments.json:
            with atomic_file(arguments.json) as file:
                file.write_text(json.dumps(document, indent=1) + "\n")
    for kind, outcomes in document["requests"].items():
        print(f"{kind:24} {', '.join(f'{count} {outcome}' for outcome, count in sorted(outcomes.items()))}")
    for line in lines:
        print(f"{'PASS' if line.holds else 'FAIL'}  {line.name:66} {line.found}")
    for violation in document["violations"][:20]:
        print(f"      {violation['what']} {violation['request']}")
    return 0 if all(line.holds for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
