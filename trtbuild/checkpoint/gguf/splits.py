"""How byte-level vocabularies cut text before their merges apply, by the names that a GGUF gives these rules.

The rules are those of llama.cpp's src/llama-vocab.cpp and of the tokenizer.json files that were converted; where the
two differ (Qwen2's NFC), the latter's.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Split:
    """How a byte-level vocabulary wants text cut before its merges apply: each pattern in turn, matches isolated."""

    patterns: tuple[str, ...] = ()
    gpt2: bool = False
    """GPT-2's own pattern comes last."""
    nfc: bool = False
    ignore_merges: bool = False
    """A piece that is in the vocabulary is taken whole."""
    add_bos: bool = False
    """Where the file does not say."""


_DIGIT = r"\p{N}"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", _DIGIT)
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3_SPLIT = Split((_LLAMA3,), ignore_merges=True, add_bos=True)
_QWEN2_SPLIT = Split((_QWEN2,), nfc=True)

SPLITS = {
    "gpt-2": Split(gpt2=True),
    "smollm": Split((_DIGIT,), gpt2=True),
    "llama-bpe": _LLAMA3_SPLIT,
    "llama3": _LLAMA3_SPLIT,
    "llama-v3": _LLAMA3_SPLIT,
    "qwen2": _QWEN2_SPLIT,
    "deepseek-r1-qwen": _QWEN2_SPLIT,
    "tekken": Split((_TEKKEN,), ignore_merges=True, add_bos=True),
    "default": Split((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
}
"""By `tokenizer.ggml.pre`."""
