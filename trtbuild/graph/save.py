"""A model and the weight files it refers to, in one folder."""

from __future__ import annotations

from pathlib import Path

from trtbuild.files import atomic_file, link_or_copy
from trtbuild.graph.decoder import AuthoredGraph


def save_graph(graph: AuthoredGraph, file: Path, *, place_weights: bool = True) -> None:
    """Write the model to `file`; link (or copy) each weight file it names beside it, where it is not there already.

    Parsers look for external data beside the model, so the two belong in one folder. `place_weights=False` is for a
    second model over weights that are already there.
    """
    with atomic_file(file) as temporary:
        if place_weights:
            for ref in graph.files:
                destination = file.parent / ref.file.name
                if not destination.exists():
                    link_or_copy(ref.file, destination)
        temporary.write_bytes(graph.model.SerializeToString(deterministic=True))
