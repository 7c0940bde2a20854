"""The page in headless Chromium: light and dark, wide and narrow, with many ranks and long names. No page may
write to the console or send a request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from meshctl.view.report_page.page import draw
from meshctl.view.report_page.record import RunRecord
from tests.view.pictures.browser.page import Pages
from tests.view.report_page.made import MadeRun, done, failed, plan

Opened = Callable[..., Any]
LONG = "a_very_long_name_of_a_stage_that_somebody_has_chosen_without_a_thought"
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
OVERLAPS = """() => {
  const found = [];
  for (const svg of document.querySelectorAll(".lanes, .lane-names, .plot-area, .y-axis")) {
    const boxes = [...svg.querySelectorAll(":scope > text")].map((one) => [one.textContent, one.getBoundingClientRect()])
      .filter(([, box]) => box.width);
    boxes.forEach(([text, box], at) => boxes.slice(at + 1).forEach(([other, its]) => {
      const wide = Math.min(box.right, its.right) - Math.max(box.left, its.left);
      const high = Math.min(box.bottom, its.bottom) - Math.max(box.top, its.top);
      if (wide > 1 && high > 5) found.push([svg.className.baseVal, text, other]);
    }));
  }
  return found;
}"""


@pytest.fixture
def opened(pages: Pages, tmp_path: Path) -> Iterator[Opened]:
    def open(text: str, **look: Any) -> Any:
        file = tmp_path / "page.html"
        file.write_text(text, encoding="utf-8")
        return pages.open(file, look=look)

    yield open
    pages.close()
    assert pages.noted == []


def text_of(*made: MadeRun) -> str:
    return draw(
        [RunRecord.read(each.seen, f"seed: {n}\nvars: {{x: {'y' * 300}}}\n") for n, each in enumerate(made)]
    )


def test_every_run_fits_its_window(opened: Opened, tmp_path: Path) -> None:
    long_names = plan(3, name=LONG, stages=(LONG, f"{LONG}_two"))
    whole, broken = done(tmp_path / "0"), failed(tmp_path / LONG, plan=long_names)
    for at in (1.0, 3.0):
        broken.worker(
            "memory", "train", 0, at, value={"resident": 10**9, "peak": 10**9, "device": 5 * 10**10}
        )
    shown = [[whole], [broken], [done(tmp_path / "2", 1)], [MadeRun(tmp_path / "3")], [whole, broken]]
    for number, made in enumerate([*shown, [done(tmp_path / "4", plan=plan(32))]]):
        page = opened(text_of(*made))
        for width, scheme in ((1400, "light"), (390, "dark")):
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate(OVERFLOW) <= 0, (number, width)
            assert page.evaluate(OVERLAPS) == [], (number, width)
            back = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert back == {"light": "rgb(248, 247, 244)", "dark": "rgb(20, 22, 26)"}[scheme]
        assert page.locator("h1").inner_text().startswith(made[0].seen.name)
        page.set_viewport_size({"width": 1280, "height": 900})
        page.emulate_media(color_scheme="light")


def test_the_value_under_the_pointer_and_zoom(opened: Opened, tmp_path: Path) -> None:
    page = opened(text_of(done(tmp_path / "run")))
    plot = page.locator("figure .plot-area").first
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + 1, box["y"] + 50)
    assert page.locator("#tip").inner_text() == "step 1: 2"
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 3, box["y"] + 50)
    page.mouse.up()
    ticks = "all => all.map((one) => one.textContent)"
    texts = plot.locator("> text").evaluate_all(ticks)
    assert "2" in texts and "10" not in texts
    page.keyboard.press("Escape")
    assert "10" in plot.locator("> text").evaluate_all(ticks)
    lanes = page.locator(".lanes").nth(1)
    lanes.scroll_into_view_if_needed()
    box = lanes.bounding_box()
    page.mouse.move(box["x"] + 1, box["y"] + 20)
    text = page.locator("#tip").inner_text()
    assert text.startswith("rollout:0, 0.00") and text.endswith(" s: waits for input")
    page.fill("#filter", "lr")
    assert page.locator("figure:visible").count() == 1


def test_everything_is_there_without_scripts(opened: Opened, tmp_path: Path) -> None:
    page = opened(text_of(failed(tmp_path / "run")), java_script_enabled=False)
    assert page.locator("figure .curve").count() == 2 and page.locator(".lanes").count() == 2
    assert (
        not page.locator("#filter").is_visible() and "the last words" in page.locator("#faults").inner_text()
    )
