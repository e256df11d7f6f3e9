"""From token ids to text as it grows: whole characters only, and nothing that may yet become a stop word.

Tokens are mapped to bytes and the bytes decoded incrementally, so a token costs the same at any length, and a character
spread over several tokens appears when its last byte does. Bytes that are no UTF-8 become U+FFFD, one for each maximal
part of a character (the Unicode standard's recommendation, and what byte-level decoders do).
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from .stop_words import StopWords

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes:
    """Token id -> the bytes it adds to a text that it continues; b"" for special tokens and unknown ids.

    An added token that is not special and that the model's own vocabulary lacks is its text exactly: it was cut out of
    the text before the model saw it, though tokenizers' decoders rewrite it as if it were a piece ("é!" comes out as
    "\ufffd!"). One that the vocabulary has too, as Gemma's runs of "▁", is a piece like the others.

    Follows the decoder declared in tokenizer.json: ByteLevel (GPT-2's alphabet), Metaspace, and the sequences that
    SentencePiece models come with (Replace, ByteFallback, Fuse, Strip). That Strip, which drops the space before the
    first word of a text, is ignored: generated text continues a prompt, so its first space is part of it.
    """

    def __init__(self, tokenizer: Any) -> None:
        """Raises ValueError, naming the decoder, for one whose tokens have no bytes of their own."""
        self._token = tokenizer.id_to_token
        self._known = dict(_added_tokens(tokenizer))
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
        piece = self._token(token)
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


class Detokenizer:
    """The text of one sequence, token by token; `push` is to be called with every token, for `min_tokens` counts them.

    What vLLM does with stop words and `min_tokens` (vllm/v1/engine/detokenizer.py, since pull request 22014) happens
    here too: a stop word counts only if it is complete in the text of a token after the first `min_tokens`, which means
    that the answer has more tokens than that. It may begin before, and is cut off from there. One that is complete
    earlier is text as any other and is not looked at again. Unlike there, where as many characters as the longest stop
    word has are always held back, only what begins a stop word is, before `min_tokens` as well as after.

    Special tokens have no text, so a stop word is never found in one, though it reads the same; it is found where the
    model spells it in ordinary tokens. Text before and after a special token is joined: a stop word may span it.
    """

    __slots__ = ("_min_tokens", "_pushed", "_stop", "_token_bytes", "_utf8")

    def __init__(self, token_bytes: TokenBytes, stop_words: Sequence[str] = (), min_tokens: int = 0) -> None:
        self._token_bytes = token_bytes
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop = StopWords(stop_words)
        self._min_tokens = min_tokens
        self._pushed = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop word is complete; it and what follows it are not part of the text."""
        return self._stop.found

    def push(self, token: int) -> str:
        """The text that `token` makes certain; often "" and sometimes more than the token's own."""
        self._pushed += 1
        return self._show(self._utf8.decode(self._token_bytes(token)))

    def finish(self) -> str:
        """The rest, when no more tokens come; an incomplete character becomes U+FFFD, as in the full decode."""
        return self._show(self._utf8.decode(b"", final=True)) + self._stop.finish()

    def _show(self, text: str) -> str:
        return self._stop.push(text, may_end=self._pushed > self._min_tokens)


def _added_tokens(tokenizer: Any) -> Iterator[tuple[int, bytes]]:
    """The bytes of the special tokens and of the added ones that are no pieces of the model."""
    for token, added in tokenizer.get_added_tokens_decoder().items():
        if added.special:
            yield token, b""
        elif tokenizer.model.token_to_id(added.content) is None:
            yield token, added.content.encode()


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
