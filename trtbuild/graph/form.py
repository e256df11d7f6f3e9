"""What differs between the two forms of a decoder: how tokens and the KV cache enter and leave the graph."""

from __future__ import annotations

from typing import Protocol

from onnx import ValueInfoProto


class Form(Protocol):
    """Everything between stays [batch, tokens, hidden] in both: ragged tokens are a batch of one row."""

    @property
    def input_ids(self) -> str:
        """i64 [batch, tokens]."""

    @property
    def position_ids(self) -> str:
        """i64 [batch, tokens]."""

    def prepare(self) -> None:
        """Write what all layers share; once, before anything else."""

    def attention(self, layer: int, x: str) -> str:
        """A layer's attention of normalised x [batch, tokens, hidden], through its output projection."""

    def wanted(self, x: str) -> str:
        """The rows of x [batch, tokens, hidden] whose logits are wanted, [batch, n, hidden]."""

    def logits(self, y: str) -> str:
        """Logits [batch, n, vocab] in the shape of the graph's output."""

    def inputs(self) -> list[ValueInfoProto]:
        """The graph's."""

    def outputs(self) -> list[ValueInfoProto]:
        """The graph's, logits first."""

    def metadata(self) -> dict[str, str]:
        """What the model must say of itself to whoever runs it."""
