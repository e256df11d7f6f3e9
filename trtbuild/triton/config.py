"""config.pbtxt of the LLM model, written and read with Triton's own protobuf schema."""

from __future__ import annotations

import struct
from typing import Any

from trtbuild.errors import InputError
from trtbuild.serving.config import ServingConfig
from trtbuild.serving.interface import INPUTS, OUTPUTS, TensorSpec

WARMUP_FILES = {
    "text_input": struct.pack("<I", 5) + b"Hello",
    "max_tokens": struct.pack("<i", 2),
}
"""By input, the file in the model's `warmup` folder: one prompt and two tokens, so a prefill and a decode step. A
string is four bytes of length and its bytes. Triton's own `zero_data` would be an empty prompt and no tokens."""

_HEADER = """\
# Written by trtbuild; see README.md. Batches form, and priorities count, inside the model.
"""


def llm_config(serving: ServingConfig) -> Any:
    """The `inference.ModelConfig` message for the model that `serving` describes.

    Triton's queue is first come, first served, and short: the model takes each request at once and has a queue of its
    own, with priorities. With priority levels or a queue policy Triton's batcher gives out the next batch only when the
    instance waits for it, and is told so just before the instance does: whoever is first decides whether the requests
    already queued go at once, or with the next request or after 500 ms (dynamic_batch_scheduler.cc and rate_limiter.cc,
    r24.10 to r26.06).

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
    warmup = config.model_warmup.add(name="prefill_and_decode", batch_size=1, count=1)
    for spec in INPUTS:
        if spec.name in WARMUP_FILES:
            warmup.inputs[spec.name].data_type = pb.DataType.Value(spec.data_type)
            warmup.inputs[spec.name].dims.extend(spec.dims)
            warmup.inputs[spec.name].input_data_file = spec.name
    return config


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


def _schema() -> Any:
    try:
        from tritonclient.grpc import model_config_pb2
    except ImportError as error:
        raise InputError(
            f"config.pbtxt is written with tritonclient's schema, which does not import ({error}). "
            "Install it with: pip install 'trtbuild[serve]'"
        ) from error
    return model_config_pb2
