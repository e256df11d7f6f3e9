"""Calibration documents out of files: text, JSONL, Parquet, and files of a hub data set."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from trtbuild.checkpoint.hub import fetch_file
from trtbuild.errors import InputError
from trtbuild.files import read_text
from trtbuild.serving.errors import RequestError
from trtbuild.serving.tokenizer import Tokenizer

SEPARATOR = re.compile(r"^---[ \t]*\n", re.MULTILINE)
"""A line that ends a document of a text file."""

HUB = "hub:"
_HUB_FILE = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[^/]+))?/(?P<path>.+)", re.ASCII)

FORMS = '{"text": "…"} or {"messages": [{"role": "user", "content": "…"}, …]}'


def locate(source: str | Path) -> Path:
    """The file that a user named, fetched if it is one of a hub data set: hub:org/name[@revision]/path.

    Raises InputError for a name of another form and what the hub refuses, BuildError for a failed download.
    """
    text = str(source)
    if not text.startswith(HUB):
        return Path(source)
    match = _HUB_FILE.fullmatch(text.removeprefix(HUB))
    if match is None or ".." in text:
        raise InputError(f"{text!r} is no file of a data set. One looks like hub:org/name/train.jsonl (or @revision).")
    return fetch_file(match["repo"], match["path"], match["revision"])


def read_documents(file: Path) -> list[Document]:
    """The file's documents, not tokenised yet. Raises InputError for a file that is not what its name says."""
    if file.suffix == ".parquet":
        return [Document(f"{file}, row {number}", row) for number, row in enumerate(_rows(file))]
    text = read_text(file, "The calibration file")
    if file.suffix == ".jsonl":
        lines = enumerate(text.splitlines(), 1)
        return [Document(f"{file}:{number}", line) for number, line in lines if line]
    parts = enumerate(SEPARATOR.split(text), 1)
    return [Document(f"{file}, document {number}", {"text": part}) for number, part in parts if part.strip()]


class Document:
    """A text or a chat, and where it stands."""

    def __init__(self, where: str, record: str | dict[str, Any]) -> None:
        """`record` may be a line of JSON."""
        self._where, self._record = where, record

    def tokens(self, tokenizer: Tokenizer) -> list[int]:
        """A chat by the model's own template, or plainly where it has none. Raises InputError for another form."""
        record = _parsed(self._record, self._where) if isinstance(self._record, str) else self._record
        if isinstance(record, dict) and isinstance(record.get("text"), str):
            return tokenizer.encode(record["text"])
        messages = record.get("messages") if isinstance(record, dict) else None
        if not isinstance(messages, list) or not all(_is_message(message) for message in messages) or not messages:
            raise InputError(
                f"{self._where}: neither a 'text' nor 'messages' with a 'role' and a 'content' each. It is {FORMS}."
            )
        if not tokenizer.has_chat_template:
            return tokenizer.encode("\n\n".join(message["content"] for message in messages))
        try:
            return tokenizer.encode_chat(tokenizer.render_chat(messages, answer=False))
        except RequestError as error:
            raise InputError(f"{self._where}: {error}") from error


def _parsed(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: not valid JSON: {error}.") from error


def _rows(file: Path) -> list[dict[str, Any]]:
    """Of a Parquet file, the column of texts or that of chats."""
    try:
        import polars
    except ImportError as error:
        raise InputError("Parquet needs polars: pip install 'trtbuild[parquet]'.") from error
    try:
        there = polars.read_parquet_schema(file)
        column = next((name for name in ("text", "messages") if name in there), None)
        if column is None:
            raise InputError(f"{file} has the columns {', '.join(there)}, and neither 'text' nor 'messages'.")
        return polars.read_parquet(file, columns=[column]).rows(named=True)
    except (OSError, polars.exceptions.PolarsError) as error:
        raise InputError(f"The calibration file {file} cannot be read: {str(error).splitlines()[0]}.") from error


def _is_message(message: Any) -> bool:
    return isinstance(message, dict) and all(isinstance(message.get(key), str) for key in ("role", "content"))
