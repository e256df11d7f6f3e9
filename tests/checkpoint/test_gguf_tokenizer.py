from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.checkpoint.gguf_files import MERGES, TOKENS, TYPES, bytes_alphabet, metadata
from trtbuild.checkpoint.gguf.reader import GgufFile, GgufTensor
from trtbuild.checkpoint.gguf.splits import SPLITS
from trtbuild.checkpoint.gguf.tokenizer import write_tokenizer
from trtbuild.errors import InputError

REFERENCE = json.loads((Path(__file__).parent / "data" / "sentencepiece.json").read_text(encoding="utf-8"))
END, TOOL = 258, 259


def write(folder: Path, rows: int = 4096, **changes: Any) -> Tokenizer:
    """The tokenizer.json that a GGUF with these keys becomes, as `tokenizers` alone reads it."""
    embedding = GgufTensor("token_embd.weight", 0, (rows, 1), 0, 0)
    write_tokenizer(GgufFile(Path("m.gguf"), metadata(**changes), {"token_embd.weight": embedding}), folder)
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def read_json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


PIECES = {
    "gpt-2": [
        ("I'm 12345  ok", ["I", "'m", " 12345", " ", " ok"]),
        ("a\n\n  b", ["a", "\n\n ", " b"]),
    ],
    "smollm": [
        ("I'm 123 ok", ["I", "'m", " ", "1", "2", "3", " ok"]),
        ("a  12", ["a", "  ", "1", "2"]),
        ("x½", ["x", "½"]),
    ],
    "llama-bpe": [
        ("I'M 12345  ok", ["I", "'M", " ", "123", "45", " ", " ok"]),
        ("a\n\n  b(c", ["a", "\n\n", " ", " b", "(c"]),
    ],
    "qwen2": [
        ("I'M 123  ok", ["I", "'M", " ", "1", "2", "3", " ", " ok"]),
        ("x.\n\ny", ["x", ".\n\n", "y"]),
    ],
    "tekken": [
        ("HELLOWorld 12", ["HELLOWorld", " ", "1", "2"]),
        ("aBc don't", ["a", "Bc", " don", "'t"]),
        ("a/b//\n", ["a", "/b", "//\n"]),
    ],
    "default": [
        ("a=b 12345", ["a", "=", "b", " ", "123", "45"]),
    ],
}


@pytest.mark.parametrize("pre", PIECES)
def test_where_text_is_cut(pre: str, tmp_path: Path) -> None:
    """By hand from the patterns that the models' authors published."""
    tokenizer = write(tmp_path, tokenizer__ggml__pre=pre)
    for text, expected in PIECES[pre]:
        pieces = [text[begin:end] for _, (begin, end) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
        assert pieces == expected


def test_every_rule_is_a_pattern_that_compiles_and_loses_nothing(tmp_path: Path) -> None:
    text = " naïve 日本 12 ½\t\t\n\n  x'S don't 😀👩‍👩‍👧 e\u0301 <a>=b^c~|$ "
    for pre, split in SPLITS.items():
        tokenizer = write(tmp_path, tokenizer__ggml__pre=pre, tokenizer__ggml__bos_token_id=None)
        wanted = text if not split.nfc else text.replace("e\u0301", "é")
        assert tokenizer.decode(tokenizer.encode(text).ids) == wanted, pre


def test_bytes_and_merges(tmp_path: Path) -> None:
    tokenizer = write(tmp_path)
    assert tokenizer.encode("he").ids == [256]
    assert tokenizer.encode("he he").ids == [256, 257]
    alphabet = bytes_alphabet()
    assert tokenizer.encode("ä").ids == [alphabet.index(chr(byte)) for byte in "ä".encode()]
    assert tokenizer.get_vocab_size() == len(TOKENS)


def test_llama3_takes_a_whole_piece_from_the_vocabulary(tmp_path: Path) -> None:
    tokens = [*TOKENS, "shell"]
    changes = {"tokenizer__ggml__tokens": tokens, "tokenizer__ggml__token_type": [*TYPES, 1]}
    assert write(tmp_path, tokenizer__ggml__pre="llama-bpe", **changes).encode("shell").ids == [260]
    assert len(write(tmp_path, tokenizer__ggml__pre="qwen2", **changes).encode("shell").ids) == 4


def test_control_and_user_defined_tokens_are_found_whole(tmp_path: Path) -> None:
    tokenizer = write(tmp_path)
    ids = tokenizer.encode("he<|end|><tool>he").ids
    assert ids == [256, END, TOOL, 256]
    assert tokenizer.decode(ids) == "he<tool>he"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "he<|end|><tool>he"


def test_a_token_that_the_file_names_is_special_whatever_its_type(tmp_path: Path) -> None:
    tokenizer = write(tmp_path, tokenizer__ggml__token_type=None)
    assert tokenizer.decode(tokenizer.encode("he<|end|>he").ids) == "hehe"


@pytest.mark.parametrize(
    ("changes", "before", "after"),
    [
        ({}, [], []),
        ({"tokenizer__ggml__add_bos_token": True}, [TOOL], []),
        ({"tokenizer__ggml__add_eos_token": True}, [], [END]),
        ({"tokenizer__ggml__add_bos_token": True, "tokenizer__ggml__add_eos_token": True}, [TOOL], [END]),
        ({"tokenizer__ggml__pre": "llama-bpe"}, [TOOL], []),
        ({"tokenizer__ggml__pre": "llama-bpe", "tokenizer__ggml__add_bos_token": False}, [], []),
    ],
)
def test_bos_and_eos(changes: dict[str, Any], before: list[int], after: list[int], tmp_path: Path) -> None:
    tokenizer = write(tmp_path, tokenizer__ggml__bos_token_id=TOOL, **changes)
    assert tokenizer.encode("he").ids == [*before, 256, *after]
    assert tokenizer.encode("he", "he").ids == [*before, 256, *after, *before, 256, *after]
    assert tokenizer.encode("he", add_special_tokens=False).ids == [256]
    config = read_json(tmp_path / "tokenizer_config.json")
    assert (config["add_bos_token"], config["add_eos_token"]) == (bool(before), bool(after))


def test_the_files_around_it(tmp_path: Path) -> None:
    write(
        tmp_path,
        tokenizer__ggml__bos_token_id=TOOL,
        tokenizer__ggml__padding_token_id=0,
        tokenizer__ggml__eot_token_id=257,
        tokenizer__ggml__eom_token_id=END,
        tokenizer__chat_template="{{ 'ä' }}",
    )
    assert read_json(tmp_path / "tokenizer_config.json") == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "bos_token": "<tool>",
        "eos_token": "<|end|>",
        "pad_token": "!",
    }
    assert read_json(tmp_path / "generation_config.json") == {
        "bos_token_id": TOOL,
        "pad_token_id": 0,
        "eos_token_id": [END, 257],
    }
    assert (tmp_path / "chat_template.jinja").read_text(encoding="utf-8") == "{{ 'ä' }}"


SENTENCEPIECE = {
    "tokenizer__ggml__model": "llama",
    "tokenizer__ggml__pre": "default",
    "tokenizer__ggml__tokens": REFERENCE["tokens"],
    "tokenizer__ggml__scores": REFERENCE["scores"],
    "tokenizer__ggml__token_type": REFERENCE["types"],
    "tokenizer__ggml__merges": None,
    "tokenizer__ggml__bos_token_id": 1,
    "tokenizer__ggml__eos_token_id": 2,
    "tokenizer__ggml__unknown_token_id": 0,
}


def test_sentencepiece_bpe_gives_the_ids_of_sentencepiece(tmp_path: Path) -> None:
    tokenizer = write(tmp_path, **SENTENCEPIECE)
    for text, ids in REFERENCE["cases"]:
        assert tokenizer.encode(text).ids == [1, *ids], text
        assert tokenizer.decode([1, *ids]) == text


def test_sentencepiece_without_a_space_in_front(tmp_path: Path) -> None:
    tokenizer = write(tmp_path, **SENTENCEPIECE, tokenizer__ggml__add_space_prefix=False)
    ids = tokenizer.encode("the engine", add_special_tokens=False).ids
    assert "".join(REFERENCE["tokens"][number] for number in ids) == "the▁engine"
    assert tokenizer.decode(ids) == "the engine"
    assert tokenizer.decode(tokenizer.encode(" the").ids) == " the"


FAULTS = {
    "another algorithm": ({"tokenizer__ggml__model": "bert"}, "kind 'bert'. Known in a GGUF are gpt2"),
    "no algorithm": ({"tokenizer__ggml__model": None}, "kind None"),
    "an unknown split": ({"tokenizer__ggml__pre": "viking"}, "by the rule 'viking' .* Known are deepseek-r1-qwen"),
    "no split": ({"tokenizer__ggml__pre": None}, "does not say how its tokenizer splits"),
    "no tokens": ({"tokenizer__ggml__tokens": None}, "no list of strings tokenizer.ggml.tokens"),
    "no merges": ({"tokenizer__ggml__merges": None}, "no list of strings tokenizer.ggml.merges"),
    "a merge of one": ({"tokenizer__ggml__merges": ["he"]}, "the merge 'he' is not two tokens"),
    "a merge of three": ({"tokenizer__ggml__merges": ["h e l"]}, "the merge 'h e l' is not two tokens"),
    "a merge of unknown tokens": ({"tokenizer__ggml__merges": [*MERGES, "zz y"]}, "do not fit: .*zz"),
    "a token twice": (
        {"tokenizer__ggml__tokens": [*TOKENS, "he"], "tokenizer__ggml__token_type": [*TYPES, 1]},
        "m.gguf has the token 'he' twice",
    ),
    "too few types": ({"tokenizer__ggml__token_type": [1]}, "no type for each of its 260 tokens"),
    "too few scores": ({"tokenizer__ggml__model": "llama", "tokenizer__ggml__scores": [0.0]}, "no score for each"),
    "more tokens than embeddings": ({"rows": 259}, "260 tokens and only 259 embeddings"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_named(fault: str, tmp_path: Path) -> None:
    changes, message = FAULTS[fault]
    with pytest.raises(InputError, match=message):
        write(tmp_path, **changes)
