from __future__ import annotations

import contextlib
import json
import math
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trtbuild.checkpoint.safetensors import MAX_HEADER, encode_header, read_header
from trtbuild.dtypes import DType
from trtbuild.errors import InputError


def build(entries: Any, data: bytes = b"") -> bytes:
    header = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(header)) + header + data


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def read(folder: Path, content: bytes) -> dict[str, Any]:
    file = folder / "model.safetensors"
    file.write_bytes(content)
    return read_header(file)


def test_a_file_of_the_safetensors_package(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    tensors = {
        "b": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
        "a": torch.arange(4, dtype=torch.float32),
        "empty": torch.zeros(0, 5, dtype=torch.float16),
        "scalar": torch.tensor(7, dtype=torch.int64),
        "f8": torch.ones(3, dtype=torch.float8_e4m3fn),
        "flag": torch.tensor([True, False]),
    }
    file = tmp_path / "model.safetensors"
    save_file(tensors, file, metadata={"format": "pt"})
    refs = read_header(file)
    assert set(refs) == set(tensors)
    content = file.read_bytes()
    kinds = {"b": DType.BF16, "a": DType.F32, "empty": DType.F16, "scalar": DType.I64, "f8": DType.F8_E4M3}
    for name, tensor in tensors.items():
        ref = refs[name]
        assert ref.dtype == kinds.get(name, DType.BOOL)
        assert ref.shape == tuple(tensor.shape)
        stored = content[ref.offset : ref.offset + ref.length]
        assert (
            stored == tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else not stored
        )


def test_what_encode_header_writes_the_safetensors_package_reads(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    file = tmp_path / "model.safetensors"
    header = encode_header([("ä", DType.F32, (2, 2)), ("none", DType.F16, (0,)), ("b", DType.I8, (3,))], room=256)
    assert len(header) == 256
    file.write_bytes(header + np.arange(4, dtype="<f4").tobytes() + bytes([1, 2, 3]))
    loaded = load_file(file)
    assert loaded["ä"].tolist() == [[0, 1], [2, 3]]
    assert loaded["b"].tolist() == [1, 2, 3]
    assert list(read_header(file)) == ["ä", "none", "b"]
    with pytest.raises(ValueError, match="more than the 8"):
        encode_header([("a", DType.F32, (1,))], room=16)


def test_places_are_from_the_start_of_the_file(tmp_path: Path) -> None:
    content = build({"y": entry(offsets=[8, 16]), "x": entry("F16", [2, 2], [0, 8])}, bytes(16))
    refs = read(tmp_path, content)
    start = len(content) - 16
    assert [(ref.name, ref.offset, ref.length) for ref in refs.values()] == [("x", start, 8), ("y", start + 8, 8)]


FAULTS = {
    "empty file": (b"", "0 bytes, too few"),
    "seven bytes": (bytes(7), "7 bytes, too few"),
    "length 1": (struct.pack("<Q", 1) + b"{", "header of 1 bytes"),
    "length over the format's limit": (struct.pack("<Q", MAX_HEADER + 1) + b"{}", "100000001 bytes"),
    "length beyond the file": (struct.pack("<Q", 99) + b"{}", "ends at byte 107, and the file has 10"),
    "a pickle's magic": (b"PK\x03\x04" + bytes(60), "another kind of file"),
    "a Git LFS pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
    "not UTF-8": (build(b'{"\xff": 1}'), "not UTF-8 at byte 10"),
    "not JSON": (build(b"{'a': 1}"), "not JSON"),
    "nested too deep": (build(b"[" * 200_000), "not JSON"),
    "an integer too long": (build(b'{"a":' + b"9" * 5000 + b"}"), "not JSON"),
    "not an object": (build([1]), "JSON list, not an object"),
    "a tensor twice": (build(b'{"a":' + json.dumps(entry()).encode() + b',"a":1}', bytes(8)), "'a' twice"),
    "metadata not strings": (build({"__metadata__": {"format": 1}}), "__metadata__"),
    "entry not an object": (build({"a": 5}), "tensor 'a' is described by 5"),
    "unknown dtype": (build({"a": entry("F4")}, bytes(8)), "type 'F4'"),
    "dtype not a string": (build({"a": entry([])}, bytes(8)), r"type \[\]"),
    "no dtype": (build({"a": {"shape": [2], "data_offsets": [0, 8]}}, bytes(8)), "type None"),
    "negative shape": (build({"a": entry(shape=[-2])}, bytes(8)), r"shape \[-2\]"),
    "float shape": (build({"a": entry(shape=[2.0])}, bytes(8)), r"shape \[2.0\]"),
    "bool shape": (build({"a": entry("F64", [True])}, bytes(8)), r"shape \[True\]"),
    "shape not a list": (build({"a": entry(shape=2)}, bytes(8)), "shape 2"),
    "one offset": (build({"a": entry(offsets=[0])}, bytes(8)), r"data_offsets \[0\]"),
    "NaN offset": (build(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,NaN]}}', bytes(8)), "data_offsets"),
    "offsets swapped": (build({"a": entry(offsets=[8, 0])}, bytes(8)), "ends before it"),
    "shape against length": (build({"a": entry(shape=[3])}, bytes(8)), "takes 12 bytes, and has 8"),
    "a huge shape": (build({"a": entry(shape=[2**62, 2**62])}, bytes(8)), "and has 8"),
    "overlap": (
        build({"a": entry(), "b": entry(offsets=[4, 12])}, bytes(12)),
        r"'b' begins at byte \d+ inside tensor 'a'",
    ),
    "hole": (build({"a": entry(), "b": entry(offsets=[12, 20])}, bytes(20)), "between tensor 'a' and tensor 'b'"),
    "hole at the start": (build({"a": entry(offsets=[4, 12])}, bytes(12)), "between the header and tensor 'a'"),
    "truncated": (build({"a": entry()}, bytes(5)), "truncated: tensor 'a' .* 3 too few"),
    "trailing bytes": (build({"a": entry()}, bytes(11)), "3 bytes follow tensor 'a'"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_named(fault: str, tmp_path: Path) -> None:
    content, message = FAULTS[fault]
    with pytest.raises(InputError, match=message) as caught:
        read(tmp_path, content)
    assert "model.safetensors" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_header(tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="directory"):
        read_header(tmp_path)


@given(st.binary(max_size=200))
@example(b"\x02\0\0\0\0\0\0\0{}")
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.getbasetemp()
    with contextlib.suppress(InputError):
        read(folder, content)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["F32", "I8"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(
    st.dictionaries(
        st.text(max_size=3),
        JSON | st.fixed_dictionaries({"dtype": JSON, "shape": JSON, "data_offsets": JSON}),
        max_size=3,
    )
)
def test_any_json_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, entries: dict[str, Any]) -> None:
    with contextlib.suppress(InputError):
        read(tmp_path_factory.getbasetemp(), build(entries, bytes(8)))


VALID = build({"a": entry(), "b": entry("BF16", [3, 1], [8, 14]), "c": entry("I8", [0], [14, 14])}, bytes(14))


@settings(max_examples=300)
@given(st.data())
def test_a_changed_header_never_yields_bytes_outside_the_file(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(VALID)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content
    try:
        refs = read(tmp_path_factory.getbasetemp(), bytes(content))
    except InputError:
        return
    assert sum(ref.length for ref in refs.values()) + 8 + int.from_bytes(content[:8], "little") == len(content)
    for ref in refs.values():
        assert ref.length == ref.dtype.size * math.prod(ref.shape)
        assert 8 <= ref.offset <= ref.offset + ref.length <= len(content)


def test_a_large_header_is_read_at_once(tmp_path: Path) -> None:
    names = [f"model.layers.{layer}.mlp.experts.{expert}.w" for layer in range(60) for expert in range(160)]
    file = tmp_path / "model.safetensors"
    header = encode_header((name, DType.BF16, (64, 64)) for name in names)
    with file.open("wb") as stream:
        stream.write(header)
        stream.truncate(len(header) + 8192 * len(names))
    begin = time.perf_counter()
    assert len(read_header(file)) == 9600
    assert time.perf_counter() - begin < 1
