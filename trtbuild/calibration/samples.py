"""Calibration text: files of documents, tokenised, packed and cut into sequences of one length."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtbuild.checkpoint import Checkpoint
from trtbuild.errors import InputError
from trtbuild.files import read_text
from trtbuild.serving.errors import RequestError
from trtbuild.serving.tokenizer import Tokenizer

SEPARATOR = re.compile(r"^---[ \t]*\n", re.MULTILINE)
"""A line that ends a document of a text file."""

LEAST_TOKENS = 512
"""Fewer say nothing about a matrix's inputs."""


@dataclass(frozen=True, slots=True)
class SampleOptions:
    """Which text, and how much of it."""

    files: tuple[Path, ...]
    """Text, its documents apart by lines of `---`, or JSONL of {"text": …} or {"messages": [{"role", "content"}]}."""
    count: int = 32
    length: int = 512
    """Tokens of a sample."""
    seed: int = 0
    """Of the order of documents and the choice of samples."""

    def changed(
        self, files: Sequence[Path] | None, count: int | None, length: int | None, seed: int | None
    ) -> SampleOptions:
        """The same with what is given in its place."""
        return SampleOptions(
            tuple(files) if files else self.files,
            self.count if count is None else count,
            self.length if length is None else length,
            self.seed if seed is None else seed,
        )


@dataclass(frozen=True, slots=True)
class Samples:
    """`tokens` i64 [count, length], and where they come from."""

    tokens: NDArray[np.int64]
    description: dict[str, Any]
    """What build.json records: files by SHA-256, count, length, seed, packing, tokens there were."""


def read_samples(options: SampleOptions, checkpoint: Checkpoint) -> Samples:
    """Tokenise the documents with the checkpoint's own tokenizer, shuffle and pack them, and choose the samples.

    Documents follow each other with the end-of-sequence token between them. Raises InputError for text that is empty,
    too short for one sample or one repeated token, and for a file that is not what its name says.
    """
    tokenizer = tokenizer_of(checkpoint)
    end = _end_token(checkpoint)
    documents = [ids for file in options.files for ids in _documents(file, tokenizer)]
    rng = random.Random(options.seed)
    rng.shuffle(documents)
    stream = np.asarray([token for ids in documents for token in (*ids, *end)], np.int64)
    names = ", ".join(str(file) for file in options.files)
    whole = len(stream) // options.length
    if not whole or whole * options.length < min(LEAST_TOKENS, options.count * options.length):
        raise InputError(
            f"The calibration text ({names}) has {len(stream)} tokens; at least {max(options.length, LEAST_TOKENS)} "
            "are needed. Give more text with --data, or a smaller --length."
        )
    if len(np.unique(stream)) < 16:
        raise InputError(
            f"The calibration text ({names}) holds {len(np.unique(stream))} different tokens; one thing said over and "
            "over calibrates nothing. Give text like what the model will see."
        )
    vocabulary = checkpoint.config.get("vocab_size")
    if isinstance(vocabulary, int) and int(stream.max()) >= vocabulary:
        raise InputError(
            f"{checkpoint.name}: its tokenizer gives the token {int(stream.max())}, and the model's vocabulary has "
            f"{vocabulary}. The tokenizer is another model's."
        )
    chosen = sorted(rng.sample(range(whole), min(options.count, whole)))
    tokens = stream[: whole * options.length].reshape(whole, options.length)[chosen]
    return Samples(
        tokens,
        {
            "files": {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in options.files},
            "samples": len(chosen),
            "length": options.length,
            "seed": options.seed,
            "packing": "documents, shuffled, end to end",
            "documents": len(documents),
            "tokens_in_all": len(stream),
        },
    )


def tokenizer_of(checkpoint: Checkpoint) -> Tokenizer:
    """The checkpoint's tokenizer. Raises InputError if it has none."""
    folders = {file.parent for file in checkpoint.tokenizer_files if file.name == "tokenizer.json"}
    if not folders:
        raise InputError(f"{checkpoint.name} has no tokenizer.json, so no text can be put through it.")
    try:
        return Tokenizer(folders.pop())
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{checkpoint.name}: its tokenizer cannot be read: {error}.") from error


def _end_token(checkpoint: Checkpoint) -> Sequence[int]:
    end = checkpoint.config.get("eos_token_id")
    end = end[0] if isinstance(end, list) and end else end
    return (end,) if isinstance(end, int) else ()


def _documents(file: Path, tokenizer: Tokenizer) -> list[list[int]]:
    text = read_text(file, "The calibration file")
    if file.suffix == ".jsonl":
        return [_record(file, number, line, tokenizer) for number, line in enumerate(text.splitlines(), 1) if line]
    return [tokenizer.encode(document) for document in SEPARATOR.split(text) if document.strip()]


def _record(file: Path, number: int, line: str, tokenizer: Tokenizer) -> list[int]:
    """One line of a JSONL file as tokens, a chat by the model's own template, or plainly where it has none."""
    where = f"{file}:{number}"
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: not valid JSON: {error}.") from error
    if isinstance(record, dict) and isinstance(record.get("text"), str):
        return tokenizer.encode(record["text"])
    messages = record.get("messages") if isinstance(record, dict) else None
    if not isinstance(messages, list) or not all(_is_message(message) for message in messages) or not messages:
        raise InputError(
            f"{where}: neither a 'text' nor 'messages' with a 'role' and a 'content' each. "
            'A line is {"text": "…"} or {"messages": [{"role": "user", "content": "…"}, …]}.'
        )
    if not tokenizer.has_chat_template:
        return tokenizer.encode("\n\n".join(message["content"] for message in messages))
    try:
        return tokenizer.encode_chat(tokenizer.render_chat(messages, answer=False))
    except RequestError as error:
        raise InputError(f"{where}: {error}") from error


def _is_message(message: Any) -> bool:
    return isinstance(message, dict) and all(isinstance(message.get(key), str) for key in ("role", "content"))
