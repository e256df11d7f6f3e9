"""Calibration recipes: YAML to SampleOptions, with the line and column of whatever is wrong."""

from __future__ import annotations

from pathlib import Path

from yaml.nodes import Node

from trtbuild.calibration.documents import HUB
from trtbuild.calibration.samples import SampleOptions
from trtbuild.yaml_file import YamlFile, load_named

LEAST_LENGTH = 16
"""Tokens of a sample; fewer are no text."""


def load_recipe(name_or_path: str) -> SampleOptions:
    """The recipe of a file, or a built-in one (`default`, `quick`). Raises InputError."""
    return read_recipe(load_named(name_or_path, "calibration", "calibration recipe"))


def read_recipe(file: Path) -> SampleOptions:
    """Read and check one recipe; the data's paths are relative to its folder, but for files of the hub."""
    source = YamlFile(file, "the keys 'data', 'samples' and 'length'")
    top = source.mapping(source.root, "the file", required=("data", "samples", "length"), optional=("seed",))
    entries = source.texts(top["data"], "data")
    files = tuple(
        text if text.startswith(HUB) else _existing(source, file.parent / text, node) for text, node in entries
    )
    length = source.number(top["length"], "length", LEAST_LENGTH)
    seed = source.number(top["seed"], "seed", 0) if "seed" in top else 0
    return SampleOptions(files, source.number(top["samples"], "samples"), length, seed)


def _existing(source: YamlFile, file: Path, node: Node) -> Path:
    if not file.is_file():
        source.fail(node, f"data: there is no file {file}")
    return file
