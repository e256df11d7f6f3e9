"""An exported decoder on ONNX Runtime's CPU provider, its cache updated in place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtbuild.dtypes import DType
from trtbuild.graph import contract
from trtbuild.graph.facts import read_native_facts
from trtbuild.verify.bf16 import emulate_bf16


class OnnxDecoder:
    """One session and one cache of `slots` rows. A BF16 graph runs with BF16's rounding emulated in FP32."""

    def __init__(self, file: Path, slots: int = 1) -> None:
        import onnxruntime as ort

        facts = read_native_facts(file)
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
        self.session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self.slots = slots
        self._ort = ort
        dtype = np.float16 if facts.dtype is DType.F16 else np.float32
        self._sequence_lengths, self._recompute_past = facts.sequence_lengths, facts.recompute_past
        self._cache = [
            (tensor, np.zeros((slots, facts.kv_heads, facts.capacity, tensor.width), dtype))
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
        produced: list[int] = []
        step, position = np.asarray([prompt], np.int64), 0
        while len(produced) < count:
            logits = self.step(step, [position], last_only=True)
            position += step.shape[1]
            produced.append(int(logits[0, 0].argmax()))
            if position == self._recompute_past:
                step, position = np.asarray([[*prompt, *produced]], np.int64), 0
            else:
                step = np.asarray([[produced[-1]]], np.int64)
        return produced
