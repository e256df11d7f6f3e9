"""Calibration text: files of documents, tokenised, packed and cut into sequences of one length."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtbuild.calibration.documents import HUB, locate, read_documents
from trtbuild.checkpoint import Checkpoint
from trtbuild.errors import InputError
from trtbuild.hashing import Hasher
from trtbuild.serving.tokenizer import Tokenizer

LEAST_TOKENS = 512
"""Fewer say nothing about a matrix's inputs."""


LEFT_OVER = 8

SURPLUS = 4
"""So many times the text that is needed is tokenised, of what there is, for the samples to be chosen from."""


@dataclass(frozen=True, slots=True)
class SampleOptions:
    """Which text, and how much of it."""

    files: tuple[Path | str, ...]
    """Text, its documents apart by lines of `---`; JSONL or Parquet of {"text": …} or {"messages": [{"role",
    "content"}]}; or hub:org/name[@revision]/path of such a file in a hub data set."""
    count: int = 32
    length: int = 512
    """Tokens of a sample."""
    seed: int = 0
    """Of the order of documents and the choice of samples."""

    def changed(
        self, files: Sequence[Path | str] | None, count: int | None, length: int | None, seed: int | None
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
    left_over: NDArray[np.int64]
    """i64 [n, length], up to LEFT_OVER sequences of the text that are none of the samples."""
    description: dict[str, Any]
    """What build.json records: files by SHA-256, count, length, seed, packing, tokens there were."""


def read_samples(options: SampleOptions, checkpoint: Checkpoint) -> Samples:
    """Tokenise the documents with the checkpoint's own tokenizer, shuffle and pack them, and choose the samples.

    Documents follow each other with the end-of-sequence token between them. Raises InputError for text that is empty,
    too short for one sample or one repeated token, and for a file that is not what its name says.
    """
    tokenizer = tokenizer_of(checkpoint)
    end = _end_token(checkpoint)
    hasher = Hasher()
    files = [locate(file) for file in options.files]
    documents = [document for file in files for document in read_documents(file)]
    rng = random.Random(options.seed)
    rng.shuffle(documents)
    enough = SURPLUS * (options.count + LEFT_OVER) * options.length
    tokens: list[int] = []
    used = 0
    while used < len(documents) and len(tokens) < enough:
        tokens += (*documents[used].tokens(tokenizer), *end)
        used += 1
    stream = np.asarray(tokens, np.int64)
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
    sequences = stream[: whole * options.length].reshape(whole, options.length)
    others = sorted(set(range(whole)) - set(chosen))
    rng.shuffle(others)
    pairs = zip(options.files, files, strict=True)
    return Samples(
        sequences[chosen],
        sequences[sorted(others[:LEFT_OVER])],
        {
            "files": {_name(source, file): hasher.file(file) for source, file in pairs},
            "samples": len(chosen),
            "length": options.length,
            "seed": options.seed,
            "packing": "documents, shuffled, end to end",
            "documents": used,
            "of_documents": len(documents),
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


def _name(source: Path | str, file: Path) -> str:
    """What a description calls a file: no path of this machine."""
    return str(source) if str(source).startswith(HUB) else file.name
