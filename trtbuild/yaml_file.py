"""YAML files that people write: read into nodes that know where they stood, so that errors can say it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from trtbuild.errors import InputError
from trtbuild.files import read_text

_LARGEST = 2**31 - 1
"""More is no batch and no cache that a machine could hold; it is a slip of the keyboard."""


def load_named(name_or_path: str, folder: str, what: str) -> Path:
    """The YAML file that a user named: a path, or a built-in one of the project's `folder`.

    Something with a path separator or a .yaml/.yml ending is a path. Raises InputError for an unknown name.
    """
    if "/" in name_or_path or name_or_path.endswith((".yaml", ".yml")):
        return Path(name_or_path)
    built_in = {file.stem: file for file in sorted(built_in_folder(folder).glob("*.yaml"))}
    if name_or_path not in built_in:
        raise InputError(
            f"There is no built-in {what} '{name_or_path}'{_did_you_mean(name_or_path, built_in)}. "
            f"There are: {', '.join(built_in)}; or give the path of a .yaml file."
        )
    return built_in[name_or_path]


class YamlFile:
    """One file's nodes, and the checks that name line and column. Raises InputError."""

    def __init__(self, file: Path, needs: str) -> None:
        """`needs` says what an empty file lacks."""
        self._file = file
        text = read_text(file)
        try:
            root = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            place = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else str(file)
            raise InputError(f"{place}: not valid YAML: {error.problem or error.context}.") from error
        except (yaml.YAMLError, RecursionError) as error:
            raise InputError(f"{file}: not valid YAML: {str(error).splitlines()[0]}.") from error
        if root is None:
            raise InputError(f"{file}:1:1: the file is empty; it needs {needs}.")
        self.root: Node = root

    def mapping(
        self, node: Node, what: str, required: tuple[str, ...] = (), optional: tuple[str, ...] = ()
    ) -> dict[str, Node]:
        """Keys to nodes. With `required`, exactly those and `optional` are allowed; without, any names."""
        if not isinstance(node, MappingNode):
            self.fail(node, f"{what} must be a mapping (key: value), not {kind(node)}")
        allowed = (*required, *optional)
        found: dict[str, Node] = {}
        for key, value in node.value:
            if not isinstance(key, ScalarNode) or not key.value.strip():
                self.fail(key, f"{what}: a key must be a name, not {kind(key)}")
            if key.value in found:
                self.fail(key, f"{what}: '{key.value}' is repeated")
            if required and key.value not in allowed:
                hint = _did_you_mean(key.value, allowed) or f"; the keys are {', '.join(allowed)}"
                self.fail(key, f"{what}: unknown key '{key.value}'{hint}")
            found[key.value] = value
        for key_name in required:
            if key_name not in found:
                self.fail(node, f"{what}: '{key_name}' is missing")
        return found

    def number(self, node: Node, what: str, least: int = 1) -> int:
        # Decimal digits only: YAML 1.1 also takes 010 for 8 and 1:30 for 90.
        if not isinstance(node, ScalarNode) or node.style or not re.fullmatch(r"-?(0|[1-9][0-9_]*)", node.value):
            self.fail(node, f"{what} must be a whole number, not {kind(node)}")
        value = int(node.value)
        if not least <= value <= _LARGEST:
            self.fail(node, f"{what}: {value} is {f'below {least}' if value < least else f'above {_LARGEST}'}")
        return value

    def choice(self, node: Node, what: str, choices: tuple[str, ...]) -> str:
        if not isinstance(node, ScalarNode) or node.value not in choices:
            self.fail(node, f"{what} must be {' or '.join(choices)}, not {kind(node)}")
        return str(node.value)

    def fail(self, node: Node, problem: str) -> NoReturn:
        mark = node.start_mark
        raise InputError(f"{self._file}:{mark.line + 1}:{mark.column + 1}: {problem}.")

    def texts(self, node: Node, what: str) -> list[tuple[str, Node]]:
        """A list of words, each with its node; one word alone counts as a list."""
        items = node.value if isinstance(node, SequenceNode) else [node]
        if not items:
            self.fail(node, f"{what} is empty")
        for item in items:
            if not isinstance(item, ScalarNode) or not item.value:
                self.fail(item, f"{what} must hold names, not {kind(item)}")
        return [(item.value, item) for item in items]


def kind(node: Node) -> str:
    """What a node is, in words."""
    if isinstance(node, MappingNode):
        return "a mapping"
    if isinstance(node, SequenceNode):
        return "a list"
    return f"'{node.value}'" if node.value else "nothing"


def _did_you_mean(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""


def built_in_folder(folder: str) -> Path:
    """The project's `folder` of files ready to use ("calibration"), from a checkout or as it was installed."""
    package = Path(__file__).resolve().parent
    installed = package / "data" / folder
    return installed if installed.is_dir() else package.parent / folder
