"""Profile files: YAML to ProfileSet, with the line and column of whatever is wrong."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from trtbuild.engine.profiles import Profile, ProfileSet, Range
from trtbuild.errors import InputError

_LARGEST = 2**31 - 1
"""More is no batch and no cache that a machine could hold; it is a slip of the keyboard."""


def load_profiles(name_or_path: str) -> ProfileSet:
    """The profiles of a file, or of a built-in set (`chat`, `long-context`, `batch-scoring`).

    Something with a path separator or a .yaml/.yml ending is a path. Raises InputError.
    """
    if "/" in name_or_path or name_or_path.endswith((".yaml", ".yml")):
        return read_profiles(Path(name_or_path))
    built_in = {file.stem: file for file in sorted(_built_in_folder().glob("*.yaml"))}
    if name_or_path not in built_in:
        raise InputError(
            f"There is no built-in profile set '{name_or_path}'{_did_you_mean(name_or_path, built_in)}. "
            f"There are: {', '.join(built_in)}; or give the path of a .yaml file."
        )
    return read_profiles(built_in[name_or_path])


def read_profiles(file: Path) -> ProfileSet:
    """Read and check one profile file. Raises InputError, beginning with file:line:column."""
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 text ({error.reason} at byte {error.start}).") from error
    except OSError as error:
        raise InputError(f"The profile file {file} cannot be read: {error.strerror}.") from error
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else str(file)
        raise InputError(f"{place}: not valid YAML: {error.problem or error.context}.") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise InputError(f"{file}: not valid YAML: {str(error).splitlines()[0]}.") from error
    if root is None:
        raise InputError(f"{file}:1:1: the file is empty; it needs 'cache' and 'profiles'.")
    return _Reader(file).profile_set(root)


class _Reader:
    """Walks one file's YAML nodes, which remember where they stood."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def profile_set(self, root: Node) -> ProfileSet:
        top = self._mapping(root, "the file", required=("cache", "profiles"))
        cache = self._mapping(top["cache"], "cache", required=("slots", "capacity"))
        slots, capacity = self._number(cache["slots"], "slots"), self._number(cache["capacity"], "capacity")
        entries = self._mapping(top["profiles"], "profiles")
        if not entries:
            self._fail(top["profiles"], "there is no profile; at least one is needed")
        profiles = tuple(self._profile(name, node, slots, capacity) for name, node in entries.items())
        return ProfileSet(self._file.stem, slots, capacity, profiles)

    def _profile(self, name: str, node: Node, slots: int, capacity: int) -> Profile:
        what = f"profile '{name}'"
        fields = self._mapping(node, what, required=("batch", "tokens", "cache"), optional=("logits",))
        ranges = {label: self._range(fields[label], f"{what}: {label}") for label in ("batch", "tokens", "cache")}
        logits = fields.get("logits")
        all_logits = logits is not None and self._choice(logits, f"{what}: logits", ("last", "all")) == "all"
        profile = Profile(name, ranges["batch"], ranges["tokens"], ranges["cache"], all_logits)
        if fault := profile.fault():
            self._fail(fields[fault.partition(":")[0]], f"{what}: {fault}")
        if profile.batch.max > slots:
            self._fail(fields["batch"], f"{what}: batch: max {profile.batch.max} is greater than the {slots} slots")
        if profile.kv.max > capacity:
            self._fail(fields["cache"], f"{what}: cache: max {profile.kv.max} is greater than the capacity {capacity}")
        return profile

    def _mapping(
        self, node: Node, what: str, required: tuple[str, ...] = (), optional: tuple[str, ...] = ()
    ) -> dict[str, Node]:
        """Keys to nodes. With `required`, exactly those and `optional` are allowed; without, any names."""
        if not isinstance(node, MappingNode):
            self._fail(node, f"{what} must be a mapping (key: value), not {_kind(node)}")
        allowed = (*required, *optional)
        found: dict[str, Node] = {}
        for key, value in node.value:
            if not isinstance(key, ScalarNode) or not key.value.strip():
                self._fail(key, f"{what}: a key must be a name, not {_kind(key)}")
            if key.value in found:
                self._fail(key, f"{what}: '{key.value}' is repeated")
            if required and key.value not in allowed:
                hint = _did_you_mean(key.value, allowed) or f"; the keys are {', '.join(allowed)}"
                self._fail(key, f"{what}: unknown key '{key.value}'{hint}")
            found[key.value] = value
        for key_name in required:
            if key_name not in found:
                self._fail(node, f"{what}: '{key_name}' is missing")
        return found

    def _range(self, node: Node, what: str) -> Range:
        if isinstance(node, ScalarNode):
            value = self._number(node, what)
            return Range(value, value, value)
        if not isinstance(node, SequenceNode) or len(node.value) != 3:
            shown = f"{len(node.value)} values" if isinstance(node, SequenceNode) else _kind(node)
            self._fail(node, f"{what} must be one number or [min, opt, max], not {shown}")
        return Range(*(self._number(item, what) for item in node.value))

    def _number(self, node: Node, what: str) -> int:
        # Decimal digits only: YAML 1.1 also takes 010 for 8 and 1:30 for 90.
        if not isinstance(node, ScalarNode) or node.style or not re.fullmatch(r"-?(0|[1-9][0-9_]*)", node.value):
            self._fail(node, f"{what} must be a whole number, not {_kind(node)}")
        value = int(node.value)
        if not 1 <= value <= _LARGEST:
            self._fail(node, f"{what}: {value} is {'below 1' if value < 1 else f'above {_LARGEST}'}")
        return value

    def _choice(self, node: Node, what: str, choices: tuple[str, ...]) -> str:
        if not isinstance(node, ScalarNode) or node.value not in choices:
            self._fail(node, f"{what} must be {' or '.join(choices)}, not {_kind(node)}")
        return str(node.value)

    def _fail(self, node: Node, problem: str) -> NoReturn:
        mark = node.start_mark
        raise InputError(f"{self._file}:{mark.line + 1}:{mark.column + 1}: {problem}.")


def _kind(node: Node) -> str:
    if isinstance(node, MappingNode):
        return "a mapping"
    if isinstance(node, SequenceNode):
        return "a list"
    return f"'{node.value}'" if node.value else "nothing"


def _did_you_mean(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""


def _built_in_folder() -> Path:
    package = Path(__file__).resolve().parents[1]
    installed = package / "data" / "profiles"
    return installed if installed.is_dir() else package.parent / "profiles"
