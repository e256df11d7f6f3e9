"""The merges that a SentencePiece BPE vocabulary implies."""

from __future__ import annotations

from collections.abc import Mapping


def merges_from_scores(pieces: Mapping[str, float], vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """Every pair of pieces that joins to a piece, best score first, as transformers' Llama converter orders them.

    SentencePiece merges the neighbours whose union scores best; `tokenizers` wants that as a ranked list of pairs.
    """
    found = []
    for piece, score in pieces.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in pieces and right in pieces:
                found.append((-score, len(left), len(right), vocabulary[piece], vocabulary[left], left, right))
    found.sort()
    return [(left, right) for *_, left, right in found]
