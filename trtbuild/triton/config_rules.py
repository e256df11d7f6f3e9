"""What is wrong in one config.pbtxt by itself, whatever the model. tritonserver 2.51 accepts several of these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any


def config_faults(config: Any) -> Iterator[str]:
    """The faults of an `inference.ModelConfig` message."""
    if config.max_batch_size < 0:
        yield f"max_batch_size {config.max_batch_size} is negative"
    for label, tensors in (("input", config.input), ("output", config.output)):
        yield from _tensor_faults(label, tensors)
    if config.HasField("dynamic_batching"):
        yield from _batching_faults(config)
    for warmup in config.model_warmup:
        if warmup.batch_size > max(config.max_batch_size, 1):
            yield f"warm-up '{warmup.name}' has batches of {warmup.batch_size}, above max_batch_size"
        known = {tensor.name for tensor in config.input}
        for name in sorted(set(warmup.inputs) - known):
            yield f"warm-up '{warmup.name}' gives '{name}', which is no input"


def _tensor_faults(label: str, tensors: Any) -> Iterator[str]:
    if not tensors:
        yield f"there is no {label}"
    for name, count in Counter(tensor.name for tensor in tensors).items():
        if count > 1:
            yield f"{label} '{name}' is listed {count} times"
        if not name:
            yield f"an {label} has no name"
    for tensor in tensors:
        if tensor.data_type == 0:
            yield f"{label} '{tensor.name}' has no data_type"
        if not tensor.dims:
            yield f"{label} '{tensor.name}' has no dims"
        for size in tensor.dims:
            if size == 0 or size < -1:
                yield f"{label} '{tensor.name}' has a dimension of {size}; sizes are positive, or -1 for any"


def _batching_faults(config: Any) -> Iterator[str]:
    batching = config.dynamic_batching
    if config.max_batch_size == 0:
        yield "dynamic_batching is there, and max_batch_size 0 says that the model takes no batches"
    for size in batching.preferred_batch_size:
        if not 0 < size <= config.max_batch_size:
            yield f"preferred_batch_size {size} is not between 1 and max_batch_size {config.max_batch_size}"
    levels, default = batching.priority_levels, batching.default_priority_level
    if levels == 0 and default > 0:
        yield f"default_priority_level {default} is there without priority_levels"
    if levels > 0 and not 1 <= default <= levels:
        yield f"default_priority_level {default} is not between 1 and priority_levels {levels}"
    for level in sorted(batching.priority_queue_policy):
        if not 1 <= level <= levels:
            yield f"priority_queue_policy has level {level}, and priority_levels is {levels}"
