"""Calibration text: what becomes of it, and what is said of text that is no use."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest
from transformers import AutoTokenizer

from tests.calibration.conftest import PROSE
from tests.conftest import ROOT
from trtbuild.calibration.recipes import load_recipe, read_recipe
from trtbuild.calibration.samples import SampleOptions, read_samples
from trtbuild.checkpoint import Checkpoint, open_checkpoint
from trtbuild.errors import InputError

CHAT = [{"role": "user", "content": "How far is the Moon?"}, {"role": "assistant", "content": "384,400 km."}]


@pytest.fixture
def model(smollm2: Path, tmp_path: Path) -> Checkpoint:
    return open_checkpoint(smollm2, cache=tmp_path)


def read(model: Checkpoint, *files: Path, count: int = 4, length: int = 128, seed: int = 0) -> np.ndarray:
    return read_samples(SampleOptions(files, count, length, seed), model).tokens


def test_samples_are_windows_of_the_documents_end_to_end(model: Checkpoint, smollm2: Path, tmp_path: Path) -> None:
    """Every sample is a piece of transformers' own tokens of the shuffled documents."""
    words = [f"Document {i} tells of {i * 37} things. " * 20 for i in range(6)]
    file = tmp_path / "text.txt"
    file.write_text("---\n".join(f"{text}\n" for text in words))
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    whole = {tuple(tokenizer(f"{text}\n").input_ids) for text in words}
    samples = read(model, file, count=100, length=64)
    stream = samples.reshape(-1).tolist()
    ends = [-1, *[i for i, token in enumerate(stream) if token == model.config["eos_token_id"]]]
    documents = {tuple(stream[a + 1 : b]) for a, b in pairwise(ends)}
    assert documents <= whole and len(documents) >= 5


def test_the_seed_decides(model: Checkpoint) -> None:
    assert np.array_equal(read(model, PROSE), read(model, PROSE))
    assert not np.array_equal(read(model, PROSE), read(model, PROSE, seed=1))


def test_chats_go_through_the_models_template(model: Checkpoint, smollm2: Path, tmp_path: Path) -> None:
    file = tmp_path / "chats.jsonl"
    file.write_text("".join(json.dumps({"messages": CHAT}) + "\n" for _ in range(40)))
    rendered = AutoTokenizer.from_pretrained(smollm2).apply_chat_template(CHAT, tokenize=True, return_dict=False)
    stream = read(model, file, count=100, length=64).reshape(-1).tolist()
    assert stream[: len(rendered)] == rendered


def test_plain_records(model: Checkpoint, tmp_path: Path) -> None:
    file = tmp_path / "text.jsonl"
    file.write_text(json.dumps({"text": PROSE.read_text()}) + "\n")
    assert read(model, file).shape == (4, 128)


def test_what_is_recorded(model: Checkpoint) -> None:
    found = read_samples(SampleOptions((PROSE,), 4, 128, 3), model).description
    assert (found["samples"], found["length"], found["seed"]) == (4, 128, 3)
    assert list(found["files"]) == ["prose.txt"] and found["of_documents"] == 30


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "", "has 0 tokens; at least 512"),
        ("a.txt", "A short text.", "at least 512 are needed"),
        ("a.txt", "yes " * 3000, "holds 1 different tokens|holds [0-9]+ different tokens"),
        ("a.jsonl", '{"text": "one"}\n{"text": ', "a.jsonl:2: not valid JSON"),
        ("a.jsonl", '{"prompt": "one"}', "a.jsonl:1: neither a 'text' nor 'messages'"),
        ("a.jsonl", '{"messages": [{"role": "user"}]}', "a.jsonl:1: neither"),
        ("a.jsonl", "[1, 2]", "a.jsonl:1: neither"),
    ],
)
def test_useless_text_is_refused(model: Checkpoint, tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message):
        read(model, tmp_path / name)


def test_files_that_are_no_text(model: Checkpoint, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"abc \xff\xfe")
    with pytest.raises(InputError, match="not UTF-8"):
        read(model, tmp_path / "a.txt")
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read(model, tmp_path / "missing.txt")


def test_another_models_tokenizer_is_refused(tiny_checkpoint, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=r"the model's vocabulary has 512\. The tokenizer is another model's"):
        read(open_checkpoint(tiny_checkpoint(), cache=tmp_path), PROSE)


def test_the_built_in_recipes_have_enough_text(model: Checkpoint) -> None:
    for name in ("default", "quick"):
        recipe = load_recipe(name)
        tokens = read_samples(recipe, model).tokens
        assert tokens.shape == (recipe.count, recipe.length)
        assert all(file.parent == ROOT / "calibration" for file in recipe.files)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "1:1: the file is empty"),
        ("data: [a.txt]\nsample: 3\nlength: 512", r"2:1: the file: unknown key 'sample' \(did you mean 'samples'"),
        ("data: [a.txt]\nsamples: 3\nlength: 512", "1:8: data: there is no file"),
        ("data: []\nsamples: 3\nlength: 512", "1:7: data is empty"),
        ("data: [prose.txt]\nsamples: 0\nlength: 512", "2:10: samples: 0 is below 1"),
        ("data: [prose.txt]\nsamples: 4\nlength: 2", "3:9: length: 2 is below 16"),
    ],
)
def test_recipes_with_faults(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "prose.txt").write_text("text")
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(InputError, match=message):
        read_recipe(tmp_path / "recipe.yaml")


def test_an_unknown_recipe(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no built-in calibration recipe 'defualt' \(did you mean 'default'\?\)"):
        load_recipe("defualt")


def parquet_file(place: Path, **columns: list[Any]) -> Path:
    file = place / "train.parquet"
    polars.DataFrame(columns).write_parquet(file)
    return file


def test_parquet_is_read_as_jsonl_is(model: Checkpoint, tmp_path: Path) -> None:
    texts = [f"{index}. {part}" for index, part in enumerate(PROSE.read_text().split("---\n"))]
    chats = [[{"role": "user", "content": text}, {"role": "assistant", "content": "Indeed."}] for text in texts]
    for name, rows in (("text", texts), ("messages", chats)):
        lines = tmp_path / f"{name}.jsonl"
        lines.write_text("".join(json.dumps({name: row}) + "\n" for row in rows))
        stored = parquet_file(tmp_path, id=list(range(len(rows))), **{name: rows})
        assert np.array_equal(read(model, stored), read(model, lines))


def test_parquet_that_is_not_what_it_should_be(model: Checkpoint, tmp_path: Path) -> None:
    file = parquet_file(tmp_path, question=["a"], answer=["b"])
    with pytest.raises(InputError, match="has the columns question, answer, and neither 'text' nor 'messages'"):
        read(model, file)
    with pytest.raises(InputError, match=r"train.parquet, row 0: neither a 'text'"):
        read(model, parquet_file(tmp_path, text=[3]))
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(InputError, match="train.parquet cannot be read: "):
        read(model, file)
    with pytest.raises(InputError, match="none.parquet cannot be read: "):
        read(model, tmp_path / "none.parquet")


def test_no_more_text_is_tokenised_than_there_is_use_for(model: Checkpoint, tmp_path: Path) -> None:
    """A data set of any size: four times what is needed is enough to choose from."""
    lines = tmp_path / "large.jsonl"
    texts = (f"{number} {'several words follow each other ' * 8}" for number in range(9000))
    lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    found = read_samples(SampleOptions((lines,), 4, 128), model).description
    assert found["of_documents"] == 9000 and found["documents"] < 400
    assert 4 * (4 + 8) * 128 <= found["tokens_in_all"] < 4 * (4 + 8) * 128 + 100


def test_what_is_left_over_is_none_of_the_samples(model: Checkpoint) -> None:
    samples = read_samples(SampleOptions((PROSE,), 4, 128), model)
    taken = {row.tobytes() for row in samples.tokens}
    assert len(samples.left_over) == 8 and not taken & {row.tobytes() for row in samples.left_over}
