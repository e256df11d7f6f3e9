"""An exported decoder on ONNX Runtime's CPU provider, its cache updated in place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trtbuild.dtypes import DType
from trtbuild.graph import contract
from trtbuild.graph.facts import DecoderFacts, read_facts, read_native_facts
from trtbuild.verify.bf16 import emulate_bf16


def open_decoder(file: Path, positions: int) -> OnnxDecoder | PagedDecoder:
    """A decoder in either form; one in the plugin form gets pages for a sequence of `positions`."""
    facts = read_facts(file)
    return OnnxDecoder(file) if facts.page_size is None else PagedDecoder(file, positions)


def open_session(file: Path, facts: DecoderFacts) -> Any:
    """An InferenceSession. A BF16 graph runs with BF16's rounding emulated in FP32."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3
    # What the graph says; by default ONNX Runtime rounds the activations of INT4 products to INT8.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    model: str | bytes = str(file)
    if facts.dtype is DType.BF16:
        # The optimiser would take a cast to BF16 and back for nothing.
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(file.parent.absolute())
        )
        model = emulate_bf16(file)
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


class OnnxDecoder:
    """A decoder in the native form: one session and one cache of `slots` rows."""

    def __init__(self, file: Path, slots: int = 1) -> None:
        import onnxruntime as ort

        facts = read_native_facts(file)
        self.session = open_session(file, facts)
        self.slots = slots
        self._ort = ort
        self._sequence_lengths, self._recompute_past = facts.sequence_lengths, facts.recompute_past
        self._cache = [
            (tensor, np.zeros((slots, facts.kv_heads, facts.capacity, tensor.width), _stored(facts)))
            for tensor in contract.cache_tensors(facts.layers, facts.key_dim, facts.value_dim)
        ]

    def step(
        self,
        tokens: NDArray[np.int64],
        starts: Sequence[int],
        first_slot: int = 0,
        *,
        lengths: Sequence[int] | None = None,
        last_only: bool = False,
    ) -> NDArray[np.float32]:
        """Run `tokens` [batch, n], whose rows begin at the positions `starts`, in the slots from `first_slot` on.

        `lengths` are the rows' sequence lengths, for a graph that takes them and a chunk that is not its prompt's last;
        otherwise a sequence ends with its row. Returns logits f32 [batch, n, vocab], or [batch, 1, vocab] with
        `last_only`.
        """
        batch, count = tokens.shape
        positions = np.asarray(starts, np.int64)[:, None] + np.arange(count)[None]
        wanted = np.asarray([count - 1]) if last_only else np.arange(count)
        binding = self.session.io_binding()
        inputs: dict[str, Any] = {
            contract.INPUT_IDS: tokens,
            contract.POSITION_IDS: positions,
            contract.CACHE_POSITIONS: np.arange(positions.max() + 1),
            contract.LOGITS_POSITIONS: np.tile(wanted, (batch, 1)),
        }
        if self._sequence_lengths:
            inputs[contract.SEQUENCE_LENGTHS] = positions[:, -1] + 1 if lengths is None else lengths
        for name, value in inputs.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(value, np.int64))
        binding.bind_output(contract.LOGITS, "cpu")
        for tensor, rows in self._cache:
            value = self._ort.OrtValue.ortvalue_from_numpy(rows[first_slot : first_slot + batch])
            binding.bind_ortvalue_input(tensor.past, value)
            binding.bind_ortvalue_output(tensor.present, value)
        self.session.run_with_iobinding(binding)
        logits: NDArray[np.float32] = binding.get_outputs()[0].numpy()
        return logits

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """The `count` most likely tokens after `prompt`, whatever they are: nothing stops it early."""
        return _greedy(self.step, prompt, count, self._recompute_past)


class PagedDecoder:
    """A decoder in the plugin form, by the definition that its nodes carry, and one sequence.

    Its pages are in random order and hold NaN until they are written to, so that a wrong page shows.
    """

    def __init__(self, file: Path, positions: int, *, seed: int = 0) -> None:
        import onnxruntime as ort

        facts = read_facts(file)
        assert facts.page_size is not None
        self.session = open_session(file, facts)
        self._recompute_past, self._position_ids = facts.recompute_past, facts.position_ids
        self._sequence_lengths = facts.sequence_lengths
        pages = -(-positions // facts.page_size)
        # One more than the sequence needs, which nothing may be read from.
        self._table = np.random.default_rng(seed).permutation(pages + 1)[None, :pages].astype(np.int32)
        shape = (pages + 1, 2, facts.kv_heads, facts.page_size, facts.key_dim)
        self._pages = [
            ort.OrtValue.ortvalue_from_numpy(np.full(shape, np.nan, _stored(facts))) for _ in range(facts.layers)
        ]

    def step(self, tokens: NDArray[np.int64], starts: Sequence[int], *, last_only: bool = False) -> NDArray[np.float32]:
        """Run `tokens` [1, n] from the position starts[0] on; logits f32 [1, n, vocab], or [1, 1, vocab]."""
        count, past = tokens.shape[1], starts[0]
        binding = self.session.io_binding()
        inputs: dict[str, Any] = {
            contract.INPUT_IDS: tokens[0],
            contract.LOGITS_POSITIONS: np.asarray([count - 1]) if last_only else np.arange(count),
            contract.BLOCK_TABLE: self._table,
            contract.CU_SEQLENS: np.asarray([0, count], np.int32),
            contract.PAST_LENGTHS: np.asarray([past], np.int32),
        }
        if self._position_ids:
            inputs[contract.POSITION_IDS] = past + np.arange(count)
        if self._sequence_lengths:
            inputs[contract.SEQUENCE_LENGTHS] = np.asarray([past + count])
        for name, value in inputs.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(value))
        binding.bind_output(contract.LOGITS, "cpu")
        for layer, pages in enumerate(self._pages):
            binding.bind_ortvalue_input(contract.kv_pages(layer), pages)
            binding.bind_ortvalue_output(contract.kv_pages_out(layer), pages)
        self.session.run_with_iobinding(binding)
        logits: NDArray[np.float32] = binding.get_outputs()[0].numpy()[None]
        return logits

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """The `count` most likely tokens after `prompt`, whatever they are: nothing stops it early."""
        return _greedy(self.step, prompt, count, self._recompute_past)


class _Step(Protocol):
    def __call__(self, tokens: NDArray[np.int64], starts: Sequence[int], *, last_only: bool) -> NDArray[np.float32]: ...


def _greedy(run: _Step, prompt: Sequence[int], count: int, recompute_past: int | None) -> list[int]:
    produced: list[int] = []
    step, position = np.asarray([prompt], np.int64), 0
    while len(produced) < count:
        logits = run(step, [position], last_only=True)
        position += step.shape[1]
        produced.append(int(logits[0, 0].argmax()))
        if position == recompute_past:
            step, position = np.asarray([[*prompt, *produced]], np.int64), 0
        else:
            step = np.asarray([[produced[-1]]], np.int64)
    return produced


def _stored(facts: DecoderFacts) -> type[np.float16] | type[np.float32]:
    """What the cache is held in; BF16 is emulated in FP32."""
    return np.float16 if facts.dtype is DType.F16 else np.float32
