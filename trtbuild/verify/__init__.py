"""Is what was built the model that it was built from? Logits and greedy tokens against transformers in FP32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trtbuild.checkpoint import Checkpoint
from trtbuild.errors import InputError
from trtbuild.graph.facts import read_facts
from trtbuild.progress import Progress, Silent
from trtbuild.verify.continuation import Continuation
from trtbuild.verify.measures import Distance, distance
from trtbuild.verify.onnx_decoder import open_decoder
from trtbuild.verify.prompts import PROMPTS
from trtbuild.verify.reference import Reference

__all__ = ["Continuation", "Distance", "VerifyResult", "bound_for", "verify"]

BOUNDS = {"fp32": 1e-6, "fp16": 1e-3, "bf16": 1e-2}
"""By precision, the mean KL divergence (nats) that a right graph stays under. INT4's depends on the model."""


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """What was compared and how far apart it is."""

    onnx_file: Path
    precision: str
    distance: Distance
    prompts: tuple[Continuation, ...]

    @property
    def same_prompts(self) -> int:
        return sum(result.same_tokens == result.tokens for result in self.prompts)


def bound_for(precision: str) -> float | None:
    """The mean KL divergence above which a graph of this precision is wrong, or None where there is no such number."""
    return BOUNDS.get(precision)


def verify(
    onnx_file: Path,
    checkpoint: Checkpoint,
    *,
    tokens: int = 64,
    prompts: Sequence[str] = PROMPTS,
    progress: Progress | None = None,
) -> VerifyResult:
    """Run `prompts` through the graph (ONNX Runtime, CPU) and through transformers in FP32, and compare.

    Logits are compared over the prompt and the reference's continuation of `tokens` tokens; greedy continuations token
    by token. Raises InputError if the graph and the checkpoint do not belong together.
    """
    from tokenizers import Tokenizer

    progress = progress or Silent()
    facts = read_facts(onnx_file)
    made_from = facts.metadata.get("trtbuild.source_fingerprint")
    if made_from is not None and made_from != checkpoint.fingerprint():
        raise InputError(
            f"{onnx_file} was made from another checkpoint than {checkpoint.source} "
            f"(fingerprint {made_from[:12]} against {checkpoint.fingerprint()[:12]}). Name its own with --reference."
        )
    files = [file for file in checkpoint.tokenizer_files if file.name == "tokenizer.json"]
    if not files:
        raise InputError(f"{checkpoint.name} has no tokenizer.json, so no text can be put through it.")
    tokenizer = Tokenizer.from_file(str(files[0]))
    progress.stage("reference")
    reference = Reference(checkpoint)
    progress.stage("graph")
    encoded = [tokenizer.encode(prompt).ids[: facts.capacity - tokens] for prompt in prompts]
    graph = open_decoder(onnx_file, max(map(len, encoded)) + tokens)
    progress.stage("prompts")
    wanted, got, results = [], [], []
    for index, (prompt, ids) in enumerate(zip(prompts, encoded, strict=True)):
        want = reference.greedy(ids, tokens)
        have = graph.greedy(ids, tokens)
        whole = [*ids, *want[:-1]]
        wanted.append(reference.logits(whole))
        got.append(graph.step(np.asarray([whole], np.int64), [0])[0])
        results.append(Continuation.of(prompt, want, have, tokenizer.decode))
        progress.update(index + 1, len(prompts))
    return VerifyResult(onnx_file, facts.metadata.get("trtbuild.precision", ""), distance(wanted, got), tuple(results))
