"""The safetensors header: where each tensor's bytes are, checked without reading one of them.

Format: eight bytes of little-endian length, that many bytes of JSON, then the tensors back to back
(https://github.com/huggingface/safetensors#format).
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeGuard

from trtbuild.checkpoint.base import TensorRef
from trtbuild.dtypes import DType
from trtbuild.errors import InputError

MAX_HEADER = 100_000_000
"""Bytes; the format's own limit."""

AGAIN = "The file is damaged: download or convert it again."


def read_header(file: Path) -> dict[str, TensorRef]:
    """The tensors of a safetensors file, in the order of their bytes; reads the header only.

    Raises InputError, naming the file, the tensor and the bytes, unless the tensors fill the file exactly, each with as
    many bytes as its type and shape say.
    """
    try:
        with file.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            length = _header_length(file, stream.read(8), size)
            header = stream.read(length)
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}.") from error
    if len(header) != length:
        raise InputError(f"{file}: the header is {length} bytes long and {len(header)} are there. {AGAIN}")
    start = 8 + length
    entries = _parse(file, header)
    refs = [_tensor(file, name, entry, start) for name, entry in entries.items() if name != "__metadata__"]
    refs.sort(key=lambda ref: (ref.offset, ref.length))
    _check_coverage(file, refs, start, size)
    return {ref.name: ref for ref in refs}


def encode_header(tensors: Iterable[tuple[str, DType, tuple[int, ...]]], *, room: int = 0) -> bytes:
    """The length and JSON of a safetensors file that holds these tensors back to back, in this order.

    Padded with spaces to a multiple of eight bytes, or to `room` bytes in all, which must be enough.
    """
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, dtype, shape in tensors:
        end = offset + dtype.size * math.prod(shape)
        entries[name] = {"dtype": dtype.value, "shape": shape, "data_offsets": (offset, end)}
        offset = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    length = room - 8 if room else (len(text) + 7) // 8 * 8
    if length < len(text):
        raise ValueError(f"the header takes {len(text)} bytes, more than the {length} it was given")
    return struct.pack("<Q", length) + text.ljust(length)


def _header_length(file: Path, prefix: bytes, size: int) -> int:
    if len(prefix) < 8:
        raise InputError(f"{file} has {size} bytes, too few for a safetensors file. {AGAIN}")
    length = int.from_bytes(prefix, "little")
    if prefix.startswith(b"version "):
        raise InputError(
            f"{file} is a Git LFS pointer, not the weights. Fetch them with `git lfs pull`, or download the file again."
        )
    if not 2 <= length <= MAX_HEADER:
        raise InputError(
            f"{file}: the first eight bytes give a header of {length} bytes; a safetensors file has 2 to {MAX_HEADER}. "
            "It is another kind of file, or a damaged one: download it again."
        )
    if 8 + length > size:
        raise InputError(
            f"{file}: by its first eight bytes the header ends at byte {8 + length}, and the file has {size}. "
            "It is truncated, or another kind of file: download it again."
        )
    return length


def _parse(file: Path, header: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            seen: set[str] = set()
            twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
            raise InputError(f"{file}: the header names {twice!r} twice. {AGAIN}")
        return result

    try:
        entries = json.loads(header.decode("utf-8"), object_pairs_hook=unique)
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: the header is not UTF-8 at byte {8 + error.start}. {AGAIN}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: the header is not JSON ({error}). {AGAIN}") from error
    if not isinstance(entries, dict):
        raise InputError(f"{file}: the header is a JSON {type(entries).__name__}, not an object. {AGAIN}")
    metadata = entries.get("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise InputError(f"{file}: the header's __metadata__ is not an object of strings. {AGAIN}")
    return entries


def _tensor(file: Path, name: str, entry: Any, start: int) -> TensorRef:
    where = f"{file}: tensor {name!r}"
    if not isinstance(entry, dict):
        raise InputError(f"{where} is described by {entry!r:.80}, not by an object. {AGAIN}")
    try:
        dtype = DType(entry.get("dtype"))
    except ValueError:
        known = ", ".join(kind.value for kind in DType)
        raise InputError(
            f"{where} has the type {entry.get('dtype')!r:.80}, which trtbuild does not read (it reads {known}). "
            "Convert the checkpoint to one of these."
        ) from None
    shape, offsets = entry.get("shape"), entry.get("data_offsets")
    if not _naturals(shape):
        raise InputError(f"{where} has the shape {shape!r:.80}, not a list of integers from 0 up. {AGAIN}")
    if not _naturals(offsets) or len(offsets) != 2:
        raise InputError(f"{where} has the data_offsets {offsets!r:.80}, not two integers from 0 up. {AGAIN}")
    begin, end = offsets
    if begin > end:
        raise InputError(f"{where} begins at byte {begin} and ends before it, at {end}. {AGAIN}")
    wanted = dtype.size * math.prod(shape)
    if end - begin != wanted:
        raise InputError(
            f"{where} is {dtype.value} {shape!r:.80}, which takes {wanted} bytes, and has {end - begin}. {AGAIN}"
        )
    return TensorRef(name, dtype, tuple(shape), file, start + begin, end - begin)


def _naturals(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_coverage(file: Path, refs: list[TensorRef], start: int, size: int) -> None:
    """Tensors in the order of their offsets must follow each other without overlap or hole, to the file's end."""
    end, before = start, "the header"
    for ref in refs:
        if ref.offset < end:
            raise InputError(
                f"{file}: tensor {ref.name!r} begins at byte {ref.offset} inside {before}, which ends at {end}. {AGAIN}"
            )
        if ref.offset > end:
            raise InputError(
                f"{file}: bytes {end} to {ref.offset}, between {before} and tensor {ref.name!r}, "
                f"belong to no tensor. {AGAIN}"
            )
        end, before = ref.offset + ref.length, f"tensor {ref.name!r}"
    if end > size:
        raise InputError(
            f"{file} is truncated: {before} ends at byte {end} and the file has {size}, {end - size} too few. "
            "Download it again."
        )
    if end < size:
        raise InputError(f"{file}: {size - end} bytes follow {before}, which ends at byte {end}. {AGAIN}")
