"""The metrics that the emitted model exports through Triton. All have the label `model`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HistogramSpec:
    """A histogram in seconds."""

    meaning: str
    bounds: tuple[float, ...]
    """Upper bounds of its buckets, without infinity."""
    by_priority: bool = True
    """Whether it has the label `priority`."""


_LONG = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 10.0)

HISTOGRAMS = {
    "trtbuild_time_to_first_token_seconds": HistogramSpec("From a request's arrival to its first token.", _LONG),
    "trtbuild_inter_token_latency_seconds": HistogramSpec("Between two tokens of an answer.", _SHORT),
    "trtbuild_queue_seconds": HistogramSpec("From a request's arrival to its first step.", _LONG),
    "trtbuild_request_seconds": HistogramSpec("From a request's arrival to the end of its answer.", _LONG),
    "trtbuild_step_seconds": HistogramSpec("Of a step of the model.", _SHORT, by_priority=False),
}
GAUGES = {
    "trtbuild_running_requests": "Answers that are being computed.",
    "trtbuild_waiting_requests": "Answers that wait for a place, by priority.",
    "trtbuild_cache_used_ratio": "Share of the KV cache's pages that answers use.",
    "trtbuild_token_budget": "Tokens of prompts that a step may take beside answers.",
}
OUTCOMES = ("stop", "length", "cancelled", "error", "refused", "timeout")
COUNTERS = {
    "trtbuild_requests_total": f"Answers by priority and outcome: {', '.join(OUTCOMES)}.",
    "trtbuild_prompt_tokens_total": "Tokens of prompts, those from the cache included.",
    "trtbuild_cached_prompt_tokens_total": "Tokens of prompts whose keys and values were in the cache.",
    "trtbuild_generated_tokens_total": "Tokens of answers.",
    "trtbuild_preemptions_total": "Answers that gave way to more urgent ones, or for want of pages.",
    "trtbuild_steps_total": "Steps of the model.",
}
