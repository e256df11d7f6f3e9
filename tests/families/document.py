"""docs/models.md: which models are supported, and what their tests measured."""

from __future__ import annotations

from collections.abc import Mapping

from tests.conftest import ROOT
from tests.families.case import all_cases, all_real

DOCUMENT = ROOT / "docs" / "models.md"

HEAD = """\
# Supported models

Written by `scripts/update_models.py` from `tests/families`: edit the cases there, not this file.

Each row is a small model with random weights whose logits are of order 10. Its FP32 graph is held against transformers
(or, for families that transformers does not have, an independent reference in NumPy): a prefill, 24 tokens with the
cache, three prompts of different lengths decoded together, and prefill in chunks, at most 0.001 apart; its INT4 graph
against the same rounded weights in FP32; its FP16 graph is finite and near. TensorRT-RTX builds an FP16 engine with two
profiles from it. *Difference* is the largest of a logit, *build* what the engine took on two CPU cores.

| models | what is special | `model_type` | difference | build |
|---|---|---|---|---|
"""

MIDDLE = """
## Published configurations that are read whole

Every field of their config.json is understood, and the tensors asked for hold exactly the published number of
parameters.

| model | parameters |
|---|---|
"""


def render(measured: Mapping[str, Mapping[str, float | str]]) -> str:
    """The page; a figure that is missing from `measured` (by case) is left empty."""
    rows = []
    for case in all_cases():
        figures = measured.get(case.name, {})
        difference, seconds = figures.get("largest_difference"), figures.get("build_seconds")
        rows.append(
            f"| {case.family} | {case.special} | `{figures.get('model_type', '')}` "
            f"| {'' if difference is None else f'{difference:.1e}'} | {'' if seconds is None else f'{seconds:.1f} s'} |"
        )
    real = [f"| {real.name} | {real.parameters:,} |" for real in all_real()]
    return HEAD + "\n".join(rows) + "\n" + MIDDLE + "\n".join(real) + "\n"
