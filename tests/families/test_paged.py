"""Every family in the plugin form: as transformers has it, or refused with the reason."""

from __future__ import annotations

import pytest

from tests.families.conftest import Model
from tests.families.test_parity import check, tokens_of
from tests.graph.harness import read_binding
from tests.graph.paged_harness import PagedDecoder, mixed, play, write_paged_graph
from trtbuild.errors import InputError
from trtbuild.graph.lengths import length_rules

STEPS = 4

REFUSED = {
    "deepseek-v2-lite": "latent", "deepseek-v2": "latent", "deepseek-v3": "latent", "deepseek-v3-halves": "latent",
    "gpt-oss": "sinks",
}  # fmt: skip


def test_mixed_batches_or_refused(model: Model) -> None:
    case = model.case
    if case.name in REFUSED:
        with pytest.raises(InputError, match=f"cannot express .* {REFUSED[case.name]}"):
            write_paged_graph(model.folder)
        return
    depends = length_rules(read_binding(model.folder).spec, case.capacity).sequence_lengths
    rows = [tokens_of(model, length + STEPS, 2 + slot) for slot, length in enumerate(case.lengths)]
    decoder = PagedDecoder(write_paged_graph(model.folder, capacity=case.capacity))
    got = play(decoder, rows, mixed(case.lengths, STEPS - 1), padding=2, prompts=case.lengths)
    for row, length, logits in zip(rows, case.lengths, got, strict=True):
        row = row[: len(logits)]
        check(model, logits, model.reference.continued(row, length) if depends else model.reference.logits(row))
