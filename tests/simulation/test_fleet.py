from __future__ import annotations

import pytest

from tests.simulation.test_simulation import unit, workload
from trtbuild.errors import InputError
from trtbuild.simulation.fleet import fewest, size_fleet, split, try_fleet
from trtbuild.simulation.outcome import Outcome
from trtbuild.simulation.run import Policy, serve
from trtbuild.simulation.workload import Workload
from trtbuild.slo import parse_slo

SLO = parse_slo(["ttft=1.01s"])
ASKED = workload(*((number / 4, 5, 1, 1) for number in range(40)))
"""Four requests a second, of which a replica takes one at a time and a second for it: four replicas have no queue."""


def alone(part: Workload) -> Outcome:
    return serve(Policy.ADAPTIVE, part, unit(1))


def test_four_a_second_at_a_second_each_need_four_replicas() -> None:
    tried = size_fleet(ASKED, 0.99, SLO, alone)
    # With fewer, the queue of each grows from its first request on, which alone is in time.
    assert [(each.replicas, each.good_share) for each in tried] == [(1, 1 / 40), (2, 2 / 40), (3, 3 / 40), (4, 1.0)]
    assert fewest(tried, 0.99).replicas == 4
    # The last one comes at 9.75 s and takes one.
    assert tried[-1].goodput == pytest.approx(40 / 10.75, rel=1e-4) and tried[-1].worst_share == 1.0


@pytest.mark.parametrize(("share", "replicas"), [(0.025, 1), (0.05, 2), (0.06, 3), (0.1, 4)])
def test_a_smaller_share_needs_fewer(share: float, replicas: int) -> None:
    assert fewest(size_fleet(ASKED, share, SLO, alone), share).replicas == replicas


def test_requests_are_dealt_in_turn() -> None:
    parts = split(ASKED, 3)
    assert [len(part.arrivals) for part in parts] == [14, 13, 13]
    assert parts[1].arrivals[:3].tolist() == [0.25, 1.0, 1.75]
    assert len(split(ASKED, 100)) == 40


def test_one_replica_is_the_server_itself() -> None:
    assert try_fleet(ASKED, 1, SLO, alone).good_share == alone(ASKED).good(ASKED, SLO).mean()


def test_what_no_number_of_replicas_can_do_is_refused() -> None:
    with pytest.raises(InputError, match="40 replicas keep 0.00% of the requests within ttft ≤ 500 ms, not 99.00%"):
        size_fleet(ASKED, 0.99, parse_slo(["ttft=500ms"]), alone)
    with pytest.raises(InputError, match="3 replicas keep 7.50%"):
        size_fleet(ASKED, 0.99, SLO, alone, most=3)
