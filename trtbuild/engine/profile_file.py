"""Profile files: YAML to ProfileSet, with the line and column of whatever is wrong."""

from __future__ import annotations

from pathlib import Path

from yaml.nodes import Node, ScalarNode, SequenceNode

from trtbuild.engine.profiles import Profile, ProfileSet, Range
from trtbuild.yaml_file import YamlFile, kind, load_named


def load_profiles(name_or_path: str) -> ProfileSet:
    """The profiles of a file, or of a built-in set (`chat`, `long-context`, `batch-scoring`).

    Something with a path separator or a .yaml/.yml ending is a path. Raises InputError.
    """
    return read_profiles(load_named(name_or_path, "profiles", "profile set"))


def read_profiles(file: Path) -> ProfileSet:
    """Read and check one profile file. Raises InputError, beginning with file:line:column."""
    source = YamlFile(file, "'cache' and 'profiles'")
    top = source.mapping(source.root, "the file", required=("cache", "profiles"))
    cache = source.mapping(top["cache"], "cache", required=("slots", "capacity"))
    slots, capacity = source.number(cache["slots"], "slots"), source.number(cache["capacity"], "capacity")
    entries = source.mapping(top["profiles"], "profiles")
    if not entries:
        source.fail(top["profiles"], "there is no profile; at least one is needed")
    profiles = tuple(_profile(source, name, node, slots, capacity) for name, node in entries.items())
    return ProfileSet(file.stem, slots, capacity, profiles)


def _profile(source: YamlFile, name: str, node: Node, slots: int, capacity: int) -> Profile:
    what = f"profile '{name}'"
    fields = source.mapping(node, what, required=("batch", "tokens", "cache"), optional=("logits",))
    ranges = {label: _range(source, fields[label], f"{what}: {label}") for label in ("batch", "tokens", "cache")}
    logits = fields.get("logits")
    all_logits = logits is not None and source.choice(logits, f"{what}: logits", ("last", "all")) == "all"
    profile = Profile(name, ranges["batch"], ranges["tokens"], ranges["cache"], all_logits)
    if fault := profile.fault():
        source.fail(fields[fault.partition(":")[0]], f"{what}: {fault}")
    if profile.batch.max > slots:
        source.fail(fields["batch"], f"{what}: batch: max {profile.batch.max} is greater than the {slots} slots")
    if profile.kv.max > capacity:
        source.fail(fields["cache"], f"{what}: cache: max {profile.kv.max} is greater than the capacity {capacity}")
    return profile


def _range(source: YamlFile, node: Node, what: str) -> Range:
    if isinstance(node, ScalarNode):
        value = source.number(node, what)
        return Range(value, value, value)
    if not isinstance(node, SequenceNode) or len(node.value) != 3:
        shown = f"{len(node.value)} values" if isinstance(node, SequenceNode) else kind(node)
        source.fail(node, f"{what} must be one number or [min, opt, max], not {shown}")
    return Range(*(source.number(item, what) for item in node.value))
