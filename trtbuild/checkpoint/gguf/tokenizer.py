"""GGUF metadata -> tokenizer.json and the files around it, with the `tokenizers` package alone.

A GGUF names its rules instead of stating them: `tokenizer.ggml.model` is the algorithm and `tokenizer.ggml.pre` the
way text is split before it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtbuild.checkpoint.gguf.config import special_ids
from trtbuild.checkpoint.gguf.merges import merges_from_scores
from trtbuild.checkpoint.gguf.reader import GgufFile
from trtbuild.checkpoint.gguf.splits import SPLITS, Split
from trtbuild.errors import InputError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def write_tokenizer(file: GgufFile, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json, generation_config.json and, where there is one, chat_template.jinja.

    Raises InputError for a kind of tokenizer or a way of splitting that is not known, and for a vocabulary that
    contradicts itself.
    """
    model = file.metadata.get("tokenizer.ggml.model")
    tokens = _strings(file, "tokenizer.ggml.tokens")
    rows = file.tensors["token_embd.weight"].shape[0]
    if len(tokens) > rows:
        raise InputError(
            f"{file.path} has {len(tokens)} tokens and only {rows} embeddings. Take another conversion of the model."
        )
    ids = special_ids(file)
    if model == "gpt2":
        split = _split(file)
        tokenizer, add_bos = _byte_level(file, tokens, split), split.add_bos
    elif model == "llama":
        tokenizer, add_bos = _sentencepiece(file, tokens, ids), True
    else:
        raise InputError(
            f"{file.path} has a tokenizer of the kind {model!r:.80}. Known in a GGUF are gpt2 (byte-level BPE) and "
            "llama (SentencePiece BPE); take the model's safetensors checkpoint instead."
        )
    _add_special_tokens(file, tokenizer, tokens, ids)
    add_bos = bool(file.metadata.get("tokenizer.ggml.add_bos_token", add_bos)) and "bos" in ids
    add_eos = bool(file.metadata.get("tokenizer.ggml.add_eos_token", False)) and "eos" in ids
    _surround(tokenizer, tokens, ids, add_bos=add_bos, add_eos=add_eos)
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": add_bos,
        "add_eos_token": add_eos,
        "clean_up_tokenization_spaces": False,
    }
    config |= {f"{token}_token": tokens[ids[token]] for token in ("bos", "eos", "unk", "pad") if token in ids}
    _write_json(folder / "tokenizer_config.json", config)
    _write_json(folder / "generation_config.json", _generation_config(ids))
    template = file.metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def _generation_config(ids: Mapping[str, int]) -> dict[str, Any]:
    """Generation ends at any token that ends a text, a turn or a message."""
    ends = list(dict.fromkeys(ids[token] for token in ("eos", "eot", "eom") if token in ids))
    config: dict[str, Any] = {f"{token}_token_id": ids[token] for token in ("bos", "pad") if token in ids}
    if ends:
        config["eos_token_id"] = ends[0] if len(ends) == 1 else ends
    return config


def _split(file: GgufFile) -> Split:
    name = file.metadata.get("tokenizer.ggml.pre")
    if name is None:
        raise InputError(
            f"{file.path} does not say how its tokenizer splits text (tokenizer.ggml.pre): it was converted before "
            "llama.cpp wrote it. Take a newer conversion, or the model's safetensors checkpoint."
        )
    if not isinstance(name, str) or name not in SPLITS:
        raise InputError(
            f"{file.path} splits text by the rule {name!r:.80} (tokenizer.ggml.pre), which trtbuild does not know. "
            f"Known are {', '.join(sorted(SPLITS))}; take the model's safetensors checkpoint instead."
        )
    return SPLITS[name]


def _byte_level(file: GgufFile, tokens: Sequence[str], split: Split) -> Tokenizer:
    from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

    merges = [_pair(file, merge) for merge in _strings(file, "tokenizer.ggml.merges")]
    vocabulary = _vocabulary(file, tokens)
    tokenizer = _tokenizer(file, lambda: models.BPE(vocabulary, merges, ignore_merges=split.ignore_merges))
    if split.nfc:
        tokenizer.normalizer = normalizers.NFC()
    steps: list[Any] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in split.patterns]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split.gpt2))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pair(file: GgufFile, merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not left or not space or not right or " " in right:
        raise InputError(f"{file.path}: the merge {merge!r:.80} is not two tokens and a space. Download it again.")
    return left, right


def _sentencepiece(file: GgufFile, tokens: Sequence[str], ids: Mapping[str, int]) -> Tokenizer:
    """SentencePiece's BPE as transformers writes Llama 2's: a space is U+2581, one in front, bytes where all fails."""
    from tokenizers import decoders, models, normalizers

    space = "\u2581"
    scores = file.metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise InputError(f"{file.path} has no score for each of its {len(tokens)} tokens. Download it again.")
    vocabulary = _vocabulary(file, tokens)
    normal = {TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED}
    pieces = {
        token: score for token, score, kind in zip(tokens, scores, _types(file, tokens), strict=True) if kind in normal
    }
    unknown = tokens[ids.get("unk", 0)]
    tokenizer = _tokenizer(
        file,
        lambda: models.BPE(
            vocabulary, merges_from_scores(pieces, vocabulary), unk_token=unknown, fuse_unk=True, byte_fallback=True
        ),
    )
    prefix = bool(file.metadata.get("tokenizer.ggml.add_space_prefix", True))
    marks = [normalizers.Prepend(space)] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*marks, normalizers.Replace(" ", space)])
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(space, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer


def _tokenizer(file: GgufFile, model: Callable[[], Any]) -> Tokenizer:
    from tokenizers import Tokenizer

    try:
        return Tokenizer(model())
    except Exception as error:  # the Rust library raises a plain Exception for merges of tokens that do not exist
        raise InputError(
            f"{file.path}: the vocabulary and its merges do not fit: {error}. Download it again."
        ) from error


def _add_special_tokens(file: GgufFile, tokenizer: Tokenizer, tokens: Sequence[str], ids: Mapping[str, int]) -> None:
    """Special tokens (by type, or because the file names them) are found whole in text and left out when decoding.

    User-defined ones are found whole too, and stay.
    """
    from tokenizers import AddedToken

    special, plain = [], []
    named = set(ids.values())
    for number, (token, kind) in enumerate(zip(tokens, _types(file, tokens), strict=True)):
        if number in named or kind in (TokenType.CONTROL, TokenType.UNKNOWN):
            special.append(AddedToken(token, normalized=False, special=True))
        elif kind == TokenType.USER_DEFINED:
            plain.append(AddedToken(token, normalized=False, special=False))
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(plain)


def _surround(
    tokenizer: Tokenizer, tokens: Sequence[str], ids: Mapping[str, int], *, add_bos: bool, add_eos: bool
) -> None:
    """Put BOS before and EOS after every text, as the file asks."""
    from tokenizers.processors import TemplateProcessing

    before = [tokens[ids["bos"]]] if add_bos else []
    after = [tokens[ids["eos"]]] if add_eos else []
    if not before and not after:
        return
    tokenizer.post_processor = TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, *(f"{token}:1" for token in before), "$B:1", *(f"{token}:1" for token in after)],
        special_tokens=[(token, ids[name]) for name, part in (("bos", before), ("eos", after)) for token in part],
    )


def _vocabulary(file: GgufFile, tokens: Sequence[str]) -> dict[str, int]:
    vocabulary = {token: number for number, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        twice = next(token for number, token in enumerate(tokens) if vocabulary[token] != number)
        raise InputError(
            f"{file.path} has the token {twice!r} twice. Take another conversion, or the safetensors checkpoint."
        )
    return vocabulary


def _types(file: GgufFile, tokens: Sequence[str]) -> list[int]:
    types = file.metadata.get("tokenizer.ggml.token_type", [TokenType.NORMAL] * len(tokens))
    if not isinstance(types, list) or len(types) != len(tokens):
        raise InputError(f"{file.path} has no type for each of its {len(tokens)} tokens. Download it again.")
    return types


def _strings(file: GgufFile, key: str) -> list[str]:
    value = file.metadata.get(key)
    if not isinstance(value, list) or not value or not isinstance(value[0], str):
        raise InputError(f"{file.path} has no list of strings {key}. Take another conversion of the model.")
    return value


def _write_json(file: Path, value: dict[str, Any]) -> None:
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
