"""Experts whose stacked matrices TensorRT could not hold: the same logits, in several runs of experts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.families.case import Case, all_cases
from tests.families.models import Reference, save_checkpoint
from tests.graph.harness import Decoder, read_binding, write_graph
from trtbuild.architectures import binding, spec

CASES = [case for case in all_cases() if case.name in ("mixtral", "qwen2-moe", "gpt-oss", "deepseek-v3")]
TOKENS = np.arange(3, 27)


def expert_matrices(folder: Path) -> int:
    return sum(role in binding.EXPERT for role, _, _ in read_binding(folder).linears())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_experts_in_runs_of_three(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(case, tmp_path / case.name)
    whole = expert_matrices(tmp_path / case.name)
    experts = next(
        layer.mlp for layer in read_binding(tmp_path / case.name).spec.layers if isinstance(layer.mlp, spec.Experts)
    )
    fused = experts.mlp.gate not in (spec.GateLayout.NONE, spec.GateLayout.SEPARATE)
    monkeypatch.setattr(binding, "MAX_ELEMENTS", 3 * experts.mlp.width * (2 if fused else 1) * 64 + 1)
    assert expert_matrices(tmp_path / case.name) == whole * -(-experts.count // 3)

    got = Decoder(write_graph(tmp_path / case.name, capacity=case.capacity)).step(TOKENS[None], [0])[0]
    want = Reference(case, tmp_path / case.name).logits(TOKENS)
    assert np.abs(got - want).max() < 1e-3
