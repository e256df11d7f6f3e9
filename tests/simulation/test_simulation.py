from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from trtbuild.errors import InputError
from trtbuild.serving.work import Work
from trtbuild.simulation.continuous import continuous
from trtbuild.simulation.cost import DECODERS, GPUS, Decoder, Gpu, Roofline
from trtbuild.simulation.outcome import Outcome, weighted_percentile
from trtbuild.simulation.run import Policy, serve
from trtbuild.simulation.server import Server, modelled
from trtbuild.simulation.summary import check_objectives, summary
from trtbuild.simulation.workload import Workload, mixed
from trtbuild.slo import Slo, parse_slo

UNIT = Roofline(Decoder("unit", 1e9, 1, 1, 1, 1, 1.0), Gpu("unit", 1e9, 1e18, 1.1112e9), 1, 1.0, 1.0, launch=0.0)
"""Reads its weights in a second, the cache in next to nothing, and computes at once: every step takes one."""


def near(value: object) -> object:
    return pytest.approx(value, rel=1e-5)


def unit(batch: int) -> Server:
    return modelled(UNIT, batch=batch, slo=Slo())


def workload(*requests: tuple[float, int, int, int]) -> Workload:
    """(arrival, prompt, answer, priority) each."""
    arrivals, prompts, answers, priorities = zip(*requests, strict=True)
    return Workload(np.array(arrivals, float), np.array(prompts), np.array(answers), np.array(priorities))


def test_a_step_reads_the_weights_and_the_cache_or_multiplies() -> None:
    cost = Roofline(DECODERS["8b"], GPUS["h100"], bandwidth_share=1.0, flops_share=1.0, launch=0.0)
    # 16.06 GB of weights; 128 KiB a position: 32 layers x 8 heads x 128 x 2 (keys, values) x 2 bytes.
    assert DECODERS["8b"].kv_bytes == 131_072
    assert cost.step(Work(answers=1)) == pytest.approx(16.06e9 / 3.35e12)
    assert cost.step(Work(answers=32, answered=32 * 4096)) == pytest.approx((16.06e9 + 32 * 4096 * 131_072) / 3.35e12)
    assert cost.step(Work(1, 8192, 8192, 0)) == pytest.approx(2 * 8.03e9 * 8192 / 989e12)
    eight = Roofline(DECODERS["70b"], GPUS["h100"], 8, 1.0, 1.0, launch=0.0, all_reduce=1e-5)
    assert eight.step(Work(answers=1)) == pytest.approx(141.2e9 / (8 * 3.35e12) + 160 * 1e-5)
    assert eight.positions == int((0.9 * 8 * 80e9 - 141.2e9) / (2 * 80 * 8 * 128 * 2))


@pytest.mark.parametrize("policy", [Policy.FIFO, Policy.ADAPTIVE])
def test_continuous_batching_by_hand(policy: Policy) -> None:
    asked = workload((0.0, 5, 3, 1), (0.5, 5, 2, 1), (10.0, 5, 1, 1))
    outcome = serve(policy, asked, unit(4))
    # A: 0..1, 2, 3; B joins at 1: 2, 3; C: 11.
    assert outcome.first.tolist() == near([1.0, 1.5, 1.0])
    assert outcome.per_token.tolist() == near([1.0, 1.0, 0.0])
    assert outcome.steps == 4 and outcome.seconds == near(11.0)


def test_static_batching_by_hand() -> None:
    asked = workload((0.0, 5, 3, 1), (0.5, 5, 2, 1), (0.6, 5, 4, 1))
    outcome = serve(Policy.STATIC, asked, unit(4))
    # A alone: 1, 2, 3; then B and C together: 4 ... 7.
    assert outcome.first.tolist() == near([1.0, 3.5, 3.4])
    assert outcome.per_token.tolist() == near([1.0, 1.0, 1.0])
    assert outcome.steps == 7


def test_a_priority_is_worth_something_only_where_it_is_looked_at() -> None:
    asked = workload((0.0, 5, 100, 2), (0.0, 5, 100, 2), (1.5, 5, 2, 1))
    assert serve(Policy.ADAPTIVE, asked, unit(2)).first[2] == near(1.5)
    assert serve(Policy.FIFO, asked, unit(2)).first[2] > 90


def test_the_workload_is_what_was_asked_for_and_the_same_again() -> None:
    first, again = (mixed(20_000, 5.0, urgent=0.3, seed=4) for _ in range(2))
    assert all(np.array_equal(getattr(first, n), getattr(again, n)) for n in ("arrivals", "prompts", "priorities"))
    assert first.arrivals[-1] / 20_000 == pytest.approx(0.2, rel=0.03)
    assert np.median(first.prompts) == pytest.approx(500, rel=0.03)
    assert (first.priorities == 1).mean() == pytest.approx(0.3, abs=0.01)


def test_a_summary_by_hand() -> None:
    asked = workload((0.0, 5, 3, 1), (0.5, 5, 2, 2), (10.0, 5, 1, 1))
    outcome = serve(Policy.FIFO, asked, unit(4))
    found = summary("fifo", asked, outcome, parse_slo(["ttft=1.2s,tpot=1.01s"]))
    assert (found.good_share, found.good_share_urgent) == (near(2 / 3), 1.0)
    assert found.goodput == near(2 / 11) and found.tokens_per_second == near(6 / 11)
    assert found.ttft_p50 == near(1.0) and found.not_served == 0
    # A ends after 3 s, B after 2.5; a priority's own limit stands in place of the general one, and others do not count.
    assert outcome.good(asked, parse_slo(["e2e=2.7s"])).tolist() == [False, True, True]
    assert outcome.good(asked, parse_slo(["e2e=2.7s", "2:e2e=2s"])).tolist() == [False, False, True]
    assert summary("fifo", asked, outcome, parse_slo(["2:ttft=2s"])).good_share == 1.0
    assert summary("fifo", asked, outcome, parse_slo(["2:ttft=2s"])).goodput == near(1 / 11)
    with pytest.raises(InputError, match="no request has an objective \\(priority 3: ttft ≤ 1 s\\); .* are 1, 2"):
        check_objectives(parse_slo(["3:ttft=1s"]), asked)


def test_the_longest_gap_is_what_an_objective_for_each_is_held_against() -> None:
    # B's prompt is 3 s of arithmetic while A answers: gaps of 1, 3 (and of 1 on the mean of 4).
    asked = workload((0.0, 1, 5, 1), (0.5, 3000, 1, 1))
    slow = Roofline(UNIT.decoder, Gpu("slow", 1e9, 2e12, 1.1112e9), 1, 1.0, 1.0, launch=0.0)
    outcome = serve(Policy.FIFO, asked, modelled(slow, batch=4, slo=Slo()))
    assert outcome.longest.tolist() == pytest.approx([3.0, 0.0], rel=2e-3)
    assert outcome.per_token.tolist() == pytest.approx([6 / 4, 0.0], rel=2e-3)
    assert outcome.good(asked, parse_slo(["itl=2s"])).tolist() == [False, True]
    assert outcome.good(asked, parse_slo(["tpot=2s"])).tolist() == [True, True]


def test_under_load_the_adaptive_policy_keeps_more_promises() -> None:
    cost = Roofline(DECODERS["70b"], GPUS["h100"], 8)
    asked = mixed(800, 40.0, seed=1)
    slo = parse_slo(["ttft=1s,tpot=50ms"])
    server = modelled(cost, batch=256, slo=slo)
    good = [serve(policy, asked, server).good(asked, slo).sum() for policy in Policy]
    assert good[0] > good[1] > good[2]


def test_an_overload_does_not_make_everybody_late() -> None:
    """One request a second, and each takes two. In the order of deadlines number k begins at 2k and has its token after
    k + 1 seconds: two are in time. One that has waited for 1.92 s lets others pass: of two that came, the newer one."""
    asked = workload(*((float(second), 1, 2, 1) for second in range(12)))
    slo = parse_slo(["ttft=2.4s"])
    outcomes = [serve(Policy.ADAPTIVE, asked, modelled(UNIT, batch=1, slo=aims)) for aims in (Slo(), slo)]
    in_order, aiming = (np.flatnonzero(outcome.good(asked, slo)).tolist() for outcome in outcomes)
    assert in_order == [0, 1] and aiming == [0, 1, 3, 5, 7, 9, 11]
    assert not np.isnan(outcomes[1].last).any() and outcomes[0].steps == outcomes[1].steps == 24


def same(one: Outcome, other: Outcome) -> None:
    for name in Outcome.__slots__:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


@pytest.mark.parametrize("mixes", [True, False])
@pytest.mark.parametrize(("rate", "batch", "pages"), [(0.5, 256, 20_000), (12, 16, 20_000), (12, 64, 150), (40, 8, 40)])
def test_what_is_jumped_over_is_exactly_what_stepping_finds(mixes: bool, rate: float, batch: int, pages: int) -> None:
    """Few at once, a full batch, a full cache (which preempts), and requests that wait too long."""
    aims = parse_slo(["ttft=2s,tpot=50ms"])
    server = modelled(Roofline(DECODERS["70b"], GPUS["h100"], 8), batch=batch, slo=aims)
    server = replace(server, pages=pages, policy=replace(server.policy, mixes=mixes))
    if not mixes:  # slots, as in the native form
        server = replace(server, pages=batch, page_size=4096, capacity=4096)
    drawn = mixed(250, rate, seed=3)
    asked = replace(drawn, prompts=np.minimum(drawn.prompts, 2000), answers=np.minimum(drawn.answers, 400))
    asked.prompts[::9] = 1
    asked.answers[::7] = 1
    outcome = continuous(asked, server)
    same(outcome, continuous(asked, server, jumps=False))
    assert not mixes or pages >= 20_000 or outcome.preemptions


def test_percentiles_of_counted_values_are_numpys() -> None:
    source = np.random.default_rng(0)
    values, counts = source.random(50), source.integers(0, 9, 50)
    for percent in (0, 12.5, 50, 99, 100):
        expected = np.percentile(np.repeat(values, counts), percent)
        assert weighted_percentile(values, counts, percent) == pytest.approx(expected)
    assert weighted_percentile(np.zeros(2), np.zeros(2, np.int64), 50) is None


def test_the_gaps_of_all_answers_are_counted() -> None:
    # A's four gaps are 1, 3, 1 and 1 s; B and C have one each, of 1 s.
    asked = workload((0.0, 1, 5, 1), (0.5, 3000, 2, 1), (0.5, 1, 2, 1))
    slow = Roofline(UNIT.decoder, Gpu("slow", 1e9, 2e12, 1.1112e9), 1, 1.0, 1.0, launch=0.0)
    for jumps in (True, False):
        outcome = continuous(asked, modelled(slow, batch=4, slo=Slo()), jumps=jumps)
        found = np.repeat(outcome.gaps, outcome.gap_counts)
        assert sorted(found.tolist()) == pytest.approx([1, 1, 1, 1, 1, 3], rel=2e-3)
        assert outcome.longest.tolist() == pytest.approx([3, 1, 1], rel=2e-3)


@pytest.mark.parametrize("policy", Policy)
def test_requests_that_cannot_be_served_are_refused(policy: Policy) -> None:
    with pytest.raises(InputError, match="have 12 tokens together, .* at most 11: shorten them"):
        serve(policy, workload((0.0, 5, 7, 1)), replace(unit(4), capacity=11))
    with pytest.raises(InputError, match="has priority 4; this model knows 1 to 3"):
        serve(policy, workload((0.0, 5, 7, 4)), unit(4))
