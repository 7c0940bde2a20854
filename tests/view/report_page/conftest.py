"""The browser of the pages of pictures."""

from __future__ import annotations

from tests.view.pictures.browser.conftest import browser, pages

__all__ = ["browser", "pages"]
