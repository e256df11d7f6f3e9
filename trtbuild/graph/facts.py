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
    """The dimensions of a graph in the native or the plugin form."""

    layers: int
    kv_heads: int
    capacity: int
    """Positions of a row of the static cache; in the plugin form, the most that a sequence may have."""
    key_dim: int
    value_dim: int
    """0 if values are not cached apart from the keys."""
    vocab_size: int
    dtype: DType
    weight_files: tuple[Path, ...]
    metadata: Mapping[str, str]
    sequence_lengths: bool = False
    """Whether the graph has that input."""
    position_ids: bool = True
    """Whether it has that one: in the plugin form some have not."""
    page_size: int | None = None
    """Positions of a page; None: the native form."""

    @property
    def recompute_past(self) -> int | None:
        """After how many tokens a sequence's keys are computed anew; see `contract.RECOMPUTE_PAST`."""
        value = self.metadata.get(contract.RECOMPUTE_PAST)
        return None if value is None else int(value)


def read_facts(onnx_file: Path) -> DecoderFacts:
    """Read them; raise InputError if the file is no ONNX model or not a decoder in either form."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(onnx_file, load_external_data=False)
    except FileNotFoundError:
        raise InputError(f"{onnx_file} does not exist. Name the model.onnx that `trtbuild export` wrote.") from None
    except (DecodeError, OSError) as error:
        raise InputError(f"{onnx_file} is not an ONNX model: {error}.") from error
    shapes = {i.name: i.type.tensor_type for i in (*model.graph.input, *model.graph.output)}
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    paged = contract.kv_pages(0) in shapes
    first = contract.kv_pages(0) if paged else contract.past_key(0)
    needed = (contract.INPUT_IDS, contract.BLOCK_TABLE if paged else contract.CACHE_POSITIONS, contract.LOGITS, first)
    missing = [name for name in needed if name not in shapes]
    if paged and not metadata.get(contract.MAX_POSITIONS, "").isdigit():
        missing.append(contract.MAX_POSITIONS)
    if missing:
        raise InputError(
            f"{onnx_file} is not a decoder that trtbuild wrote: it has no {missing[0]!r}. "
            "Write it with `trtbuild export`."
        )
    cache = shapes[first]
    values, page_size = shapes.get(contract.past_value(0)), None
    if paged:
        _, _, kv_heads, page_size, key_dim = (dim.dim_value for dim in cache.shape.dim)
        capacity, value_dim = int(metadata[contract.MAX_POSITIONS]), key_dim
    else:
        _, kv_heads, capacity, key_dim = (dim.dim_value for dim in cache.shape.dim)
        value_dim = 0 if values is None else values.shape.dim[-1].dim_value
    files = {
        entry.value for tensor in model.graph.initializer for entry in tensor.external_data if entry.key == "location"
    }
    return DecoderFacts(
        layers=sum(name.startswith(first.removesuffix("0")) for name in shapes),
        kv_heads=kv_heads,
        capacity=capacity,
        key_dim=key_dim,
        value_dim=value_dim,
        vocab_size=shapes[contract.LOGITS].shape.dim[-1].dim_value,
        dtype=next(dtype for dtype, number in ONNX_TYPES.items() if number == cache.elem_type),
        weight_files=tuple(sorted(onnx_file.parent / name for name in files)),
        metadata=metadata,
        sequence_lengths=contract.SEQUENCE_LENGTHS in shapes,
        position_ids=contract.POSITION_IDS in shapes,
        page_size=page_size,
    )


def read_native_facts(onnx_file: Path) -> DecoderFacts:
    """The same of a decoder in the native form; raise InputError for one in the plugin form."""
    facts = read_facts(onnx_file)
    if facts.page_size is not None:
        raise InputError(
            f"{onnx_file} is in the plugin form, whose cache is in pages; a static cache is needed here. "
            "Export it with --attention native."
        )
    return facts
