"""Running a part of the decoder on ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from trtbuild.architectures import Binding, Role
from trtbuild.calibration.weights import PartWeights
from trtbuild.dtypes import DType
from trtbuild.graph import contract
from trtbuild.graph.builder import value_info
from trtbuild.graph.parts import HIDDEN, Part, author_embedding
from trtbuild.quantize.floats import read_finite
from trtbuild.quantize.stored import QuantizedTable
from trtbuild.quantize.table import table_rows

BATCH_TOKENS = 2048
"""Tokens that go through a layer at a time."""

Arrays = Mapping[str, NDArray[np.float32]]


class PartRunner:
    """One session; weights are given with each batch, so they can change between two passes."""

    def __init__(self, part: Part, also: Sequence[str] = ()) -> None:
        """`also` names other values of the part, for `values`."""
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 3
        # Its threads would spin beside torch's, which take turns with them.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.enable_cpu_mem_arena = False
        self.part = part
        self._also = tuple(also)
        model = ModelProto()
        model.CopyFrom(part.model)
        known = {value.name for value in model.graph.output}
        model.graph.output.extend(value_info(name, DType.F32, None) for name in also if name not in known)
        self._session = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        self._inputs = {value.name for value in self._session.get_inputs()}

    def embed(self, tokens: NDArray[np.int64], weights: Arrays) -> NDArray[np.float32]:
        """Tokens [batch, tokens] -> f32 [batch, tokens, hidden]."""
        return self._run([self.part.output], {contract.INPUT_IDS: tokens}, tokens.shape, weights)[0]

    def layer(self, hidden: NDArray[np.float32], weights: Arrays) -> NDArray[np.float32]:
        """Whole sequences f32 [batch, tokens, hidden] through the layer."""
        return self._run([self.part.output], {HIDDEN: hidden}, hidden.shape[:2], weights)[0]

    def operands(self, hidden: NDArray[np.float32], weights: Arrays) -> dict[str, NDArray[np.float32]]:
        """What the part's matrices multiply, by the value's name, f32 [batch, tokens, width]."""
        taps = [name for name in self.part.taps if name != HIDDEN]
        values = dict(zip(taps, self._run(taps, {HIDDEN: hidden}, hidden.shape[:2], weights), strict=True))
        return {HIDDEN: hidden, **values}

    def values(self, hidden: NDArray[np.float32], weights: Arrays) -> list[NDArray[np.float32]]:
        """The values that the runner was made for, of hidden f32 [batch, tokens, hidden]."""
        return self._run(list(self._also), {HIDDEN: hidden}, hidden.shape[:2], weights)

    def logits(self, hidden: NDArray[np.float32], weights: Arrays) -> NDArray[np.float32]:
        """f32 [batch, tokens, vocab] of f32 [batch, tokens, hidden]."""
        return self._run([self.part.output], {HIDDEN: hidden}, hidden.shape[:2], weights)[0]

    def _run(
        self, outputs: list[str], own: Mapping[str, NDArray[Any]], shape: tuple[int, ...], weights: Arrays
    ) -> list[NDArray[np.float32]]:
        batch, tokens = shape
        positions = np.tile(np.arange(tokens), (batch, 1))
        feed = {
            contract.POSITION_IDS: positions,
            contract.LOGITS_POSITIONS: positions,
            contract.CACHE_POSITIONS: np.arange(tokens),
            contract.SEQUENCE_LENGTHS: np.full(batch, tokens),
            **{name: np.zeros((batch, heads, tokens, width), np.float32) for name, (heads, width) in self.part.caches},
            **weights,
            **own,
        }
        feed = {name: value for name, value in feed.items() if name in self._inputs}
        results: list[NDArray[np.float32]] = self._session.run(outputs, feed)
        return results


def batches(shape: tuple[int, ...]) -> Iterator[slice]:
    """Which samples of [samples, length] go through a layer together."""
    samples, length = shape[:2]
    step = max(1, BATCH_TOKENS // length)
    for first in range(0, samples, step):
        yield slice(first, min(first + step, samples))


def embedded(
    binding: Binding, tokens: NDArray[np.int64], quantised: QuantizedTable | None = None
) -> NDArray[np.float32]:
    """What the first layer is given for tokens [batch, tokens]; of the table, only the rows that occur are read."""
    part, table = author_embedding(binding), binding.tensor(Role.EMBEDDING)
    present, ids = np.unique(tokens, return_inverse=True)
    weights = dict(PartWeights(part, without={table.name}).arrays())
    weights[table.name] = read_finite(table, present) if quantised is None else table_rows(quantised, present)
    return PartRunner(part).embed(ids.reshape(tokens.shape), weights)
