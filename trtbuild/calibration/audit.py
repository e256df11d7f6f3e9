"""What FP16 does to every value of the network: magnitudes on the calibration text, and the error of rounding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from trtbuild.architectures import Role
from trtbuild.calibration.ranges import Gauge, Range
from trtbuild.calibration.runner import Arrays, PartRunner, embedded
from trtbuild.calibration.weights import PartWeights
from trtbuild.dtypes import DType
from trtbuild.exporting import Weights
from trtbuild.graph.decoder import GraphOptions, author_decoder
from trtbuild.graph.parts import Part, author_embedding, author_head, author_layer
from trtbuild.graph.widen import narrowing_casts, value_types
from trtbuild.progress import Progress
from trtbuild.quantize.floats import read_finite


def audit(weights: Weights, tokens: NDArray[np.int64], progress: Progress) -> tuple[Range, ...]:
    """The range of every value and weight that is FP16 in an FP16 network, in the order of the graph.

    `tokens` are i64 [samples, length], run in FP32 a layer and a sample at a time.
    """
    narrow = narrow_values(weights)
    layers = len(weights.binding.spec.layers)
    hidden = embedded(weights.binding, tokens, weights.table)
    ranges = [_of_batch(author_embedding(weights.binding).output, hidden), *_table(weights, tokens)]
    for layer in range(layers + 1):
        progress.update(layer, layers + 1, f"layer {layer}" if layer < layers else "head")
        last = layer == layers
        part = author_head(weights.binding) if last else author_layer(weights.binding, layer, tokens.shape[1])
        ranges += _part(weights, part, narrow, hidden, keep=not last)
    return tuple(found for found in ranges if found.name in narrow)


def narrow_values(weights: Weights) -> set[str]:
    """Names of values and weights that are FP16, or are cast to it, in this decoder's FP16 network."""
    capacity = min(2048, weights.binding.spec.max_positions)
    model = author_decoder(
        weights.binding, GraphOptions(DType.F16, capacity), weights.quantised, table=weights.table
    ).model
    types = value_types(model)
    narrow = {name for name, kind in types.items() if kind == TensorProto.FLOAT16}
    return narrow | {source for source, _ in narrowing_casts(model, types)}


def _table(weights: Weights, tokens: NDArray[np.int64]) -> Iterator[Range]:
    """What the embedding is made with: the rows of the table that occur, and all of the rest."""
    part, table = author_embedding(weights.binding), weights.binding.tensor(Role.EMBEDDING)
    if weights.table is None:
        yield _of_batch(table.name, read_finite(table, np.unique(tokens))[None])
    else:
        yield _of_batch(weights.table.scales.name, read_finite(weights.table.scales)[None])
    yield from _weights(weights, PartWeights(part, without={table.name}).arrays())


def _part(weights: Weights, part: Part, narrow: set[str], hidden: NDArray[np.float32], *, keep: bool) -> list[Range]:
    """The ranges of the part's values and weights; `hidden` becomes what the part makes of it, if it is to be kept."""
    loaded = PartWeights(part, weights.quantised)
    plain = [operand for operand in part.operands.values() if operand.routes is None and len(operand.matrix.parts) == 1]
    columns: dict[str, NDArray[np.float32]] = {}
    for operand in plain:
        squares = np.square(loaded.matrix(operand.matrix).numpy()).sum(axis=0)
        columns[operand.value] = columns.get(operand.value, 0) + squares
    names = [name for name in _values(part) if name in narrow or name == part.output or name in columns]
    runner, arrays = PartRunner(part, names), loaded.arrays()
    gauges = [Gauge(name, columns.get(name)) for name in names]
    moments = {name: np.zeros_like(value) for name, value in columns.items()}
    for sample in range(len(hidden)):
        for gauge, value in zip(gauges, runner.values(hidden[sample : sample + 1], arrays), strict=True):
            gauge.add(sample, value)
            if gauge.name in moments:
                moments[gauge.name] += np.square(value).reshape(-1, value.shape[-1]).sum(axis=0)
            if keep and gauge.name == part.output:
                hidden[sample] = value[0]
    inputs = {
        operand.matrix.parts[0].name: (moments[operand.value], operand.matrix.transposed)
        for operand in plain
        if operand.value in names
    }
    return [*(gauge.range() for gauge in gauges), *_weights(weights, arrays, inputs)]


def _values(part: Part) -> Iterator[str]:
    """The floating-point values that the part's nodes make; not its masks, whose numbers are chosen to fit."""
    types = value_types(part.model)
    for node in part.model.graph.node:
        if not node.name.startswith("/model/mask"):
            yield from (name for name in node.output if types.get(name) == TensorProto.FLOAT)


def _weights(
    weights: Weights, loaded: Arrays, inputs: Mapping[str, tuple[NDArray[np.float32], bool]] | None = None
) -> Iterator[Range]:
    """Those that are read as they are; of a matrix in INT4, its scales.

    `inputs` are, by the matrix, the second moments of what it multiplies, and whether it is stored as [in, out].
    """
    for name, value in loaded.items():
        quantised = weights.quantised.get(name)
        moments, transposed = (inputs or {}).get(name, (None, False))
        if quantised is not None:
            yield _of_batch(quantised.scales.name, read_finite(quantised.scales)[None])
        else:
            yield _of_batch(name, (value.T if transposed else value)[None], moments)


def _of_batch(name: str, value: NDArray[np.float32], importance: NDArray[np.float32] | None = None) -> Range:
    gauge = Gauge(name, importance)
    for sample in range(len(value)):
        gauge.add(sample, value[sample : sample + 1])
    return gauge.range()
