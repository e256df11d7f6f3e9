"""The page of `evaluate --html`, opened in headless Chromium."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page

from tests.calibration.conftest import PROSE, options
from tests.conftest import ROOT, write_tiny
from tests.report.conftest import opened
from trtbuild.calibrating import calibrate, read_report
from trtbuild.calibration.samples import tokenizer_of
from trtbuild.checkpoint import open_checkpoint
from trtbuild.errors import InputError
from trtbuild.evaluating import EvaluationOptions, EvaluationResult, evaluate_model
from trtbuild.report.page import evaluation_page
from trtbuild.report.plots import _smoothed, divergence_by_position
from trtbuild.report.rendering import check_page
from trtbuild.report.save import save_evaluation
from trtbuild.verify.reference import Reference

Evaluated = tuple[Path, EvaluationResult]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Evaluated:
    """A small calibrated model, and it beside its reference on two windows."""
    place = tmp_path_factory.mktemp("evaluated")
    checkpoint = write_tiny(place, smollm2, vocab_size=49152, num_hidden_layers=3).rename(place / "plain")
    calibrate(checkpoint, place / "int4", options(place))
    own = EvaluationOptions(ROOT / "README.md", windows=2, length=64, tokens=8, cache=place / "cache")
    return place, evaluate_model(place / "int4", own)


def test_the_page_stands_alone(evaluated: Evaluated, tmp_path: Path, browser_page: Page) -> None:
    _, result = evaluated
    file = tmp_path / "report.html"
    save_evaluation(result, file)
    assert opened(browser_page, file) == []
    plots = browser_page.locator("figure svg")
    assert plots.count() == 3
    for index in range(3):
        box = plots.nth(index).bounding_box()
        assert box is not None and box["width"] > 600 and box["height"] > 150
    width = browser_page.evaluate("document.documentElement.scrollWidth")
    assert width <= 1200, "nothing sticks out sideways"


def test_the_page_says_what_was_measured(evaluated: Evaluated, tmp_path: Path, browser_page: Page) -> None:
    place, result = evaluated
    file = tmp_path / "report.html"
    save_evaluation(result, file)
    opened(browser_page, file)
    figures = browser_page.locator(".figures b").all_inner_texts()
    assert figures[0] == f"{result.evaluation.ratio:.4f}"
    assert figures[4] == f"{100 * result.evaluation.same_top1:.1f}%"
    browser_page.locator("summary").click()
    rows = browser_page.locator("#matrices tbody tr")
    assert rows.count() == 3 * 7
    told = json.loads((place / "int4" / "calibration.json").read_text())["matrices"][0]
    cells = rows.first.locator("td").all_inner_texts()
    assert cells[2] == told["name"] and f"{told['sqnr']:.1f}" in cells and "awq+gptq" in cells
    lines = browser_page.locator("#continuations tbody tr")
    assert lines.count() == 10 == len(result.continuations)
    for index, each in enumerate(result.continuations):
        texts = lines.nth(index).locator("td.text").evaluate_all("cells => cells.map(cell => cell.textContent)")
        told = [each.prompt, each.reference, each.model]
        # A browser reads a carriage return as the end of a line.
        assert texts == [text.replace("\r\n", "\n").replace("\r", "\n") for text in told]
        marked = lines.nth(index).locator("mark").count()
        assert (marked > 0) == (each.same_tokens < each.tokens)


def test_names_and_texts_are_text(evaluated: Evaluated, tmp_path: Path, browser_page: Page) -> None:
    """A model can write anything, its name can be anything, and neither becomes part of the page."""
    _, result = evaluated
    evil = "</td><script>document.title = 'taken'</script>"
    continuations = tuple(replace(each, model=evil, prompt=evil) for each in result.continuations)
    file = tmp_path / "report.html"
    file.write_text(evaluation_page(replace(result, continuations=continuations), None))
    assert opened(browser_page, file) == []
    assert browser_page.title().endswith("against plain")
    assert browser_page.locator("#continuations td.text").first.text_content() == evil


def test_the_same_result_gives_the_same_page(evaluated: Evaluated) -> None:
    place, result = evaluated
    pages = {evaluation_page(result, read_report(place / "int4")) for _ in range(2)}
    assert len(pages) == 1


def test_the_plot_is_of_the_numbers() -> None:
    """The smoothed line, and its points read back from the drawing: a step of 1 is a step up, from left to right."""
    values = np.zeros(64)
    values[32] = 5.0
    assert _smoothed(values, 2)[29:36].tolist() == [0, 1, 1, 1, 1, 1, 0]
    assert _smoothed(np.asarray([1.0, 2.0, 9.0]), 1).tolist() == [1.5, 4.0, 5.5]
    drawn = divergence_by_position([0.0] * 32 + [1.0] * 32)
    line = re.findall(r'<path d="(M[^"]+)"[^>]*style="fill: none; stroke: #0072b2', drawn.replace("\n", " "))
    heights = [float(point.split()[1]) for point in re.split("[ML] ", line[0]) if point.strip()]
    steps = np.diff(heights)
    assert len(heights) == 64 and np.allclose(steps[29:34], steps[29]) and steps[29] < 0, "SVG counts downwards"
    assert not steps[:29].any() and not steps[34:].any()


@pytest.mark.parametrize("damage", ["{", '{"bits_per_weight": 4.5}', None])
def test_a_damaged_report_is_named(evaluated: Evaluated, tmp_path: Path, damage: Any) -> None:
    place, _ = evaluated
    for name in ("calibration.json", "timings.json"):
        (tmp_path / name).write_bytes((place / "int4" / name).read_bytes())
    read_report(tmp_path)
    if damage is None:
        (tmp_path / "calibration.json").unlink()
    else:
        (tmp_path / "calibration.json").write_text(damage)
    with pytest.raises(InputError, match="calibration.json and timings.json cannot be read"):
        read_report(tmp_path)


def test_a_page_that_cannot_be_written_is_refused_first(tmp_path: Path) -> None:
    file = tmp_path / "there.html"
    file.write_text("mine")
    with pytest.raises(InputError, match="exists. Choose another --html, or give --force"):
        check_page(file, force=False)
    check_page(file, force=True)
    with pytest.raises(InputError, match="is a folder"):
        check_page(tmp_path, force=True)


def test_continuations_are_those_of_a_full_decoder(evaluated: Evaluated) -> None:
    """The reference's are transformers' own greedy ones."""
    place, result = evaluated
    checkpoint = open_checkpoint(place / "plain", cache=place / "cache")
    tokenizer, reference = tokenizer_of(checkpoint), Reference(checkpoint)
    for each in result.continuations[:4]:
        assert each.reference == tokenizer.decode(reference.greedy(tokenizer.encode(each.prompt), 8))


def test_more_tokens_than_positions(evaluated: Evaluated) -> None:
    place, _ = evaluated
    own = EvaluationOptions(PROSE, windows=1, length=64, tokens=4096, cache=place / "cache")
    with pytest.raises(InputError, match="do not fit the model's"):
        evaluate_model(place / "int4", own)
