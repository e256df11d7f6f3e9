"""config.pbtxt of the LLM model, written and read with Triton's own protobuf schema."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from trtbuild.errors import InputError
from trtbuild.serving.config import ServingConfig
from trtbuild.serving.interface import INPUTS, OUTPUTS, TensorSpec

PRIORITY_LEVELS = 3
DEFAULT_PRIORITY = 2
MAX_QUEUE_DELAY_MICROSECONDS = 2000
"""How long Triton gathers requests that arrive together. It is not there for throughput, since batches form inside the
model, but against lost wake-ups. With priorities Triton's batcher gives out the next batch only when the instance
waits for it, and is told so just before the instance does: whoever is first decides whether the requests already queued
go at once, or with the next request or after 500 ms (dynamic_batch_scheduler.cc and rate_limiter.cc, r24.10 to
r26.06). A burst that is handed over as one batch has no such moment: of bursts of 8 requests on two cores 25 of 60
stalled without the delay and none of 150 with it. It cannot help a burst of more requests than a batch takes (30 of 60
stalled at 24 requests), nor one of requests with different sets of inputs, which Triton never puts into one batch (84
of 100)."""


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """How long requests of one priority may queue, and how many."""

    timeout_microseconds: int
    """A request that queued this long is refused; a client may ask for a shorter time. (With 0 Triton ignores what the
    client asks for: PolicyQueue::Enqueue takes the smaller of the two.)"""
    max_queue_size: int
    """One request more is refused at once."""


QUEUE_POLICIES = {
    1: QueuePolicy(timeout_microseconds=30_000_000, max_queue_size=64),
    2: QueuePolicy(timeout_microseconds=120_000_000, max_queue_size=256),
    3: QueuePolicy(timeout_microseconds=1_800_000_000, max_queue_size=1024),
}
"""By priority, 1 being the highest: somebody waits for the answer; the default; batch jobs."""

WARMUP_FILES = {
    "text_input": struct.pack("<I", 5) + b"Hello",
    "max_tokens": struct.pack("<i", 2),
}
"""By input, the file in the model's `warmup` folder: one prompt and two tokens, so a prefill and a decode step. A
string is four bytes of length and its bytes. Triton's own `zero_data` would be an empty prompt and no tokens."""

_HEADER = """\
# Written by trtbuild; see README.md. dynamic_batching is for the queue; batches form inside the model.
"""


def llm_config(serving: ServingConfig, *, priorities: bool = True) -> Any:
    """The `inference.ModelConfig` message for the model that `serving` describes.

    Without `priorities` Triton's queue is first come, first served, without limits and without the stalls of
    MAX_QUEUE_DELAY_MICROSECONDS; a queue policy alone would bring them back.

    A batch is what Triton hands over at once, never more than there are slots. One instance, of KIND_CPU: its inputs
    are strings in host memory, its process opens the GPU itself, and the same file loads on a machine without one
    (KIND_AUTO would start one instance per GPU, KIND_GPU fails without).
    """
    pb = _schema()
    config = pb.ModelConfig(name=serving.model_name, backend="python", max_batch_size=serving.cache.slots)
    config.model_transaction_policy.decoupled = True
    for spec in INPUTS:
        config.input.append(_input(pb, spec))
    for spec in OUTPUTS:
        config.output.append(pb.ModelOutput(name=spec.name, data_type=spec.data_type, dims=spec.dims))
    config.instance_group.append(pb.ModelInstanceGroup(kind="KIND_CPU", count=1))
    config.dynamic_batching.SetInParent()
    if priorities:
        _set_priorities(pb, config.dynamic_batching)
    warmup = config.model_warmup.add(name="prefill_and_decode", batch_size=1, count=1)
    for spec in INPUTS:
        if spec.name in WARMUP_FILES:
            warmup.inputs[spec.name].data_type = pb.DataType.Value(spec.data_type)
            warmup.inputs[spec.name].dims.extend(spec.dims)
            warmup.inputs[spec.name].input_data_file = spec.name
    return config


def _set_priorities(pb: Any, batching: Any) -> None:
    batching.max_queue_delay_microseconds = MAX_QUEUE_DELAY_MICROSECONDS
    batching.priority_levels = PRIORITY_LEVELS
    batching.default_priority_level = DEFAULT_PRIORITY
    batching.default_queue_policy.CopyFrom(_policy(pb, QUEUE_POLICIES[DEFAULT_PRIORITY]))
    for priority, policy in QUEUE_POLICIES.items():
        batching.priority_queue_policy[priority].CopyFrom(_policy(pb, policy))


def write_config(config: Any) -> str:
    """The text of config.pbtxt; the same message gives the same text."""
    from google.protobuf import text_format

    return _HEADER + text_format.MessageToString(config)


def read_config(text: str, where: str) -> Any:
    """The message in the text of a config.pbtxt; raises InputError naming `where`, line and column."""
    from google.protobuf import text_format

    try:
        return text_format.Parse(text, _schema().ModelConfig())
    except text_format.ParseError as error:
        raise InputError(f"{where} is not a model configuration of Triton's: {error}") from error


def _input(pb: Any, spec: TensorSpec) -> Any:
    """A dimension of any size is ragged: requests of different sizes then go in one batch, and the Python backend
    gives each its own tensor anyway."""
    return pb.ModelInput(
        name=spec.name,
        data_type=spec.data_type,
        dims=spec.dims,
        optional=spec.optional,
        allow_ragged_batch=-1 in spec.dims,
    )


def _policy(pb: Any, policy: QueuePolicy) -> Any:
    return pb.ModelQueuePolicy(
        timeout_action="REJECT",
        default_timeout_microseconds=policy.timeout_microseconds,
        allow_timeout_override=True,
        max_queue_size=policy.max_queue_size,
    )


def _schema() -> Any:
    try:
        from tritonclient.grpc import model_config_pb2
    except ImportError as error:
        raise InputError(
            f"config.pbtxt is written with tritonclient's schema, which does not import ({error}). "
            "Install it with: pip install 'trtbuild[serve]'"
        ) from error
    return model_config_pb2
