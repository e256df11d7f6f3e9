"""The Triton model's inputs and outputs, as data: config.pbtxt is written from it and triton_model.py follows it.

Names are those of NVIDIA's TensorRT-LLM repositories, so their clients, the generate endpoints and Triton's OpenAI
front end (which always sends the two penalties) work unchanged; `messages`, `finish_reason` and `output_ids` are ours.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor of config.pbtxt; `dims` leave out the batch dimension."""

    name: str
    data_type: str
    dims: tuple[int, ...]
    optional: bool = False


INPUTS = (
    TensorSpec("text_input", "TYPE_STRING", (1,), optional=True),
    TensorSpec("messages", "TYPE_STRING", (1,), optional=True),
    TensorSpec("max_tokens", "TYPE_INT32", (1,), optional=True),
    TensorSpec("stream", "TYPE_BOOL", (1,), optional=True),
    TensorSpec("temperature", "TYPE_FP32", (1,), optional=True),
    TensorSpec("top_k", "TYPE_INT32", (1,), optional=True),
    TensorSpec("top_p", "TYPE_FP32", (1,), optional=True),
    TensorSpec("random_seed", "TYPE_UINT64", (1,), optional=True),
    TensorSpec("seed", "TYPE_UINT64", (1,), optional=True),
    TensorSpec("frequency_penalty", "TYPE_FP32", (1,), optional=True),
    TensorSpec("presence_penalty", "TYPE_FP32", (1,), optional=True),
    TensorSpec("stop_words", "TYPE_STRING", (-1,), optional=True),
    TensorSpec("exclude_input_in_output", "TYPE_BOOL", (1,), optional=True),
)
"""A request has one of `text_input`, a plain prompt, and `messages`, a JSON list of {"role", "content"} for the model's
chat template. `stream` (false) asks for a response as text appears instead of one with all of it. `max_tokens` is 256
by default; `seed` is the newer name of `random_seed`; the sampling defaults are SamplingParams'.
`exclude_input_in_output` (true, since a chat wants the answer) set to false puts the prompt before the text."""

OUTPUTS = (
    TensorSpec("text_output", "TYPE_STRING", (1,)),
    TensorSpec("finish_reason", "TYPE_STRING", (1,)),
    TensorSpec("output_ids", "TYPE_INT32", (-1,)),
)
"""`text_output` is what is new since the last response; `output_ids` the tokens since the last response, with the one
that ended the sequence; `finish_reason` is empty until the last response and there "stop", "length" or "cancelled"."""
