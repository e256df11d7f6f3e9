"""What an exported decoder says of itself, read from the ONNX file without its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trtbuild.dtypes import DType
from trtbuild.errors import InputError
from trtbuild.graph import contract
from trtbuild.graph.builder import ONNX_TYPES


@dataclass(frozen=True, slots=True)
class DecoderFacts:
    """The dimensions of a graph in the native form."""

    layers: int
    kv_heads: int
    capacity: int
    key_dim: int
    value_dim: int
    """0 if values are not cached apart from the keys."""
    vocab_size: int
    dtype: DType
    weight_files: tuple[Path, ...]
    metadata: Mapping[str, str]
    sequence_lengths: bool = False
    """Whether the graph has that input."""

    @property
    def recompute_past(self) -> int | None:
        """After how many tokens a sequence's keys are computed anew; see `contract.RECOMPUTE_PAST`."""
        value = self.metadata.get(contract.RECOMPUTE_PAST)
        return None if value is None else int(value)


def read_facts(onnx_file: Path) -> DecoderFacts:
    """Read them; raise InputError if the file is no ONNX model or not a decoder in the native form."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(onnx_file, load_external_data=False)
    except FileNotFoundError:
        raise InputError(f"{onnx_file} does not exist. Name the model.onnx that `trtbuild export` wrote.") from None
    except (DecodeError, OSError) as error:
        raise InputError(f"{onnx_file} is not an ONNX model: {error}.") from error
    shapes = {i.name: i.type.tensor_type for i in (*model.graph.input, *model.graph.output)}
    layers = sum(name.startswith("past_key.") for name in shapes)
    needed = (contract.INPUT_IDS, contract.CACHE_POSITIONS, contract.LOGITS, contract.past_key(0))
    missing = [name for name in needed if name not in shapes]
    if missing:
        raise InputError(
            f"{onnx_file} is not a decoder in trtbuild's native form: it has no {missing[0]!r}. "
            "Write it with `trtbuild export`."
        )
    cache = shapes[contract.past_key(0)]
    _, kv_heads, capacity, key_dim = (dim.dim_value for dim in cache.shape.dim)
    values = shapes.get(contract.past_value(0))
    files = {
        entry.value for tensor in model.graph.initializer for entry in tensor.external_data if entry.key == "location"
    }
    return DecoderFacts(
        layers=layers,
        kv_heads=kv_heads,
        capacity=capacity,
        key_dim=key_dim,
        value_dim=0 if values is None else values.shape.dim[-1].dim_value,
        vocab_size=shapes[contract.LOGITS].shape.dim[-1].dim_value,
        dtype=next(dtype for dtype, number in ONNX_TYPES.items() if number == cache.elem_type),
        weight_files=tuple(sorted(onnx_file.parent / name for name in files)),
        metadata={entry.key: entry.value for entry in model.metadata_props},
        sequence_lengths=contract.SEQUENCE_LENGTHS in shapes,
    )
