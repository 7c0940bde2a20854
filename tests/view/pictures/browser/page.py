"""Pages in a headless Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.hang import HANG_S

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


FLAGS = [
    "no-sandbox",
    "disable-gpu",
    "disable-dev-shm-usage",
    "disable-background-networking",
    "disable-component-update",
    "disable-sync",
]


Open = Callable[..., Any]


SIZE = {"width": 1280, "height": 900}


class Pages:
    """Opens topologies as pages, and records their console output and requests. Pages without special
    settings share one tab."""

    def __init__(self, browser: Any) -> None:
        self.noted: list[str] = []
        self._browser = browser
        self._special: list[Any] = []
        self._tab = self._context().new_page()

    def open(
        self, file: Path, hash: str = "", width: int = SIZE["width"], look: dict[str, Any] | None = None
    ) -> Any:
        page = self._tab
        if look or width != SIZE["width"]:
            self._special.append(self._context(viewport={**SIZE, "width": width}, **(look or {})))
            page = self._special[-1].new_page()
        page.goto(file.as_uri() + hash)
        return page

    def close(self) -> None:
        """Closes special pages, and empties the shared tab."""
        while self._special:
            self._special.pop().close()
        self._tab.goto("about:blank")

    def _context(self, **look: Any) -> Any:
        context = self._browser.new_context(**{"viewport": SIZE, **look})
        context.set_default_timeout(HANG_S * 1000)
        context.on("console", lambda message: self.noted.append(f"console: {message.text}"))
        context.on("weberror", lambda error: self.noted.append(f"error: {error.error}"))
        context.on(
            "dialog", lambda dialog: (self.noted.append(f"dialog: {dialog.message}"), dialog.dismiss())
        )
        context.on("request", self._asked)
        return context

    def _asked(self, request: Any) -> None:
        if not (request.is_navigation_request() or request.url.startswith("data:")):
            self.noted.append(f"request: {request.url}")


def described(page: Any, names: list[str], samples: int, most: int = 10_000) -> list[dict[str, Any]]:
    ask = "([names, samples, most]) => names.map((name) => describe(topology, name, samples, most))"
    return list(page.evaluate(ask, [names, samples, most]))


CHECKS = (Path(__file__).parent / "checks.js").read_text(encoding="utf-8")


def wrong(page: Any, check: str) -> Any:
    """Returns the result of one of the checks."""
    return page.evaluate(f"(() => {{ {CHECKS}\nreturn {check}(); }})()")
