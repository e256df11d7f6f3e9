"""Traces: JSON lines, and Azure's CSV as it is published."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtbuild.errors import InputError
from trtbuild.loadtest.trace import AZURE_HEADER, TracedRequest, read_trace

AZURE = f"""{AZURE_HEADER}
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,879,55
"""
"""The first lines of AzureLLMInferenceTrace_conv.csv."""


def written(folder: Path, text: str) -> Path:
    file = folder / "trace"
    file.write_text(text, encoding="utf-8")
    return file


def test_azures_csv(tmp_path: Path) -> None:
    found = read_trace(written(tmp_path, AZURE))
    assert [(request.prompt_tokens, request.output_tokens) for request in found] == [(374, 44), (396, 109), (879, 55)]
    assert [request.arrival for request in found] == pytest.approx([0.0, 4.314579, 4.541877], abs=1e-6)


def test_azures_csv_with_zones_windows_line_ends_and_a_byte_order_mark(tmp_path: Path) -> None:
    """An hour east of Greenwich is an hour earlier; a request without tokens has one."""
    rows = ["2024-05-10 01:00:00.5+01:00,10,0", "2024-05-10 00:00:00+00:00,0,7", "2024-05-10T00:00:01Z,3,4"]
    file = tmp_path / "trace"
    file.write_bytes("\r\n".join(["\ufeff" + AZURE_HEADER, *rows, ""]).encode("utf-8"))
    assert read_trace(file) == (
        TracedRequest(0.0, prompt_tokens=1, output_tokens=7),
        TracedRequest(0.5, prompt_tokens=10, output_tokens=1),
        TracedRequest(1.0, prompt_tokens=3, output_tokens=4),
    )


def test_json_lines_in_any_order_and_faster(tmp_path: Path) -> None:
    lines = (
        '{"arrival": 14, "prompt": "hello", "priority": 1}\n\n{"arrival": 10, "prompt_tokens": 5, "output_tokens": 3}'
    )
    assert read_trace(written(tmp_path, lines), speed=2.0) == (
        TracedRequest(0.0, prompt_tokens=5, output_tokens=3),
        TracedRequest(2.0, prompt="hello", priority=1),
    )


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        ('{"prompt": "x"}', "arrival must be seconds"),
        ('{"arrival": -1, "prompt": "x"}', "arrival must be seconds"),
        ('{"arrival": true, "prompt": "x"}', "arrival must be seconds"),
        ('{"arrival": Infinity, "prompt": "x"}', "arrival must be seconds"),
        ('{"arrival": 1}', "one of prompt and prompt_tokens"),
        ('{"arrival": 1, "prompt": "x", "prompt_tokens": 2}', "one of prompt and prompt_tokens"),
        ('{"arrival": 1, "prompt": ""}', "prompt must be a text"),
        ('{"arrival": 1, "prompt_tokens": 0}', "prompt_tokens must be a whole number from 1 on"),
        ('{"arrival": 1, "prompt_tokens": 1.5}', "prompt_tokens must be a whole number"),
        ('{"arrival": 1, "prompt": "x", "output_tokens": null}', "output_tokens must be a whole number"),
        ('{"arrival": 1, "prompt": "x", "tokens": 3}', "unknown key 'tokens'"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, wrong: str) -> None:
    file = written(tmp_path, f'{{"arrival": 0, "prompt": "x"}}\n{line}\n')
    with pytest.raises(InputError, match=f"{file}:2: {wrong}"):
        read_trace(file)


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("2023-11-16 18:15:46,374", "2 cells where"),
        ("16.11.2023,374,44", "'16.11.2023' is no time"),
        ("2023-13-16 18:15:46,374,44", "'2023-13-16 18:15:46' is no time"),
        ("2023-11-16 18:15:46,many,44", "ContextTokens and GeneratedTokens must be whole numbers"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, line: str, wrong: str) -> None:
    file = written(tmp_path, f"{AZURE}{line}\n")
    with pytest.raises(InputError, match=f"{file}:5: {wrong}"):
        read_trace(file)


@pytest.mark.parametrize("text", ["", "\n", AZURE_HEADER])
def test_an_empty_trace(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match="holds no request"):
        read_trace(written(tmp_path, text))


def test_no_trace(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--trace .*nothing cannot be read"):
        read_trace(tmp_path / "nothing")
