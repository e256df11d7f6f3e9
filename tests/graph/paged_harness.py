"""Runs a decoder in the plugin form on ONNX Runtime: sequences that grow over shuffled, poisoned pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from tests.graph.harness import NUMPY, open_session, read_binding
from trtbuild.dtypes import DType
from trtbuild.graph import contract
from trtbuild.graph.decoder import GraphOptions, author_decoder
from trtbuild.graph.save import save_graph

Tokens = NDArray[np.int64]


def write_paged_graph(checkpoint: Path, *, page_size: int = 16, capacity: int = 64, dtype: DType = DType.F32) -> Path:
    file = checkpoint.parent / f"{checkpoint.name}-paged-{dtype.value}-{capacity}-{page_size}" / "model.onnx"
    save_graph(author_decoder(read_binding(checkpoint), GraphOptions(dtype, capacity, page_size)), file)
    return file


class PagedDecoder:
    """A session, and a pool of pages that hold NaN until they are written to. Sequences are told apart by a number."""

    def __init__(self, file: Path, pages: int = 24, seed: int = 0) -> None:
        self.session = open_session(file)
        self.inputs = {i.name for i in self.session.get_inputs()}
        self.pool = {
            i.name: ort.OrtValue.ortvalue_from_numpy(np.full([pages, *i.shape[1:]], np.nan, NUMPY[i.type]))
            for i in self.session.get_inputs()
            if i.name.startswith("kv_pages")
        }
        self.page_size = next(iter(self.pool.values())).shape()[3]
        self.free = np.random.default_rng(seed).permutation(pages).tolist()
        self.pages: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}

    def step(
        self, new: Mapping[int, Tokens], padding: int = 0, prompts: Sequence[int] = ()
    ) -> dict[int, NDArray[np.float32]]:
        """Logits [tokens, vocab] of each sequence's new tokens, all run as one batch in the order of `new`. The first
        sequences are at least as long as `prompts` say, of which these may be a part."""
        past = [self.lengths.get(sequence, 0) for sequence in new]
        counts = [len(tokens) for tokens in new.values()]
        for sequence, before, count in zip(new, past, counts, strict=True):
            own = self.pages.setdefault(sequence, [])
            own += [self.free.pop() for _ in range(-(-(before + count) // self.page_size) - len(own))]
            self.lengths[sequence] = before + count
        table = np.full((len(new), 1 + max(len(self.pages[sequence]) for sequence in new)), -1, np.int32)
        for row, sequence in enumerate(new):
            table[row, : len(self.pages[sequence])] = self.pages[sequence]
        bounds = np.cumsum([0, *counts])
        positions = [before + np.arange(count) for before, count in zip(past, counts, strict=True)]
        none = np.zeros(padding, np.int64)
        feeds = {
            contract.INPUT_IDS: np.concatenate([*new.values(), none]),
            contract.POSITION_IDS: np.concatenate([*positions, none]),
            contract.LOGITS_POSITIONS: np.arange(bounds[-1]),
            contract.BLOCK_TABLE: table,
            contract.CU_SEQLENS: bounds.astype(np.int32),
            contract.PAST_LENGTHS: np.asarray(past, np.int32),
            contract.SEQUENCE_LENGTHS: np.array(
                [max([*prompts[row : row + 1], self.lengths[row]]) for row in new], np.int64
            ),
        }
        binding = self.session.io_binding()
        binding.bind_output(contract.LOGITS, "cpu")
        for name in self.inputs & feeds.keys():
            binding.bind_cpu_input(name, feeds[name])
        for name, pages in self.pool.items():
            binding.bind_ortvalue_input(name, pages)
            binding.bind_ortvalue_output(name.replace("kv_pages", "kv_pages_out"), pages)
        self.session.run_with_iobinding(binding)
        logits = np.split(binding.get_outputs()[0].numpy(), bounds[1:-1])
        return dict(zip(new, logits, strict=True))


def play(
    decoder: PagedDecoder,
    rows: Sequence[Tokens],
    schedule: Sequence[Mapping[int, int]],
    padding: int = 0,
    prompts: Sequence[int] = (),
) -> list[NDArray[np.float32]]:
    """Each row's logits [tokens, vocab], of steps that take so many of its next tokens; rows beyond `rows` have none.

    Padding is added to every other step. A row begins with a prompt of as many tokens as `prompts` say.
    """
    done = [0] * len(rows)
    logits: list[list[NDArray[np.float32]]] = [[] for _ in rows]
    for index, counts in enumerate(schedule):
        new = {row: np.zeros(0, np.int64) for row in counts}
        for row in counts.keys() & range(len(rows)):
            new[row] = rows[row][done[row] : done[row] + counts[row]]
            done[row] += counts[row]
        for row, got in decoder.step(new, padding * (index % 2), prompts).items():
            if row < len(rows):
                logits[row].append(got)
    return [np.concatenate(parts) for parts in logits]


def mixed(lengths: Sequence[int], steps: int) -> list[dict[int, int]]:
    """A schedule of three prompts of these lengths, each followed by at least `steps` single tokens.

    Its batches hold a prompt beside a part of one, the rest of that beside a prompt, a single token and a sequence with
    none (number 9), and single tokens.
    """
    first, second, third = lengths
    part = second // 2
    return [{0: first, 1: part}, {1: second - part, 0: 1, 9: 0, 2: third}, *({2: 1, 0: 1, 1: 1} for _ in range(steps))]
