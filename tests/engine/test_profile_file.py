"""Profile files: what a good one means, and where a bad one is wrong, to the line and column."""

from __future__ import annotations

import pytest

from trtbuild.engine.coverage import check_coverage
from trtbuild.engine.profile_file import load_profiles, read_profiles
from trtbuild.engine.profiles import Profile, Range
from trtbuild.errors import InputError

GOOD = """\
cache: {slots: 8, capacity: 2048}
profiles:
  decode:  {batch: [1, 4, 8], tokens: 1, cache: [1, 512, 2048]}
  prefill: {batch: 1, tokens: [1, 128, 512], cache: [1, 512, 2048]}
"""


def test_a_file_becomes_its_values(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(GOOD)
    profiles = load_profiles(str(file))
    assert (profiles.name, profiles.slots, profiles.capacity) == ("mine", 8, 2048)
    assert profiles.profiles == (
        Profile("decode", Range(1, 4, 8), Range(1, 1, 1), Range(1, 512, 2048)),
        Profile("prefill", Range(1, 1, 1), Range(1, 128, 512), Range(1, 512, 2048)),
    )
    assert profiles.prefill_chunk == 512


@pytest.mark.parametrize("name", ["chat", "long-context", "batch-scoring"])
def test_built_in_sets_cover_what_the_server_uses(name):
    profiles = load_profiles(name)
    check_coverage(profiles)
    assert profiles.name == name
    assert profiles.scores_only == (name == "batch-scoring")


def test_an_unknown_name_lists_those_that_exist():
    with pytest.raises(InputError, match=r"no built-in profile set 'chatt' \(did you mean 'chat'\?\)") as caught:
        load_profiles("chatt")
    assert "There are: batch-scoring, chat, long-context" in str(caught.value)


def test_an_absent_file_and_a_folder(tmp_path):
    with pytest.raises(InputError, match=r"none\.yaml cannot be read: No such file"):
        load_profiles(str(tmp_path / "none.yaml"))
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        load_profiles(f"{tmp_path}/")


@pytest.mark.parametrize(
    ("old", "new", "place", "problem"),
    [
        ("slots: 8", "slotz: 8", "1:9", "cache: unknown key 'slotz' (did you mean 'slots'?)"),
        ("slots: 8", "colour: 8", "1:9", "cache: unknown key 'colour'; the keys are slots, capacity"),
        ("slots: 8, ", "", "1:8", "cache: 'slots' is missing"),
        ("slots: 8", "slots: eight", "1:16", "slots must be a whole number, not 'eight'"),
        ("slots: 8", "slots: '8'", "1:16", "slots must be a whole number, not '8'"),
        ("slots: 8", "slots: 8.0", "1:16", "slots must be a whole number, not '8.0'"),
        ("slots: 8", "slots: 010", "1:16", "slots must be a whole number, not '010'"),
        ("slots: 8", "slots: 1:30", "1:16", "slots must be a whole number, not '1:30'"),
        ("slots: 8", "slots: true", "1:16", "slots must be a whole number, not 'true'"),
        ("slots: 8", "slots: 0", "1:16", "slots: 0 is below 1"),
        ("slots: 8", "slots: 99999999999", "1:16", "slots: 99999999999 is above 2147483647"),
        ("slots: 8", "slots: 8, slots: 8", "1:19", "cache: 'slots' is repeated"),
        ("slots: 8", "slots:", "1:15", "slots must be a whole number, not nothing"),
        ("{slots: 8, capacity: 2048}", "[8, 2048]", "1:8", "cache must be a mapping (key: value), not a list"),
        ("  prefill", "  decode", "4:3", "profiles: 'decode' is repeated"),
        ("[1, 4, 8]", "[1, 8, 4]", "3:20", "profile 'decode': batch: opt 8 is greater than max 4"),
        ("[1, 4, 8]", "[5, 4, 8]", "3:20", "profile 'decode': batch: min 5 is greater than opt 4"),
        ("[1, 4, 8]", "[0, 4, 8]", "3:21", "profile 'decode': batch: 0 is below 1"),
        ("[1, 4, 8]", "[1, 4]", "3:20", "profile 'decode': batch must be one number or [min, opt, max], not 2 values"),
        (
            "[1, 4, 8]",
            "{min: 1}",
            "3:20",
            "batch must be one number or [min, opt, max], not a mapping",
        ),
        ("[1, 4, 8]", "[1, 4, 9]", "3:20", "profile 'decode': batch: max 9 is greater than the 8 slots"),
        (
            "tokens: 1,",
            "tokens: 2,",
            "3:49",
            "cache: min 1 is less than the 2 tokens of min",
        ),
        ("[1, 512, 2048]}\n  p", "[1, 512, 4096]}\n  p", "3:49", "cache: max 4096 is greater than the capacity 2048"),
        ("tokens: 1, ", "", "3:12", "profile 'decode': 'tokens' is missing"),
        ("tokens: 1,", "token: 1,", "3:31", "profile 'decode': unknown key 'token' (did you mean 'tokens'?)"),
        ("tokens: 1,", "tokens: 1, logits: some,", "3:50", "profile 'decode': logits must be last or all, not 'some'"),
        ("profiles:", "profile:", "2:1", "the file: unknown key 'profile' (did you mean 'profiles'?)"),
        ("profiles:", "profiles: {}\nx:", "3:1", "the file: unknown key 'x'"),
        ("  decode", "\tdecode", "3:1", "not valid YAML"),
        ("[1, 4, 8]", "[1, 4, 8", "3:62", "not valid YAML: expected ',' or ']'"),
    ],
)
def test_a_fault_is_told_with_its_place(tmp_path, old, new, place, problem):
    assert old in GOOD
    file = tmp_path / "mine.yaml"
    file.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        read_profiles(file)
    text = str(caught.value)
    assert text.startswith(f"{file}:{place}: ")
    assert problem in text


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", ":1:1: the file is empty; it needs 'cache' and 'profiles'."),
        (b"cache: {slots: 1, capacity: 8}\nprofiles: {}\n", ":2:11: there is no profile; at least one is needed."),
        (
            b"cache: {slots: 1, capacity: 8}\nprofiles:\n",
            ":2:10: profiles must be a mapping (key: value), not ",
        ),
        (b"- 1\n", ":1:1: the file must be a mapping (key: value), not a list."),
        (b"cache: \xff\n", " is not UTF-8 text (invalid start byte at byte 7)."),
        (b"cache: 1\x00", ": not valid YAML: "),
        (b"[" * 9999, ": not valid YAML: "),
    ],
)
def test_files_that_hold_nothing_usable(tmp_path, content, problem):
    file = tmp_path / "mine.yaml"
    file.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_profiles(file)
    assert str(caught.value).startswith(f"{file}{problem}")
