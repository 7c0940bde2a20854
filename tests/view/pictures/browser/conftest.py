"""A headless Chromium, Debian's, driven by playwright, and the pages that it opens. One browser serves all tests of a
file. Without one, they are skipped. No page may write to the console or send a request."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from meshctl.plan.views.selection import Selection
from meshctl.plan.views.topology import Topology
from meshctl.view.pictures import html
from tests.hang import HANG_S
from tests.view.pictures.browser.page import CHROMIUM, FLAGS, SIZE, Open, Pages


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no chromium is installed: apt-get install chromium")
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install -e '.[dev]'"
    )
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=CHROMIUM,
            args=[f"--{flag}" for flag in (*FLAGS, "no-first-run")],
            timeout=HANG_S * 1000,
        )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def pages(browser: Any) -> Pages:
    return Pages(browser)


@pytest.fixture
def opened(pages: Pages, tmp_path: Path) -> Iterator[Open]:
    """Opens a topology as a page with the URL fragment `hash`. At the end, the page must not have written to
    the console or sent a request."""
    numbers = count()

    def open(
        drawn: Topology | str,
        hash: str = "",
        *,
        width: int = SIZE["width"],
        look: dict[str, Any] | None = None,
        first: Selection = Selection(),
    ) -> Any:
        file = tmp_path / f"page{next(numbers)}.{'svg' if isinstance(drawn, str) else 'html'}"
        file.write_text(drawn if isinstance(drawn, str) else html.draw(drawn, first), encoding="utf-8")
        return pages.open(file, hash, width, look)

    yield open
    pages.close()
    assert pages.noted == []
