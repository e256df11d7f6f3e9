"""Token id -> text, which log probabilities are reported with."""

from __future__ import annotations

import asyncio
import codecs
from pathlib import Path
from typing import Any

from trtbuild.serving.text import TokenBytes


class Tokens:
    """The tokens of one model: the bytes that each adds to a text, and a text to show for it."""

    def __init__(self, file: Path) -> None:
        """`file` is a tokenizer.json. Raises OSError or ValueError for one that cannot be read."""
        import tokenizers

        self._tokenizer: Any = tokenizers.Tokenizer.from_file(str(file))
        self._bytes = TokenBytes(self._tokenizer)

    def text_bytes(self, token: int) -> bytes:
        """What it adds to an answer's text: nothing, if it is a special token."""
        return self._bytes(token)

    def shown_bytes(self, token: int) -> bytes:
        """The same; of a special token its name, such as <|im_end|>."""
        return self._bytes(token) or str(self._tokenizer.id_to_token(token) or "").encode()

    def is_part(self, token: int) -> bool:
        """Whether its bytes are part of a character, so no text."""
        try:
            self.shown_bytes(token).decode("utf-8")
        except UnicodeDecodeError:
            return True
        return False

    def shown(self, token: int) -> str:
        r"""A text for it. Bytes that are part of a character are written \xe2\x80, as OpenAI does."""
        raw = self.shown_bytes(token)
        return "".join(rf"\x{byte:02x}" for byte in raw) if self.is_part(token) else raw.decode("utf-8")


class TokenTables:
    """The `Tokens` of each model, read when they are first wanted and not before: few clients ask for them."""

    def __init__(self) -> None:
        self._tables: dict[Path, asyncio.Task[Tokens]] = {}

    async def of(self, folder: Path) -> Tokens:
        """Those of the model in a version's `folder`."""
        if folder not in self._tables:
            reading = asyncio.to_thread(Tokens, folder / "tokenizer.json")
            self._tables[folder] = asyncio.create_task(reading)
        return await asyncio.shield(self._tables[folder])


class Offsets:
    """Where in an answer's text its tokens begin, in characters."""

    def __init__(self, tokens: Tokens, start: int) -> None:
        self._tokens = tokens
        self._place = start
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> int:
        """Of the next token; of one that completes a character, where that character begins."""
        place = self._place
        self._place += len(self._utf8.decode(self._tokens.text_bytes(token)))
        return place
