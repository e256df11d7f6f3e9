"""From a checked body to what the Triton model is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trtbuild.frontend.bodies import ChatBody, CompletionBody, GenerationBody, Priority, Seconds, parse_header
from trtbuild.frontend.errors import ApiError
from trtbuild.frontend.options import ServedModel
from trtbuild.triton.generation import Generation, Sampling

COMPLETION_TOKENS = 16
"""OpenAI's `max_tokens` for completions that name none. A chat that names none goes on to the model's end."""
_SEEDS = 2**64


@dataclass(frozen=True, slots=True)
class Asked:
    """What a client wants to know; one generation a prompt, each of which has `n` answers."""

    model: ServedModel
    generations: tuple[Generation, ...]
    n: int
    stream: bool
    include_usage: bool
    """Whether a stream ends with the numbers of tokens."""
    continuous_usage: bool
    """Whether each of its events has them so far."""
    top_logprobs: int | None = None
    """None: no log probabilities; else of how many tokens beside the one chosen."""
    echo: tuple[str, ...] = ()
    """What each prompt's texts begin with; empty: nothing."""


def ask_chat(body: ChatBody, model: ServedModel, headers: Mapping[str, str]) -> Asked:
    """`headers` have lower-case names. Raises ApiError (400) for fields that contradict each other."""
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "top_logprobs is only for logprobs: true.", param="top_logprobs")
    top = (body.top_logprobs or 0) if body.logprobs else None
    most = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    generation = Generation(
        messages=body.messages,
        sampling=_sampling(body, model.max_length if most is None else most, top),
        stream=bool(body.stream),
        priority=_priority(body, headers),
        queue_timeout=_queue_timeout(body, headers),
    )
    return Asked(model, (generation,), body.n or 1, bool(body.stream), *_usage(body), top)


def ask_completion(body: CompletionBody, model: ServedModel, headers: Mapping[str, str]) -> Asked:
    """As `ask_chat`."""
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise ApiError(400, "best_of other than n is not supported.", param="best_of", code="unsupported_parameter")
    if body.echo and body.logprobs is not None:
        raise ApiError(
            400, "echo with logprobs is not supported: the model gives none of the prompt.", param="logprobs"
        )
    most = COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    generations = tuple(
        Generation(
            prompt=prompt,
            sampling=_sampling(body, most, body.logprobs),
            stream=bool(body.stream),
            priority=_priority(body, headers),
            queue_timeout=_queue_timeout(body, headers),
        )
        for prompt in body.prompt
    )
    return Asked(
        model,
        generations,
        body.n or 1,
        bool(body.stream),
        *_usage(body),
        body.logprobs,
        echo=tuple(body.prompt) if body.echo else (),
    )


def _sampling(body: GenerationBody, max_tokens: int | None, top_logprobs: int | None) -> Sampling:
    return Sampling(
        max_tokens=max_tokens,
        min_tokens=body.min_tokens,
        # The model decodes greedily where nothing is said, OpenAI's API draws.
        temperature=1.0 if body.temperature is None else body.temperature,
        top_k=None if body.top_k == -1 else body.top_k,  # vLLM's word for all
        top_p=body.top_p,
        min_p=body.min_p,
        seed=None if body.seed is None else body.seed % _SEEDS,
        repetition_penalty=body.repetition_penalty,
        frequency_penalty=body.frequency_penalty,
        presence_penalty=body.presence_penalty,
        logit_bias=body.logit_bias,
        stop_words=tuple(body.stop or ()),
        ignore_eos=body.ignore_eos,
        log_probs=None if top_logprobs is None else True,
        top_log_probs=top_logprobs or None,
        n=body.n if body.n != 1 else None,
    )


def _priority(body: GenerationBody, headers: Mapping[str, str]) -> int:
    if body.priority is not None:
        return body.priority
    value = headers.get("x-priority")
    return 0 if value is None else int(parse_header(Priority, "X-Priority", value))


def _queue_timeout(body: GenerationBody, headers: Mapping[str, str]) -> float | None:
    value = headers.get("x-request-timeout")
    if body.timeout is not None or value is None:
        return body.timeout
    return float(parse_header(Seconds, "X-Request-Timeout", value))


def _usage(body: GenerationBody) -> tuple[bool, bool]:
    options = body.stream_options
    wanted = bool(options and options.include_usage)
    return wanted, wanted and bool(options and options.continuous_usage_stats)
