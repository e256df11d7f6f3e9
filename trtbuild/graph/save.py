"""A model and the weight files it refers to, in one folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from trtbuild.files import atomic_file, link_or_copy
from trtbuild.graph.decoder import AuthoredGraph


def save_graph(graph: AuthoredGraph, file: Path, *, copy_weights: bool = False) -> None:
    """Write the model to `file`, and beside it each weight file that it names and that is not there already.

    Parsers look for external data beside the model. The weights are hard links where the file system has them:
    TensorRT and ONNX Runtime read those, but onnx's own loader refuses a file with several names as a possible attack;
    `copy_weights` is for such readers.
    """
    with atomic_file(file) as temporary:
        for ref in graph.files:
            destination = file.parent / ref.file.name
            if not destination.exists():
                (shutil.copyfile if copy_weights else link_or_copy)(ref.file, destination)
        temporary.write_bytes(graph.model.SerializeToString(deterministic=True))
