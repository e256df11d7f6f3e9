"""The latencies of a request and how many of them are summed up, as NVIDIA's AIPerf defines them but for one thing.

The one thing: they count from when a request was due, not from when it was sent. A generator that waits for a slow
server before it sends the next request would otherwise leave out what its users wait for ("coordinated omission", Gil
Tene).

    TTFT    from then to the first response that brought a token. AIPerf: time_to_first_token.
    ITL     each gap between two responses that brought tokens, however many the later one brought: what a reader sees.
            AIPerf: inter_chunk_latency; vLLM's `bench serve`: ITL. With a token a response it is the time between two
            tokens; `tokens_per_response` says if it is.
    TPOT    (last token - first token) / (tokens - 1), one value a request. AIPerf: inter_token_latency.
    E2E     from then to the last response. AIPerf: request_latency.
    jitter  the standard deviation of the request's gaps (all of them, not a sample). AIPerf has none.

Percentiles are numpy's default: linear interpolation between the two values around the place (n - 1) * p, Hyndman and
Fan's type 7. Definitions: https://docs.nvidia.com/aiperf/reference/ai-perf-metrics-reference
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from trtbuild.loadtest.record import Record
from trtbuild.slo import Latency, Limits


@dataclass(frozen=True, slots=True)
class Latencies:
    """Of one request, in seconds; None where there were too few tokens."""

    ttft: float | None
    gaps: tuple[float, ...]
    tpot: float | None
    e2e: float
    jitter: float | None

    def of(self, latency: Latency) -> float | None:
        """What an objective is held against; for ITL the longest gap, since the objective is for each of them."""
        match latency:
            case Latency.TTFT:
                return self.ttft
            case Latency.ITL:
                return max(self.gaps, default=None)
            case Latency.TPOT:
                return self.tpot
            case Latency.E2E:
                return self.e2e

    def meets(self, limits: Limits) -> bool:
        """Whether every limit is kept; what cannot be said (the gaps of one token) is kept."""
        found = ((self.of(latency), limit) for latency, limit in limits.items())
        return all(value is None or value <= limit for value, limit in found)


def latencies(record: Record) -> Latencies:
    """Of a request of which a response came."""
    times = [time for time, tokens in zip(record.times, record.tokens, strict=True) if tokens]
    gaps = tuple(later - earlier for earlier, later in pairwise(times))
    tokens = record.output_tokens
    return Latencies(
        ttft=times[0] - record.scheduled if times else None,
        gaps=gaps,
        tpot=(times[-1] - times[0]) / (tokens - 1) if tokens > 1 else None,
        e2e=(record.times[-1] if record.times else record.ended) - record.scheduled,
        jitter=float(np.std(gaps)) if len(gaps) > 1 else None,
    )


@dataclass(frozen=True, slots=True)
class Distribution:
    """Of `count` values, in seconds."""

    count: int
    mean: float
    std: float
    min: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


def distribution(values: Iterable[float | None]) -> Distribution | None:
    """Of those that are not None; None if there are none."""
    found = np.array([value for value in values if value is not None], dtype=np.float64)
    if not found.size:
        return None
    p50, p90, p95, p99 = (float(value) for value in np.percentile(found, [50, 90, 95, 99]))
    mean, std = float(found.mean()), float(found.std())
    return Distribution(found.size, mean, std, float(found.min()), p50, p90, p95, p99, float(found.max()))
