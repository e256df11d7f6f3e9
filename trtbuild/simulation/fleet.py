"""How many replicas a load needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from trtbuild.errors import InputError
from trtbuild.progress import Progress, Silent
from trtbuild.simulation.outcome import Outcome, has_limits
from trtbuild.simulation.workload import Workload
from trtbuild.slo import Slo

Serve = Callable[[Workload], Outcome]
"""What becomes of the requests of one replica."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A number of replicas, and what it came to."""

    replicas: int
    good_share: float
    """Of the requests that have objectives, on all replicas."""
    worst_share: float
    """Of the replica that kept the fewest."""
    goodput: float
    """Requests per second that kept to their objectives, over the time until the last replica was done."""


def split(workload: Workload, replicas: int) -> list[Workload]:
    """Round robin, as a balancer that knows nothing of the replicas does it: request i goes to replica i mod n. Each
    sees every n-th arrival, which of a Poisson process is more regular (Erlang) than one of a lower rate."""
    return [
        Workload(*(getattr(workload, field.name)[first::replicas] for field in fields(Workload)))
        for first in range(min(replicas, len(workload.arrivals)))
    ]


def try_fleet(workload: Workload, replicas: int, slo: Slo, serve: Serve, progress: Progress | None = None) -> Tried:
    """Every replica has a scheduler and a cache of its own."""
    progress = progress or Silent()
    good = due = 0
    worst, end = 1.0, 0.0
    for number, part in enumerate(split(workload, replicas)):
        progress.update(number, replicas)
        outcome = serve(part)
        own_good, own_due = int(outcome.good(part, slo).sum()), int(has_limits(part, slo).sum())
        good, due = good + own_good, due + own_due
        worst = min(worst, own_good / own_due if own_due else 1.0)
        end = max(end, float(part.arrivals[0]) + outcome.seconds)
    seconds = end - float(workload.arrivals[0])
    return Tried(replicas, good / due, worst, good / seconds if seconds else 0.0)


def size_fleet(
    workload: Workload,
    share: float,
    slo: Slo,
    serve: Serve,
    *,
    most: int = 4096,
    progress: Progress | None = None,
) -> list[Tried]:
    """The fewest replicas with which `share` of the requests are good; all that were tried, by replicas.

    Doubles until it is enough, then bisects: more replicas are taken never to be worse. Raises InputError if `most`, or
    a replica for each request, are not enough.
    """
    progress, most = progress or Silent(), min(most, len(workload.arrivals))
    tried: dict[int, Tried] = {}

    def enough(replicas: int) -> bool:
        progress.stage(f"{replicas} replica{'s' if replicas > 1 else ''}")
        tried[replicas] = try_fleet(workload, replicas, slo, serve, progress)
        return tried[replicas].good_share >= share

    too_few, found = 0, 1
    while not enough(found):
        if found == most:
            best = tried[found].good_share
            raise InputError(
                f"{found} replicas keep {best:.2%} of the requests within {'; '.join(slo.lines())}, not {share:.2%}, "
                "and more would not help. Loosen --slo, or take a faster server."
            )
        too_few, found = found, min(2 * found, most)
    while found - too_few > 1:
        middle = (too_few + found) // 2
        if enough(middle):
            found = middle
        else:
            too_few = middle
    return [tried[replicas] for replicas in sorted(tried)]


def fewest(tried: list[Tried], share: float) -> Tried:
    """The smallest fleet that is enough."""
    return next(each for each in tried if each.good_share >= share)
