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
    TensorSpec("min_p", "TYPE_FP32", (1,), optional=True),
    TensorSpec("repetition_penalty", "TYPE_FP32", (1,), optional=True),
    TensorSpec("frequency_penalty", "TYPE_FP32", (1,), optional=True),
    TensorSpec("presence_penalty", "TYPE_FP32", (1,), optional=True),
    TensorSpec("logit_bias", "TYPE_STRING", (1,), optional=True),
    TensorSpec("stop_words", "TYPE_STRING", (-1,), optional=True),
    TensorSpec("min_tokens", "TYPE_INT32", (1,), optional=True),
    TensorSpec("ignore_eos", "TYPE_BOOL", (1,), optional=True),
    TensorSpec("return_log_probs", "TYPE_BOOL", (1,), optional=True),
    TensorSpec("num_top_log_probs", "TYPE_INT32", (1,), optional=True),
    TensorSpec("num_return_sequences", "TYPE_INT32", (1,), optional=True),
    TensorSpec("exclude_input_in_output", "TYPE_BOOL", (1,), optional=True),
    TensorSpec("priority", "TYPE_INT32", (1,), optional=True),
    TensorSpec("queue_timeout_ms", "TYPE_INT32", (1,), optional=True),
)
"""A request has one of `text_input`, a plain prompt, and `messages`, a JSON list of {"role", "content"} for the model's
chat template. `stream` (false) asks for a response as text appears instead of one with all of it. `max_tokens` is 256
by default; `seed` is the newer name of `random_seed`; the sampling defaults are SamplingParams'. `logit_bias` is a JSON
object of token ids and what is added to their logits. `num_return_sequences` (1) answers are drawn, each with responses
of its own. `exclude_input_in_output` (true, since a chat wants the answer) set to false puts the prompt first.

`priority` is an input because Triton hands a request's own priority to no Python model: 1 is the highest, 0 (or none)
the default. `queue_timeout_ms` is how long the request may wait to be started; Triton's request parameter `timeout`, in
microseconds, does the same, and the shorter counts."""

OUTPUTS = (
    TensorSpec("text_output", "TYPE_STRING", (1,)),
    TensorSpec("finish_reason", "TYPE_STRING", (1,)),
    TensorSpec("output_ids", "TYPE_INT32", (-1,)),
    TensorSpec("sequence_index", "TYPE_INT32", (1,)),
    TensorSpec("prompt_tokens", "TYPE_INT32", (1,)),
    TensorSpec("cached_tokens", "TYPE_INT32", (1,)),
    TensorSpec("output_log_probs", "TYPE_FP32", (-1,)),
    TensorSpec("top_log_probs", "TYPE_STRING", (1,)),
)
"""`text_output` is what is new since the last response; `output_ids` the tokens since the last response, with the one
that ended the sequence; `finish_reason` is empty until the sequence's last response and there "stop", "length" or
"cancelled". `sequence_index` counts the answers to one request from 0. `prompt_tokens` are the prompt's,
`cached_tokens` those of them whose keys and values were in the cache already.

Only if asked for: `output_log_probs`, the natural logarithm of each of `output_ids`' probability under the model
(temperature 1, nothing penalised), and `top_log_probs`, a JSON list with, for each of `output_ids`, the most probable
tokens as [[id, log probability], …]."""
