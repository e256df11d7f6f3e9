"""Runs an authored graph on ONNX Runtime with plain NumPy arrays, for parity tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from trtbuild.architectures import Binding, read_decoder
from trtbuild.architectures.spec import DecoderSpec
from trtbuild.checkpoint import open_checkpoint
from trtbuild.dtypes import DType
from trtbuild.graph import contract
from trtbuild.graph.decoder import GraphOptions, author_decoder
from trtbuild.graph.save import save_graph


def with_rope(spec: DecoderSpec, **changes: Any) -> DecoderSpec:
    """The spec with another rotation in every layer."""
    layers = tuple(replace(layer, rope=replace(layer.rope, **changes)) for layer in spec.layers if layer.rope)
    return replace(spec, layers=layers)


NUMPY = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


def read_binding(checkpoint: Path) -> Binding:
    return read_decoder(open_checkpoint(checkpoint, cache=checkpoint.parent / "cache"))


def write_graph(
    checkpoint: Path, *, capacity: int = 64, dtype: DType = DType.F32, page_size: int | None = None
) -> Path:
    file = checkpoint.parent / f"{checkpoint.name}-{dtype.value}-{capacity}-{page_size}" / "model.onnx"
    save_graph(author_decoder(read_binding(checkpoint), GraphOptions(dtype, capacity, page_size)), file)
    return file


def open_session(file: Path) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    # By default ONNX Runtime rounds the activations of INT4 products to INT8.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    return ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])


class Decoder:
    """A session and a KV cache of `slots` rows, filled with garbage to begin with."""

    def __init__(self, file: Path, slots: int = 1) -> None:
        self.session = open_session(file)
        self.cache: dict[str, NDArray[np.generic]] = {
            i.name: np.full([slots, *i.shape[1:]], 777, NUMPY[i.type])
            for i in self.session.get_inputs()
            if i.name.startswith("past_")
        }

    def step(
        self,
        tokens: NDArray[np.int64],
        first: list[int],
        slots: slice = slice(None),
        lengths: list[int] | None = None,
    ) -> NDArray[np.float32]:
        """Logits [batch, tokens, vocab] of `tokens` [batch, tokens], whose rows begin at the positions `first`.

        `lengths` are the rows' whole lengths where a chunk of a longer prompt is run.
        """
        batch, count = tokens.shape
        positions = np.asarray(first)[:, None] + np.arange(count)[None]
        feeds = {
            contract.INPUT_IDS: tokens,
            contract.POSITION_IDS: positions,
            contract.CACHE_POSITIONS: np.arange(positions.max() + 1),
            contract.LOGITS_POSITIONS: np.tile(np.arange(count), (batch, 1)),
        }
        if any(i.name == contract.SEQUENCE_LENGTHS for i in self.session.get_inputs()):
            feeds[contract.SEQUENCE_LENGTHS] = np.asarray(lengths or positions[:, -1] + 1, np.int64)
        past = {name: value[slots] for name, value in self.cache.items()}
        outputs = [contract.LOGITS, *(name.replace("past", "present") for name in past)]
        logits, *present = self.session.run(outputs, {**feeds, **past})
        for name, value in zip(past, present, strict=True):
            self.cache[name][slots] = value
        return np.asarray(logits, np.float32)
