"""How long a step takes: what it must read and multiply, over what the hardware can."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from trtbuild.serving.work import Work


class Cost(Protocol):
    """How long steps take."""

    def step(self, work: Work) -> float:
        """Seconds."""
        ...


@dataclass(frozen=True, slots=True)
class Gpu:
    """One accelerator, by its data sheet."""

    name: str
    bandwidth: float
    """Bytes per second from its memory."""
    flops: float
    """Dense FP16 operations per second."""
    memory: float
    """Bytes."""


@dataclass(frozen=True, slots=True)
class Decoder:
    """A decoder's dimensions."""

    name: str
    parameters: float
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    weight_bytes: float = 2.0
    """Of one parameter."""

    @property
    def kv_bytes(self) -> int:
        """Of one position of the cache, in FP16."""
        return 2 * self.layers * self.kv_heads * self.head_dim * 2


GPUS = {gpu.name: gpu for gpu in (Gpu("h100", 3.35e12, 989e12, 80e9), Gpu("h200", 4.8e12, 989e12, 141e9))}
"""NVIDIA's data sheets of the SXM boards; FP16 without sparsity."""
DECODERS = {
    decoder.name: decoder for decoder in (Decoder("8b", 8.03e9, 32, 32, 8, 128), Decoder("70b", 70.6e9, 80, 64, 8, 128))
}
"""Llama 3's."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """Step times of a decoder whose layers are split over `gpus` of one kind.

    A step reads the weights once and each sequence's cache once, and multiplies each token with every weight and its
    query with every key before it; the slower of both counts. The shares of the data sheet that are reached are
    assumptions: 0.8 of the bandwidth, 0.6 of the operations.
    """

    decoder: Decoder
    gpu: Gpu
    gpus: int = 1
    bandwidth_share: float = 0.8
    flops_share: float = 0.6
    launch: float = 1e-3
    """Seconds of each step outside its kernels."""
    all_reduce: float = 15e-6
    """Seconds of one sum over the GPUs, of which a layer has two."""

    def step(self, work: Work) -> float:
        """Seconds."""
        _, tokens, positions, attended, answers, answered = work
        tokens, positions, attended = tokens + answers, positions + answered, attended + answered
        own = self.decoder
        read = own.parameters * own.weight_bytes + positions * own.kv_bytes
        multiplied = 2 * own.parameters * tokens + 4 * own.layers * own.heads * own.head_dim * attended
        memory = read / (self.gpus * self.gpu.bandwidth * self.bandwidth_share)
        arithmetic = multiplied / (self.gpus * self.gpu.flops * self.flops_share)
        sums = 2 * own.layers * self.all_reduce if self.gpus > 1 else 0.0
        return max(memory, arithmetic) + self.launch + sums

    @property
    def positions(self) -> int:
        """Cached positions that fit beside the weights, with a tenth of the memory left for everything else."""
        left = 0.9 * self.gpus * self.gpu.memory - self.decoder.parameters * self.decoder.weight_bytes
        return max(0, int(left / self.decoder.kv_bytes))
