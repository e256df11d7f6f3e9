"""serving.json: what the model.py inside Triton must know of the build. Standard library only.

This package is copied into every emitted repository as `trtbuild_serving`; it imports nothing of trtbuild outside
itself (relative imports only), no torch and no transformers.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FORMAT = 3


@dataclass(frozen=True, slots=True)
class Cache:
    """The KV cache. In the native form it is static, per layer keys [slots, kv_heads, capacity, key_dim] and values
    [.., value_dim]; in the plugin form in pages, [pages, 2, kv_heads, page_size, key_dim]."""

    layers: int
    slots: int
    """Sequences that run at once."""
    kv_heads: int
    capacity: int
    """Positions of a sequence."""
    key_dim: int
    value_dim: int
    """0: values are not cached apart from the keys, and there is one tensor a layer."""
    page_size: int = 0
    """Positions of a page; 0: the native form."""
    pages: int = 0


@dataclass(frozen=True, slots=True)
class Profile:
    """One optimisation profile of the engine, as (min, opt, max); its place in the list is its index in the plan.

    `tokens` are those of each row; in the plugin form those of all sequences together."""

    name: str
    batch: tuple[int, int, int]
    tokens: tuple[int, int, int]
    kv: tuple[int, int, int]

    def covers(self, batch: int, tokens: int, kv: int) -> bool:
        return all(
            low <= value <= high
            for value, (low, _, high) in ((batch, self.batch), (tokens, self.tokens), (kv, self.kv))
        )


@dataclass(frozen=True, slots=True)
class Backend:
    """One way to run the model, tried in the order of the list when the model loads."""

    kind: str
    """"tensorrt", "tensorrt_rtx" or "onnxruntime"."""
    file: str
    """The plan or the ONNX file, relative to the version's folder."""
    dtype: str
    """The type of the KV cache's tensors: "float32", "float16" or "bfloat16"."""
    version: str = ""
    """The TensorRT version that built the plan; empty for ONNX."""
    targets: tuple[str, ...] = ()
    """Compute capabilities the plan was built for ("sm_89"); empty: any."""
    version_compatible: bool = False
    """The plan was built to run on later releases of the same major version too."""
    plugins: tuple[str, ...] = ()
    """Libraries, relative to the version's folder, with the plugins that the plan needs and does not carry itself."""


@dataclass(frozen=True, slots=True)
class Level:
    """What requests of one priority may ask of the queue."""

    limit: int
    """How many may wait; one more is refused."""
    timeout: float
    """Seconds that one may wait to be started; a client may ask for fewer."""
    ttft_objective: float | None = None
    """Seconds within which answers should begin. One that has waited too long for that lets those pass that have not:
    where more is asked than can be done, as many as possible are answered in time instead of all too late. None: in
    the order of their deadlines."""


LEVELS = (Level(64, 30.0), Level(256, 120.0), Level(1024, 1800.0))
"""Somebody waits for the answer; the default; batch jobs."""
ITL_OBJECTIVE = 0.2


@dataclass(frozen=True, slots=True)
class ServingConfig:
    """Everything the serving loop is told; written by the build, read when the model loads."""

    model_name: str
    vocab_size: int
    cache: Cache
    prefill_chunk: int
    """The most tokens of a prompt that one step takes."""
    eos_token_ids: tuple[int, ...]
    profiles: tuple[Profile, ...]
    backends: tuple[Backend, ...]
    sequence_lengths: bool = False
    """Whether the graph has that input: its RoPE depends on how long a sequence is."""
    recompute_past: int | None = None
    """A sequence that grows past so many tokens has its whole cache computed anew, because RoPE turns the keys of
    longer ones by other angles; None: that never happens."""
    levels: tuple[Level, ...] = LEVELS
    """By priority, 1, the highest, first."""
    default_priority: int = 2
    """Of a request that names none."""
    itl_objective: float = ITL_OBJECTIVE
    """Seconds between two tokens of an answer that prompts beside it should not exceed; how much of the prompts a step
    takes adapts to it."""
    patience: float = 30.0
    """Seconds after which a request that waits is started out of turn."""
    prefix_reuse: bool = True
    """Whether the keys and values of a prompt's beginning are used again for another one that begins so."""

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=2, sort_keys=True) + "\n"

    @staticmethod
    def from_json(text: str) -> ServingConfig:
        """Raises ValueError, saying which field, for anything but what `to_json` of this version writes."""
        data: dict[str, Any] = json.loads(text)
        found = data.pop("format", None)
        if found != FORMAT:
            raise ValueError(f"serving.json has format {found}, this package reads {FORMAT}: rebuild the repository")
        try:
            data["cache"] = Cache(**data["cache"])
            data["profiles"] = tuple(
                Profile(p["name"], tuple(p["batch"]), tuple(p["tokens"]), tuple(p["kv"])) for p in data["profiles"]
            )
            data["backends"] = tuple(_backend(b) for b in data["backends"])
            data["levels"] = tuple(Level(**level) for level in data["levels"])
            data["eos_token_ids"] = tuple(data["eos_token_ids"])
            return ServingConfig(**data)
        except (KeyError, TypeError) as error:
            raise ValueError(f"serving.json is not what this package writes: {error}") from error

    @staticmethod
    def load(file: Path) -> ServingConfig:
        return ServingConfig.from_json(file.read_text(encoding="utf-8"))


def _backend(data: dict[str, Any]) -> Backend:
    return Backend(**{**data, "targets": tuple(data["targets"]), "plugins": tuple(data.get("plugins", ()))})
