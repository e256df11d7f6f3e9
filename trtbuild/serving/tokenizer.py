"""Prompts to token ids: the model's tokenizer.json and its chat template, without transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from .errors import RequestError
from .text import TokenBytes


class Tokenizer:
    """The tokenizer in a version's folder: tokenizer.json, tokenizer_config.json and, if any, chat_template.jinja."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError or ValueError for missing or malformed files."""
        import tokenizers

        self._config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        self._tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._special = {name: _content(self._config[name]) for name in _SPECIAL_TOKENS if self._config.get(name)}
        self._template_text = _template(folder, self._config)
        self.token_bytes = TokenBytes(self._tokenizer)

    def encode(self, text: str) -> list[int]:
        """Ids of a plain prompt, with what tokenizer.json adds to it and the BOS token if `add_bos_token` asks for it.

        An explicit `add_bos_token` wins over tokenizer.json, as it does in transformers' Llama tokenizers.
        """
        ids = self._encode(text, add_special_tokens=True)
        wanted = self._config.get("add_bos_token")
        bos = self._tokenizer.token_to_id(self._special.get("bos_token", ""))
        if wanted is None or bos is None:
            return ids
        if wanted and ids[:1] != [bos]:
            return [bos, *ids]
        if not wanted and ids[:1] == [bos] and not text.startswith(self._special["bos_token"]):
            return ids[1:]
        return ids

    def encode_chat(self, rendered: str) -> list[int]:
        """Ids of a rendered chat template, which carries its special tokens itself."""
        return self._encode(rendered, add_special_tokens=False)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some tokens, special ones left out."""
        return str(self._tokenizer.decode(list(ids)))

    @property
    def has_chat_template(self) -> bool:
        return self._template_text is not None

    def render_chat(self, messages: Sequence[Mapping[str, Any]], *, answer: bool = True) -> str:
        """The chat template over `messages` ({"role", "content"}), ending where the model's `answer` begins.

        Raises RequestError if the model has no template, or if the template refuses the messages, fails, or writes more
        than MAX_CHAT_LENGTH characters. The sandbox keeps a template from the process and from ranges of more than
        100,000; it cannot keep the model's author, whom the operator chose, from loops that write nothing.
        """
        import jinja2

        if self._template_text is None:
            raise RequestError("This model has no chat template; send a prompt as text_input instead of messages.")
        values = {"messages": messages, "add_generation_prompt": answer, "tools": None, "documents": None}
        try:
            return _joined(self._template.generate(**values, **self._special))
        except (
            jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError,
            MemoryError,
        ) as error:  # fmt: skip
            reason = str(error) or type(error).__name__
            raise RequestError(f"The model's chat template does not take these messages: {reason}") from error

    def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                f"The prompt holds half of a surrogate pair at character {error.start}, which is no text."
            ) from error
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    @cached_property
    def _template(self) -> Any:
        return _environment().from_string(self._template_text)


MAX_CHAT_LENGTH = 1 << 25
"""Characters that a chat template may write; a prompt of a million tokens has a fifth of them."""
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def _content(token: Any) -> str:
    """A special token of tokenizer_config.json is its text, or an object that holds it."""
    return str(token["content"] if isinstance(token, dict) else token)


def _template(folder: Path, config: dict[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several named templates: the default one is for plain chats
        template = next((entry["template"] for entry in template if entry["name"] == "default"), None)
    return template


def _joined(pieces: Iterator[str]) -> str:
    """The pieces of a text that a template writes; raises ValueError when it is too long for any prompt."""
    kept, length = [], 0
    for piece in pieces:
        kept.append(piece)
        length += len(piece)
        if length > MAX_CHAT_LENGTH:
            raise ValueError(f"it has written more than {MAX_CHAT_LENGTH} characters")
    return "".join(kept)


def _environment() -> Any:
    """Jinja as Hugging Face's templates expect it; sandboxed, since a template is a program from a model's author."""
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks the answer for training; when serving it is what it encloses."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment
