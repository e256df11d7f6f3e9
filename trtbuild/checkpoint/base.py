"""What every source of a model becomes: a config, a tokenizer's files, and references to tensors, not yet read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trtbuild.dtypes import DType

QUANTIZATION = "quantization_config"
"""config.json's field that says how the weights are quantised."""


@dataclass(frozen=True, slots=True)
class TensorRef:
    """Where a tensor's bytes are: `length` bytes at `offset` (from the start of `file`), little-endian, C order."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    file: Path
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model on disk. `tensors` are references; nothing here reads weights."""

    name: str
    """What to call it: the last part of the hub id, the folder's or the GGUF file's name."""
    source: str
    """As the user gave it, with the hub's resolved revision behind an @."""
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    tensors: Mapping[str, TensorRef]
    tokenizer_files: tuple[Path, ...]
    """tokenizer.json, tokenizer_config.json, chat_template.jinja, special_tokens_map.json …, those that exist."""

    @property
    def weight_files(self) -> tuple[Path, ...]:
        return tuple(sorted({ref.file for ref in self.tensors.values()}))

    def unquantised(self, tensors: Mapping[str, TensorRef]) -> Checkpoint:
        """The same with other `tensors` and without what config.json says of how they are quantised."""
        config = {key: value for key, value in self.config.items() if key != QUANTIZATION}
        return replace(self, config=config, tensors=tensors)

    def fingerprint(self) -> str:
        """SHA-256 over the config and every tensor's name, type, shape and place; reads no weights."""
        digest = hashlib.sha256(json.dumps(self.config, sort_keys=True).encode())
        for name in sorted(self.tensors):
            ref = self.tensors[name]
            digest.update(f"{name} {ref.dtype.value} {ref.shape} {ref.file.name} {ref.offset} {ref.length}\n".encode())
        return digest.hexdigest()
