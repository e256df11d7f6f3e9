"""A decoder of one layer whose keys depend on how long the sequence is, with onnx.helper and again in NumPy.

Its "RoPE" multiplies the key of position p, width by width, with cos(p * f), where the frequencies f depend on the
sequence's length. Values are the keys' first half (no cache of their own, as in latent attention) or have their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from trtbuild.serving import graph_names as names
from trtbuild.serving.config import Backend, Cache, ServingConfig

VOCAB, WIDTH, HALF, SLOTS, CAPACITY, CHUNK = 320, 16, 8, 4, 64, 4
SHORT, LONG = 0.9, 0.35
"""Frequencies of sequences of up to `original` tokens and of longer ones."""


@dataclass(frozen=True)
class LengthDecoder:
    """`long`: two sets of frequencies, as in longrope; otherwise they shrink with every token, as in dynamic NTK."""

    long: bool = True
    own_values: bool = False
    original: int = 20

    def config(self, **changes: Any) -> ServingConfig:
        values: dict[str, Any] = {
            "model_name": "lengths",
            "vocab_size": VOCAB,
            "cache": Cache(1, SLOTS, 1, CAPACITY, WIDTH, HALF if self.own_values else 0),
            "prefill_chunk": CHUNK,
            "eos_token_ids": (),
            "profiles": (),
            "backends": (Backend("onnxruntime", "model.onnx", "float32"),),
            "sequence_lengths": True,
            "recompute_past": self.original if self.long else None,
        }
        return ServingConfig(**{**values, **changes})

    def weights(self) -> dict[str, np.ndarray]:
        random = np.random.default_rng(14)
        return {
            "embedding": random.standard_normal((VOCAB, WIDTH)).astype(np.float32),
            "w_q": (random.standard_normal((WIDTH, WIDTH)) / 4).astype(np.float32),
            "w_v": random.standard_normal((WIDTH, HALF)).astype(np.float32),
            "w_head": random.standard_normal((HALF, VOCAB)).astype(np.float32),
            "pace": np.linspace(1.0, 0.1, WIDTH, dtype=np.float32),
        }

    def next_token(self, tokens: list[int], key_lengths: list[int]) -> tuple[int, float]:
        """The most likely token and by how much, if the key of token i was made at sequence length key_lengths[i]."""
        w = self.weights()
        x = w["embedding"][tokens]
        lengths = np.array(key_lengths, np.float32)
        frequency = np.where(lengths > self.original, LONG, SHORT) if self.long else 10 / (10 + lengths)
        k = x * np.cos(np.arange(len(tokens))[:, None] * frequency[:, None] * w["pace"])
        v = x @ w["w_v"] if self.own_values else k[:, :HALF]
        scores = x[-1] @ w["w_q"] @ k.T
        weights = np.exp(scores - scores.max())
        logits = weights / weights.sum() @ v @ w["w_head"]
        best, second = np.sort(logits)[[-1, -2]]
        return int(logits.argmax()), float(best - second)

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        """What must come out. longrope: every token sees keys of the sequence's own length, as if nothing were cached;
        dynamic NTK: the key of a token is that of the length at which it came."""
        tokens = list(prompt)
        for _ in range(count):
            now = len(tokens)
            born = [max(len(prompt), position + 1) for position in range(now)]
            token, margin = self.next_token(tokens, [now] * now if self.long else born)
            assert margin > 1e-3, "rounding would decide"
            tokens.append(token)
        return tokens[len(prompt) :]

    def save(self, folder: Path) -> Path:
        """model.onnx and serving.json in `folder`."""
        nodes: list[Any] = []
        constants = {
            "zero": [0], "one": [1], "two": [2], "three": [3], "half": [HALF], "axes_13": [1, 3],
            "axes_12": [1, 2], "axes_012": [0, 1, 2], "original": [self.original],
        }  # fmt: skip
        arrays: dict[str, np.ndarray] = {name: np.array(value, np.int64) for name, value in constants.items()}
        scalars = {"short": SHORT, "long": LONG, "ten": 10.0, "never": -1e30}
        arrays |= {name: np.array(value, np.float32) for name, value in scalars.items()} | self.weights()

        def node(op: str, inputs: list[str], output: str, **attributes: Any) -> str:
            nodes.append(helper.make_node(op, inputs, [output], **attributes))
            return output

        x = node("Gather", ["embedding", names.INPUT_IDS], "x")
        length = node("Unsqueeze", [names.SEQUENCE_LENGTHS, "axes_12"], "length")
        if self.long:
            node("Where", [node("Greater", [length, "original"], "is_long"), "long", "short"], "frequency")
        else:
            real = node("Cast", [length], "length_f32", to=TensorProto.FLOAT)
            node("Div", ["ten", node("Add", [real, "ten"], "more")], "frequency")
        position = node("Cast", [names.POSITION_IDS], "position_f32", to=TensorProto.FLOAT)
        position = node("Unsqueeze", [position, "two"], "position")
        angle = node("Mul", [node("Mul", [position, "frequency"], "turn"), "pace"], "angle")
        new = node("Mul", [x, node("Cos", [angle], "cos")], "k_new")
        first = node("Slice", [names.POSITION_IDS, "zero", "one", "one"], "first")
        write_at = node("Squeeze", [first, "one"], "write_at")
        seen = node("Shape", [names.CACHE_POSITIONS], "seen")

        def cached(new: str, past: str, present: str) -> str:
            node("TensorScatter", [past, node("Unsqueeze", [new, "one"], f"{new}_row"), write_at], present, axis=2)
            return node("Slice", [present, "zero", seen, "two"], f"{new}_seen")

        k = cached(new, names.past_key(0), names.present_key(0))
        if self.own_values:
            v = cached(node("MatMul", [x, "w_v"], "v_new"), names.past_value(0), names.present_value(0))
        else:
            v = node("Slice", [k, "zero", "half", "three"], "v")
        q = node("Unsqueeze", [node("MatMul", [x, "w_q"], "q_flat"), "one"], "q")
        scores = node("MatMul", [q, node("Transpose", [k], "k_t", perm=[0, 1, 3, 2])], "scores")
        own = node("Unsqueeze", [names.POSITION_IDS, "axes_13"], "own")
        allowed = node("LessOrEqual", [node("Unsqueeze", [names.CACHE_POSITIONS, "axes_012"], "past"), own], "allowed")
        weights = node("Softmax", [node("Where", [allowed, scores, "never"], "masked")], "weights", axis=-1)
        mixed = node("Squeeze", [node("MatMul", [weights, v], "mixed_heads"), "one"], "mixed")
        wanted = node("Unsqueeze", [names.LOGITS_POSITIONS, "two"], "wanted")
        node("MatMul", [node("GatherND", [mixed, wanted], "chosen", batch_dims=1), "w_head"], names.LOGITS)

        config = self.config()
        integers = {
            names.INPUT_IDS: ["batch", "tokens"], names.POSITION_IDS: ["batch", "tokens"],
            names.CACHE_POSITIONS: ["kv"], names.LOGITS_POSITIONS: ["batch", "n"], names.SEQUENCE_LENGTHS: ["batch"],
        }  # fmt: skip
        inputs = [helper.make_tensor_value_info(n, TensorProto.INT64, shape) for n, shape in integers.items()]
        outputs = [helper.make_tensor_value_info(names.LOGITS, TensorProto.FLOAT, ["batch", "n", VOCAB])]
        for tensor in names.cache_tensors(1, config.cache.key_dim, config.cache.value_dim):
            shape = ["batch", 1, CAPACITY, tensor.width]
            inputs.append(helper.make_tensor_value_info(tensor.past, TensorProto.FLOAT, shape))
            outputs.append(helper.make_tensor_value_info(tensor.present, TensorProto.FLOAT, shape))
        used = {name for item in nodes for name in item.input}
        initializers = [numpy_helper.from_array(value, name) for name, value in arrays.items() if name in used]
        model = helper.make_model(
            helper.make_graph(nodes, "decoder", inputs, outputs, initializers),
            opset_imports=[helper.make_opsetid("", 24)],
            ir_version=11,
        )
        if config.recompute_past is not None:
            helper.set_model_props(model, {"trtbuild.recompute_past": str(config.recompute_past)})
        onnx.checker.check_model(model)
        file = folder / "model.onnx"
        onnx.save(model, file)
        (folder / "serving.json").write_text(config.to_json())
        return file
