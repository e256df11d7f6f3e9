"""GGUF tensors -> one model.safetensors, a chunk of one tensor at a time."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from trtbuild.checkpoint.gguf.config import Architecture
from trtbuild.checkpoint.gguf.reader import GgufFile, GgufTensor
from trtbuild.checkpoint.safetensors import encode_header
from trtbuild.dtypes import DType
from trtbuild.errors import InputError
from trtbuild.progress import Progress

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ROPE_FACTORS = "rope_freqs.weight"

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NAME = re.compile(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)")
_F16_MAX = 65504.0
_CHUNK = 1 << 17
"""Elements dequantised at once; 512 kB of F32 stay in a core's cache."""


def hub_name(file: GgufFile, tensor: str) -> str:
    """What transformers calls the GGUF's tensor. Raises InputError for one that no Llama-like model has."""
    match = _NAME.fullmatch(tensor)
    if match is None or match[2] not in _NAMES:
        raise InputError(
            f"{file.path} has the tensor {tensor!r}, which trtbuild does not know and so cannot leave out. "
            "Take the model's safetensors checkpoint instead."
        )
    layer = f"model.layers.{int(match[1])}." if match[1] else ""
    return f"{layer}{_NAMES[match[2]]}.{match[3]}"


def read_rope_factors(file: GgufFile) -> list[float] | None:
    """The values of `rope_freqs.weight`, f32 [head_dim / 2], or None where there is none."""
    tensor = file.tensors.get(ROPE_FACTORS)
    if tensor is None:
        return None
    dequantise = _dequantiser(file, tensor)
    return [float(value) for chunk in _stored(file, tensor) for value in dequantise(chunk)]


def write_weights(
    file: GgufFile, architecture: Architecture, config: dict[str, Any], destination: Path, progress: Progress
) -> DType:
    """Write every tensor under its transformers name, in the file's order; returns the type that most bytes have.

    F32 and BF16 stay as they are, bit for bit. Quantised tensors and F16 become F16 (the scales of nearly every GGML
    type are F16, so little is lost: 2^-11 of a value), unless a value is beyond F16's range; that tensor becomes F32.
    q and k of a permuted architecture get transformers' order of rows back. Raises InputError for a type that the gguf
    package cannot dequantise, and for NaN or infinity.
    """
    tensors = {hub_name(file, name): tensor for name, tensor in file.tensors.items() if name != ROPE_FACTORS}
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    # the types are known only when all is written, so leave room for the longest: BF16's name, and F64's offsets
    longest = encode_header((name, DType.F64, tensor.shape) for name, tensor in tensors.items())
    room = (len(longest) + len(tensors) + 7) // 8 * 8
    total = sum(tensor.length for tensor in tensors.values())
    done = 0
    types: dict[str, DType] = {}
    with destination.open("wb") as stream:
        stream.seek(room)
        for name, tensor in tensors.items():
            stem = tensor.name.rpartition(".")[0].rpartition(".")[2]
            types[name] = _write_tensor(file, tensor, heads.get(stem, 0) if architecture.permuted else 0, stream)
            done += tensor.length
            progress.update(done, total, tensor.name)
        stream.seek(0)
        stream.write(encode_header(((name, types[name], tensors[name].shape) for name in tensors), room=room))
    sizes: dict[DType, int] = {}
    for name, dtype in types.items():
        sizes[dtype] = sizes.get(dtype, 0) + dtype.size * math.prod(tensors[name].shape)
    return max(sizes, key=lambda dtype: sizes[dtype])


def _write_tensor(file: GgufFile, tensor: GgufTensor, heads: int, stream: BinaryIO) -> DType:
    """Write one tensor at the stream's place; `heads` is 0 for rows that stay in their order."""
    from gguf.constants import GGMLQuantizationType as Kind

    dequantise = _dequantiser(file, tensor)
    if tensor.kind in (Kind.F32, Kind.BF16):
        for chunk in _stored(file, tensor, heads):
            _largest(file, tensor, dequantise(chunk))
            stream.write(chunk.data)
        return DType.F32 if tensor.kind == Kind.F32 else DType.BF16
    begin = stream.tell()
    for chunk in _stored(file, tensor, heads):
        values = dequantise(chunk)
        if _largest(file, tensor, values) > _F16_MAX:
            break
        stream.write(values.astype("<f2").data)
    else:
        return DType.F16
    stream.seek(begin)
    for chunk in _stored(file, tensor, heads):
        values = dequantise(chunk)
        _largest(file, tensor, values)
        stream.write(values.astype("<f4").data)
    return DType.F32


def _largest(file: GgufFile, tensor: GgufTensor, values: NDArray[np.float32]) -> float:
    """The largest magnitude. Raises InputError for NaN and infinity."""
    import numpy as np

    largest = float(np.abs(values).max())
    if not math.isfinite(largest):
        raise InputError(
            f"{file.path}: tensor {tensor.name!r} holds {largest} once dequantised. "
            "The file is damaged or was quantised wrongly: download it again."
        )
    return largest


def _stored(file: GgufFile, tensor: GgufTensor, heads: int = 0) -> Iterator[NDArray[np.uint8]]:
    """The tensor's bytes as stored, whole blocks of about _CHUNK elements at a time, q's and k's rows put back.

    They are read, not mapped, so that memory stays the same for a tensor of any size.
    """
    import numpy as np
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    block, size = GGML_QUANT_SIZES[GGMLQuantizationType(tensor.kind)]
    step = _CHUNK // block * size
    with file.path.open("rb") as stream:
        stream.seek(tensor.offset)
        if heads:
            rows = _restore_rows(file, tensor, np.frombuffer(stream.read(tensor.length), np.uint8), heads)
            yield from (rows[begin : begin + step] for begin in range(0, tensor.length, step))
        else:
            for begin in range(0, tensor.length, step):
                yield np.frombuffer(stream.read(min(step, tensor.length - begin)), np.uint8)


def _restore_rows(file: GgufFile, tensor: GgufTensor, data: NDArray[np.uint8], heads: int) -> NDArray[np.uint8]:
    """Undo llama.cpp's order of q's and k's rows, in which the two halves of a rotated pair are neighbours.

    Rows, and a bias's elements, are whole numbers of stored bytes, so this works before dequantising: a head's rows
    [head_dim / 2, 2] become [2, head_dim / 2].
    """
    rows = tensor.shape[0]
    if rows % (2 * heads) or data.size % rows:
        raise InputError(
            f"{file.path}: tensor {tensor.name!r} has {rows} rows, not an even number for each of {heads} heads. "
            "Download it again."
        )
    return data.reshape(heads, rows // heads // 2, 2, -1).swapaxes(1, 2).reshape(-1)


def _dequantiser(file: GgufFile, tensor: GgufTensor) -> Callable[[NDArray[np.uint8]], NDArray[np.float32]]:
    """A function from whole stored blocks, u8 [bytes], to their values, f32 [elements]."""
    import numpy as np
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    kind = GGMLQuantizationType(tensor.kind)

    def run(data: NDArray[np.uint8]) -> NDArray[np.float32]:
        try:
            with np.errstate(all="ignore"):  # what overflows is found, and named, by the caller
                return np.asarray(dequantize(data.reshape(1, -1), kind), dtype=np.float32).reshape(-1)
        except NotImplementedError as error:
            raise InputError(
                f"{file.path}: tensor {tensor.name!r} is {kind.name}, which the installed gguf package cannot "
                "dequantise. Take another quantisation of the model, or its safetensors checkpoint."
            ) from error

    return run
