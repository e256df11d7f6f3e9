"""Pages in headless Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def browser_page(browser: Browser) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    yield page
    page.close()


def opened(page: Page, file: Path) -> list[str]:
    """Open it and return what went wrong: requests for anything but the file, messages on the console."""
    faults: list[str] = []
    page.on("request", lambda request: request.url != file.as_uri() and faults.append(request.url))
    page.on("console", lambda message: faults.append(message.text))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(file.as_uri())
    return faults
