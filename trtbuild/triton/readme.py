"""README.md and Dockerfile of an emitted folder, from templates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trtbuild.serving.config import ServingConfig
from trtbuild.serving.interface import INPUTS, OUTPUTS, TensorSpec
from trtbuild.serving.metric_names import COUNTERS, GAUGES, HISTOGRAMS
from trtbuild.serving.sampling import DEFAULT_MAX_TOKENS
from trtbuild.serving.waiting import WAIT_SHARE
from trtbuild.triton.containers import NEWEST, container_for

_TEMPLATES = Path(__file__).parent / "templates"

_MEANING = {
    "text_input": "The prompt, as it is. One of this and `messages` is given.",
    "messages": 'A chat for the model\'s template: a JSON list of `{"role": …, "content": …}`.',
    "max_tokens": f"The most tokens to generate ({DEFAULT_MAX_TOKENS}).",
    "stream": "Whether text is sent as it appears (false: one response with all of it).",
    "temperature": "Divides the logits; 0 is greedy.",
    "top_k": "Draw among the k likeliest tokens; 1 is greedy, 0 is all.",
    "top_p": "Draw among the likeliest tokens that together have this probability, 0 to 1.",
    "random_seed": "The same seed draws the same tokens.",
    "seed": "Newer name of `random_seed`.",
    "min_p": "Draw among the tokens at least this times as probable as the likeliest, 0 to 1.",
    "repetition_penalty": "Above 1: tokens of the prompt and of the answer become less likely (1).",
    "logit_bias": 'A JSON object of token ids and what is added to their logits, -100 to 100: `{"42": -100}`.',
    "min_tokens": "No end of sequence and no stop word before so many tokens (0).",
    "ignore_eos": "Whether to go on after an end of sequence (false).",
    "return_log_probs": "Whether `output_log_probs` is sent (false).",
    "num_top_log_probs": "How many of the likeliest tokens `top_log_probs` has for each token, up to 20 (0).",
    "num_return_sequences": "How many answers are drawn, each with responses of its own (1).",
    "priority": "Who goes first: 1 is the highest, 0 the default.",
    "queue_timeout_ms": "How long the request may wait to be started.",
    "frequency_penalty": "For each time that a token was generated, -2 to 2 (0).",
    "presence_penalty": "For a token that was generated, -2 to 2 (0).",
    "stop_words": "Texts that end the answer and are not part of it.",
    "exclude_input_in_output": "Whether the prompt is left out of the text (true).",
    "text_output": "What is new since the last response.",
    "finish_reason": 'Empty until the last response, and there "stop", "length" or "cancelled".',
    "output_ids": "The tokens since the last response.",
    "sequence_index": "Which of the answers this is, from 0.",
    "prompt_tokens": "How many tokens the prompt has.",
    "cached_tokens": "How many of them were in the cache.",
    "output_log_probs": "Natural logarithms of the tokens' probabilities, if asked for.",
    "top_log_probs": "JSON: for each token the likeliest ones as `[[id, log probability], …]`, if asked for.",
}


def readme(serving: ServingConfig) -> str:
    """README.md for the folder that serves `serving`."""
    return _render("README.md.j2", serving)


def dockerfile(serving: ServingConfig) -> str:
    """The Dockerfile beside it."""
    return _render("Dockerfile.j2", serving)


def _render(template: str, serving: ServingConfig) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown and a Dockerfile, from our own values
    )
    return environment.get_template(template).render(_values(serving))


def _values(serving: ServingConfig) -> dict[str, Any]:
    engine = next((backend for backend in serving.backends if backend.kind != "onnxruntime"), None)
    exact = container_for(engine.version) if engine and engine.kind == "tensorrt" else None
    container = exact or NEWEST
    return {
        "name": serving.model_name,
        "cache": serving.cache,
        "engine": engine,
        "kind": engine.kind if engine else "onnxruntime",
        "onnx": any(backend.kind == "onnxruntime" for backend in serving.backends),
        "exact": exact,
        "container": container,
        "targets": ", ".join(engine.targets) if engine else "",
        "inputs": [_row(spec) for spec in INPUTS],
        "outputs": [_row(spec) for spec in OUTPUTS],
        "levels": serving.levels,
        "aims": any(level.ttft_objective is not None for level in serving.levels),
        "wait_percent": round(100 * WAIT_SHARE),
        "itl_objective": serving.itl_objective,
        "default_priority": serving.default_priority,
        "counters": {**GAUGES, **COUNTERS},
        "histograms": {name: spec.meaning for name, spec in HISTOGRAMS.items()},
    }


def _row(spec: TensorSpec) -> dict[str, str]:
    shape = ", ".join("n" if size == -1 else str(size) for size in (1, *spec.dims))
    return {
        "name": spec.name,
        "type": spec.data_type.removeprefix("TYPE_"),
        "shape": f"[{shape}]",
        "meaning": _MEANING[spec.name],
    }
