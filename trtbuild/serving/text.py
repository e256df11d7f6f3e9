"""From token ids to text as it grows: whole characters only, and nothing that may yet become a stop word.

Tokens are mapped to bytes and the bytes decoded incrementally, so a token costs the same at any length, and a character
spread over several tokens appears when its last byte does. Bytes that are no UTF-8 become U+FFFD, one for each maximal
part of a character (the Unicode standard's recommendation, and what byte-level decoders do).
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Sequence
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes:
    """Token id -> the bytes it adds to a text that it continues; b"" for special tokens and unknown ids.

    Follows the decoder declared in tokenizer.json: ByteLevel (GPT-2's alphabet), Metaspace, and the sequences that
    SentencePiece models come with (Replace, ByteFallback, Fuse, Strip). That Strip, which drops the space before the
    first word of a text, is ignored: generated text continues a prompt, so its first space is part of it.
    """

    def __init__(self, tokenizer: Any) -> None:
        """Raises ValueError, naming the decoder, for one whose tokens have no bytes of their own."""
        self._token = tokenizer.id_to_token
        self._special = {token for token, added in tokenizer.get_added_tokens_decoder().items() if added.special}
        self._known: dict[int, bytes] = {}
        self._byte_level = False
        self._byte_fallback = False
        self._replacements: list[tuple[str, str]] = []
        decoder = tokenizer.decoder
        for step in _decoder_steps(json.loads(decoder.__getstate__()) if decoder is not None else {"type": "none"}):
            self._follow(step)

    def __call__(self, token: int) -> bytes:
        found = self._known.get(token)
        if found is None:
            found = self._known[token] = self._bytes(token)
        return found

    def _follow(self, step: dict[str, Any]) -> None:
        match step:
            case {"type": "ByteLevel"}:
                self._byte_level = True
            case {"type": "ByteFallback"}:
                self._byte_fallback = True
            case {"type": "Metaspace", "replacement": character}:
                self._replacements.append((character, " "))
            case {"type": "Replace", "pattern": {"String": pattern}, "content": content}:
                self._replacements.append((pattern, content))
            case {"type": "Fuse"} | {"type": "Strip", "content": " ", "start": 0 | 1, "stop": 0}:
                pass
            case _:
                raise ValueError(
                    f"tokenizer.json declares the decoder {json.dumps(step)}, which cannot be followed token by token; "
                    "known are ByteLevel, Metaspace, ByteFallback, Fuse, Replace of a string, Strip of one first space"
                )

    def _bytes(self, token: int) -> bytes:
        piece = None if token in self._special else self._token(token)
        if piece is None:
            return b""
        if self._byte_level:
            try:
                return bytes(_BYTE_OF[character] for character in piece)
            except KeyError:
                return str(piece).encode()
        if self._byte_fallback and (match := _BYTE_TOKEN.fullmatch(piece)):
            return bytes([int(match[1], 16)])
        for pattern, content in self._replacements:
            piece = piece.replace(pattern, content)
        return str(piece).encode()


class StopWords:
    """Finds the stop word that is complete first, and holds back the end of the text that may begin one."""

    __slots__ = ("_held", "_words", "found")

    def __init__(self, words: Sequence[str]) -> None:
        self._words = tuple(words)
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """The text that is safe to show now that `text` has come; once `found`, nothing more is."""
        if self.found:
            return ""
        if not self._words:
            return text
        text = self._held + text
        ends = [(at + len(word), at) for word in self._words if (at := text.find(word)) >= 0]
        if ends:
            self.found = True
            self._held = ""
            return text[: min(ends)[1]]
        held = max(_overlap(text, word) for word in self._words)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def finish(self) -> str:
        """What was held back: the text ended before it became a stop word."""
        held, self._held = self._held, ""
        return held


class Detokenizer:
    """The text of one sequence, token by token."""

    __slots__ = ("_stop", "_token_bytes", "_utf8")

    def __init__(self, token_bytes: TokenBytes, stop_words: Sequence[str] = ()) -> None:
        self._token_bytes = token_bytes
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop = StopWords(stop_words)

    @property
    def stopped(self) -> bool:
        """Whether a stop word is complete; it and what follows it are not part of the text."""
        return self._stop.found

    def push(self, token: int) -> str:
        """The text that `token` makes certain; often "" and sometimes more than the token's own."""
        return self._stop.push(self._utf8.decode(self._token_bytes(token)))

    def finish(self) -> str:
        """The rest, when no more tokens come; an incomplete character becomes U+FFFD, as in the full decode."""
        return self._stop.push(self._utf8.decode(b"", final=True)) + self._stop.finish()


def _overlap(text: str, word: str) -> int:
    """The length of the longest end of `text` that is a beginning of `word`, and not all of it."""
    for length in range(min(len(text), len(word) - 1), 0, -1):
        if text.endswith(word[:length]):
            return length
    return 0


def _decoder_steps(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    if decoder["type"] == "Sequence":
        return [step for inner in decoder["decoders"] for step in _decoder_steps(inner)]
    return [decoder]


def _gpt2_alphabet() -> dict[str, int]:
    """Character -> byte: GPT-2 writes printable bytes as themselves, the others as U+0100 upwards in their order."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTE_OF = _gpt2_alphabet()
