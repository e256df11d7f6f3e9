"""Reading a GGUF's keys so that none that changes the arithmetic goes unread."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from trtbuild.checkpoint.gguf.reader import GgufFile
from trtbuild.errors import InputError

_INERT = frozenset(
    {"vocab_size", "tensor_data_layout", "rope.scaling.finetuned", "rope.scaling.original_context_length"}
)
"""Keys that leave the arithmetic alone, or repeat what the tensors say."""
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "expert_count": (0,),
    "expert_used_count": (0,),
    "attention.causal": (True,),
    "rope.scaling.attn_factor": (0.0, 1.0),
}
"""Keys that are understood only with these values."""


class Keys:
    """Typed access to the keys of one architecture, which remembers what was read."""

    def __init__(self, file: GgufFile, architecture: str) -> None:
        self.path = file.path
        self._prefix = f"{architecture}."
        self._metadata = file.metadata
        self._read: set[str] = set()

    def integer(self, key: str, default: int | None = None, minimum: int = 1) -> int:
        return int(self._get(key, default, f"an integer from {minimum} up", lambda v: type(v) is int and v >= minimum))

    def real(self, key: str, default: float | None = None) -> float:
        return float(
            self._get(key, default, "a number above 0", lambda v: type(v) in (int, float) and 0 < v < math.inf)
        )

    def text(self, key: str, default: str) -> str:
        return str(self._get(key, default, "a string", lambda value: isinstance(value, str)))

    def refuse(self, key: str, why: str) -> InputError:
        return InputError(
            f"{self.path}: {self._prefix}{key} = {self._metadata[self._prefix + key]!r:.80} {why}. "
            "Take the model's safetensors checkpoint instead."
        )

    def check_all_read(self) -> None:
        """Raise InputError for a key that nobody read: it may change the arithmetic."""
        for full, value in self._metadata.items():
            key = full.removeprefix(self._prefix)
            if full == key or key in self._read or key in _INERT or value in _NEUTRAL.get(key, ()):
                continue
            raise self.refuse(key, "is not one that trtbuild understands, and it may change the arithmetic")

    def _get(self, key: str, default: Any, wanted: str, fits: Callable[[Any], bool]) -> Any:
        self._read.add(key)
        value = self._metadata.get(self._prefix + key)
        if value is None:
            if default is None:
                raise InputError(f"{self.path} has no key {self._prefix}{key}. Download it again.")
            return default
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]  # some converters write one number per layer
        if not fits(value):
            raise self.refuse(key, f"is not {wanted}")
        return value
