"""README.md and Dockerfile of an emitted folder, from templates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trtbuild.serving.config import ServingConfig
from trtbuild.serving.interface import INPUTS, OUTPUTS, TensorSpec
from trtbuild.serving.sampling import DEFAULT_MAX_TOKENS
from trtbuild.triton.config import DEFAULT_PRIORITY, PRIORITY_LEVELS, QUEUE_POLICIES
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
    "frequency_penalty": "For each time that a token was generated, -2 to 2 (0).",
    "presence_penalty": "For a token that was generated, -2 to 2 (0).",
    "stop_words": "Texts that end the answer and are not part of it.",
    "exclude_input_in_output": "Whether the prompt is left out of the text (true).",
    "text_output": "What is new since the last response.",
    "finish_reason": 'Empty until the last response, and there "stop", "length" or "cancelled".',
    "output_ids": "The tokens since the last response.",
}


def readme(serving: ServingConfig, *, priorities: bool) -> str:
    """README.md for the folder that serves `serving`."""
    return _render("README.md.j2", serving, priorities=priorities)


def dockerfile(serving: ServingConfig) -> str:
    """The Dockerfile beside it."""
    return _render("Dockerfile.j2", serving)


def _render(template: str, serving: ServingConfig, **more: Any) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown and a Dockerfile, from our own values
    )
    return environment.get_template(template).render({**_values(serving), **more})


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
        "levels": PRIORITY_LEVELS,
        "default_priority": DEFAULT_PRIORITY,
        "policies": {
            level: (policy.timeout_microseconds // 1_000_000, policy.max_queue_size)
            for level, policy in sorted(QUEUE_POLICIES.items())
        },
    }


def _row(spec: TensorSpec) -> dict[str, str]:
    shape = ", ".join("n" if size == -1 else str(size) for size in (1, *spec.dims))
    return {
        "name": spec.name,
        "type": spec.data_type.removeprefix("TYPE_"),
        "shape": f"[{shape}]",
        "meaning": _MEANING[spec.name],
    }
