"""What is asked, and when: everything follows from the options and the seed.

Each request has random numbers of its own, by its place in the run, and each kind of choice has a stream of its own: a
request is the same however many come before it, and changing the answers' lengths leaves the prompts as they were.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import islice, takewhile

import numpy as np

from trtbuild.errors import InputError
from trtbuild.loadtest.arrivals import Arrivals
from trtbuild.loadtest.lengths import Lengths, fixed
from trtbuild.loadtest.prompts import CountTokens, PromptMaker
from trtbuild.loadtest.shares import SharedPrefix
from trtbuild.loadtest.trace import TracedRequest

DEFAULT_SECONDS = 30.0
"""How long a run is if nothing says it."""
MOST_PLANNED = 1_000_000
"""More requests are a slip of the keyboard; their prompts are made before the run begins."""


class _Draw(IntEnum):
    """The streams of random numbers."""

    ARRIVALS = 0
    CHOICES = 1
    INPUT = 2
    OUTPUT = 3
    PROMPT = 4
    PREFIX = 5


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request, and what shall become of it."""

    index: int
    arrival: float | None
    """When it is due, in seconds from the start; None: when its client is free (a closed loop)."""
    prompt: str
    input_tokens: int | None
    """What the prompt was cut to; None for a trace's own text."""
    output_tokens: int
    priority: int
    """0: none is sent."""
    seed: int
    """Of the server's sampling."""
    cancel_after: int | None = None
    """The client goes away after so many tokens, 0 as soon as it has asked; None: it stays."""


@dataclass(frozen=True, slots=True)
class WorkloadOptions:
    """One of `arrivals`, `trace` and `clients` says when requests come.

    `shared_prefix` is in front of the request's own `input_tokens`. `most_input` and `most_output` cut what the
    distributions or the trace give. `cancel_share` of the requests are given up by their client after a part of the
    answer, drawn uniformly.
    """

    arrivals: Arrivals | None = None
    trace: tuple[TracedRequest, ...] = ()
    clients: int | None = None
    seconds: float | None = None
    requests: int | None = None
    seed: int = 0
    input_tokens: Lengths = field(default_factory=lambda: fixed(128))
    output_tokens: Lengths = field(default_factory=lambda: fixed(64))
    most_input: int | None = None
    most_output: int | None = None
    shared_prefix: SharedPrefix | None = None
    priorities: Mapping[int, float] = field(default_factory=dict)
    cancel_share: float = 0.0

    @property
    def limit_seconds(self) -> float | None:
        """Until when requests come; None: until there are enough, or the trace ends."""
        if self.seconds is None and self.requests is None and not self.trace:
            return DEFAULT_SECONDS
        return self.seconds


class Workload:
    """Makes the requests of a run."""

    def __init__(self, options: WorkloadOptions, text: str, count_tokens: CountTokens) -> None:
        """Prompts are cut from `text`. Raises InputError unless exactly one thing says when requests come."""
        if sum((options.arrivals is not None, bool(options.trace), options.clients is not None)) != 1:
            raise InputError("Say when requests come by one of --rate, --arrivals, --trace and --clients.")
        self.options = options
        self._maker = PromptMaker(text, count_tokens)
        self._prefixes = [
            self._maker.make(self._rng(_Draw.PREFIX, group), shared.tokens)
            for shared in ([options.shared_prefix] if options.shared_prefix else [])
            for group in range(shared.groups)
        ]
        self._priorities = sorted(options.priorities)
        self._bounds = np.cumsum([options.priorities[priority] for priority in self._priorities])

    def due(self) -> Sequence[tuple[float, TracedRequest | None]]:
        """When the requests of an open loop come, and what the trace says of each. Raises InputError for too many."""
        options, seconds = self.options, self.options.limit_seconds
        moments: Iterator[tuple[float, TracedRequest | None]]
        if options.arrivals is not None:
            rng = self._rng(_Draw.ARRIVALS, 0)
            moments = ((time, None) for time in options.arrivals.times(rng))
        else:
            moments = ((traced.arrival, traced) for traced in options.trace)
        if seconds is not None:
            moments = takewhile(lambda moment: moment[0] < seconds, moments)
        found = list(islice(moments, options.requests or MOST_PLANNED + 1))
        if len(found) > MOST_PLANNED:
            raise InputError(f"This run would have more than {MOST_PLANNED} requests; shorten it.")
        if not found:
            raise InputError("No request is due in this run; make it longer (--duration), or the rate higher.")
        return found

    def request(self, index: int, arrival: float | None = None, traced: TracedRequest | None = None) -> PlannedRequest:
        """The request in place `index`; what `traced` says comes before what the options say."""
        options = self.options
        choices = self._rng(_Draw.CHOICES, index)
        which_priority, which_prefix, cancels, cancelled_at = choices.random(4)
        traced = traced or TracedRequest(0.0)
        output = traced.output_tokens or options.output_tokens.draw(self._rng(_Draw.OUTPUT, index))
        output = min(output, options.most_output or output)
        prompt, tokens = traced.prompt, None
        if prompt is None:
            own = traced.prompt_tokens or options.input_tokens.draw(self._rng(_Draw.INPUT, index))
            own = min(own, options.most_input or own)
            prefix = self._prefixes[int(which_prefix * len(self._prefixes))] if self._prefixes else ""
            prompt = self._maker.make(self._rng(_Draw.PROMPT, index), own, prefix)
            tokens = own + (options.shared_prefix.tokens if options.shared_prefix else 0)
        return PlannedRequest(
            index,
            arrival,
            prompt,
            tokens,
            output,
            traced.priority if traced.priority is not None else self._priority(which_priority),
            int(choices.integers(2**31)),
            int(cancelled_at * output) if cancels < options.cancel_share else None,
        )

    def _priority(self, place: float) -> int:
        """The one whose share of [0, 1) holds `place`."""
        if not self._priorities:
            return 0
        return self._priorities[min(int(np.searchsorted(self._bounds, place, "right")), len(self._priorities) - 1)]

    def _rng(self, draw: _Draw, index: int) -> np.random.Generator:
        return np.random.default_rng([self.options.seed, draw, index])
