from __future__ import annotations

import struct
from pathlib import Path

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.checkpoint.gguf_files import TOKENS, metadata, weights, write_gguf
from trtbuild.checkpoint.gguf import open_gguf
from trtbuild.checkpoint.gguf.reader import read_gguf
from trtbuild.errors import InputError


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "valid.gguf")


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    return tmp_path / "damaged.gguf"


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def build(*, version: int = 3, tensors: int = 0, keys: int = 0, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + rest


def tensor_entry(name: bytes, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def test_it_agrees_with_the_gguf_package_on_a_real_file(smollm2_gguf: Path) -> None:
    ours, theirs = read_gguf(smollm2_gguf), gguf.GGUFReader(smollm2_gguf)
    assert ours.metadata == {
        name: field.contents() for name, field in theirs.fields.items() if not name.startswith("GGUF.")
    }
    assert len(ours.tensors) == 272
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert (mine.kind, mine.offset, mine.length) == (tensor.tensor_type, tensor.data_offset, tensor.n_bytes)
        assert mine.shape == tuple(tensor.shape.tolist()[::-1])


def test_every_type_of_value(tmp_path: Path) -> None:
    path = tmp_path / "values.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("u8", 255)
    writer.add_int8("i8", -128)
    writer.add_uint16("u16", 65535)
    writer.add_int16("i16", -32768)
    writer.add_int32("i32", -5)
    writer.add_uint64("u64", 2**63)
    writer.add_int64("i64", -(2**62))
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_string("text", "ä😀")
    writer.add_array("words", ["", "Ġthe"])
    writer.add_array("numbers", [1, -2])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert read_gguf(path).metadata == {
        "general.architecture": "llama",
        "u8": 255, "i8": -128, "u16": 65535, "i16": -32768, "i32": -5, "u64": 2**63, "i64": -(2**62),
        "f32": 0.5, "f64": 0.1, "yes": True, "text": "ä😀", "words": ["", "Ġthe"], "numbers": [1, -2],
    }  # fmt: skip


FAULTS = {
    "empty": (b"", "is empty"),
    "another file": (b"PK\x03\x04....", "not a GGUF file: it begins with b'PK"),
    "short": (b"GGUF\x03", "truncated or damaged: the version would end at byte 8 and the file has 5"),
    "version 1": (build(version=1), "of version 1"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "for big-endian machines"),
    "a key beyond the file": (build(keys=1, rest=struct.pack("<Q", 2**60)), "the name of a key would end at byte"),
    "more keys than bytes": (build(keys=2**60, rest=string(b"a") + struct.pack("<II", 4, 1)), "name of a key would"),
    "a key twice": (build(keys=2, rest=2 * (string(b"a") + struct.pack("<II", 4, 1))), "key 'a' twice"),
    "a key not UTF-8": (build(keys=1, rest=string(b"\xff")), "not UTF-8 at byte 32"),
    "a type of value": (build(keys=1, rest=string(b"a") + struct.pack("<I", 13)), "a has the type 13"),
    "an array of arrays": (build(keys=1, rest=string(b"a") + struct.pack("<IIQ", 9, 9, 1)), "an array of type 9"),
    "a huge array": (build(keys=1, rest=string(b"a") + struct.pack("<IIQ", 9, 4, 2**62)), "a would end at byte"),
    "a huge array of strings": (build(keys=1, rest=string(b"a") + struct.pack("<IIQ", 9, 8, 2**62)), "a would end"),
    "alignment 0": (
        build(keys=1, rest=string(b"general.alignment") + struct.pack("<II", 4, 0)),
        "general.alignment is 0",
    ),
    "five dimensions": (build(tensors=1, rest=tensor_entry(b"t", (1,) * 5)), "'t' has 5 dimensions"),
    "a million dimensions": (build(tensors=1, rest=string(b"t") + struct.pack("<I", 10**6)), "1000000 dimensions"),
    "an unknown GGML type": (build(tensors=1, rest=tensor_entry(b"t", (32,), kind=999)), "GGML type 999"),
    "half a block": (build(tensors=1, rest=tensor_entry(b"t", (40,), kind=2)), r"shape \[40\], not whole blocks of 32"),
    "no dimension": (build(tensors=1, rest=tensor_entry(b"t", ())), r"shape \[\]"),
    "a dimension of 0": (build(tensors=1, rest=tensor_entry(b"t", (0,))), r"shape \[0\]"),
    "a tensor beyond the file": (
        build(tensors=1, rest=tensor_entry(b"t", (2**40, 2**20))),
        "tensor 't' would end at byte",
    ),
    "a tensor twice": (build(tensors=2, rest=2 * tensor_entry(b"t", (1,)) + bytes(99)), "'t' is there twice"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_named(fault: str, damaged: Path) -> None:
    content, message = FAULTS[fault]
    damaged.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_gguf(damaged)
    assert str(damaged) in str(caught.value)


def test_a_file_that_ends_anywhere_is_refused(valid: Path, damaged: Path) -> None:
    content = valid.read_bytes()
    for length in [*range(0, 6000, 97), len(content) // 2, len(content) - 33]:
        damaged.write_bytes(content[:length])
        with pytest.raises(InputError, match=r"truncated|empty|not a GGUF"):
            read_gguf(damaged)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), min_size=1, max_size=4))
def test_any_change_is_converted_or_refused(
    valid: Path, damaged: Path, tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]
) -> None:
    content = bytearray(valid.read_bytes())
    for position, value in changes:
        content[position] = value
    damaged.write_bytes(content)
    try:
        checkpoint = open_gguf(damaged, cache=tmp_path_factory.mktemp("cache"))
    except InputError as error:
        assert str(damaged) in str(error)
    else:
        assert checkpoint.config["vocab_size"] == len(TOKENS)


@pytest.mark.parametrize("value", [True, 7, 0, 1.5, "text", "", [1], ["a"], [1.5]], ids=repr)
def test_a_key_of_another_type_is_converted_or_refused(value: object, tmp_path: Path) -> None:
    more = ["general.architecture", "general.alignment", "split.count", "tokenizer.ggml.bos_token_id"]
    more += ["tokenizer.chat_template", "tokenizer.ggml.add_bos_token", "llama.rope.scaling.type", "llama.vocab_size"]
    for number, key in enumerate([*metadata(), *more]):
        path = write_gguf(tmp_path / f"{number}.gguf", metadata() | {key: value}, weights())
        try:
            open_gguf(path, cache=tmp_path / "cache")
        except InputError as error:
            assert str(path) in str(error)
