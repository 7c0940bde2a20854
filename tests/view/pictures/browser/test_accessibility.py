"""The page in a browser: contrast, sizes, screen readers, themes and print."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from meshctl.plan.views.topology import topology
from tests.view.pictures.browser.page import Open, wrong
from tests.view.pictures.plans import (
    everything,
    many,
)

# For everybody


WIDTHS = "all => all.map((one) => one.getBoundingClientRect().width)"


LOOKS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "narrow": {"color_scheme": "light", "width": 360},
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("chosen", ["", "#train:5"])
def test_everybody_can_read_it(opened: Open, look: str, chosen: str) -> None:
    how = dict(LOOKS[look])
    page = opened(
        many(12) if look == "narrow" else topology(everything()),
        chosen,
        width=how.pop("width", 1280),
        look=how,
    )
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    page.wait_for_function(
        "[...document.querySelectorAll('.component')].every((one) => one.querySelector('.body').children.length)"
    )
    for check in ("contrast", "nameless", "stray"):
        assert wrong(page, check) == [], check
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out"
    ids = page.eval_on_selector_all("[id]", "all => all.map((one) => one.id)")
    assert len(ids) == len(set(ids))
    shown = "all => all.filter((one) => one.checkVisibility()).map((one) => Number(one.tagName[1]))"
    levels = page.eval_on_selector_all("h1, h2, h3", shown)
    assert levels[0] == 1 and all(after - before <= 1 for before, after in pairwise(levels))


def test_lanes_are_visible_without_scrolling_and_long_names_fit(opened: Open) -> None:
    drawn = topology(everything())
    page = opened(drawn)
    assert page.evaluate(
        "(({scrollWidth, clientWidth}) => scrollWidth <= clientWidth)(document.querySelector('#pipeline .scroll'))"
    )
    renamed = replace(drawn.groups[-1], name="a_group_with_a_name_" * 5)
    page = opened(replace(drawn, groups=(*drawn.groups[:-1], renamed)))
    assert page.evaluate(
        "document.querySelector('#groups').scrollWidth <= document.querySelector('#map').clientWidth"
    )
    assert all(
        width >= 80 for width in page.eval_on_selector_all("#groups tbody tr > :not(.workers)", WIDTHS)
    )


def test_assumptions_are_stated(opened: Open) -> None:
    """Numbers in the recipe are used. If there is none, the field has a number to assume."""
    page = opened(topology(everything()), "#rollout:0")
    page.fill("#samples", "40")
    panel = page.locator("#worker").inner_text()
    assert "where the recipe does not give them" in panel and re.search(r"samples \S+ of 64\n", panel)
    assert "of 40 samples 0–9" in panel and re.search(r"of 40, if the batch has them", panel)


def test_what_a_screen_reader_reads(opened: Open) -> None:
    page = opened(topology(everything()), "#train:5")
    output = page.locator("body").aria_snapshot()
    for words in (
        "- banner:", "- main:", 'heading "everything" [level=1]', 'region "Placement":', 'region "Pipeline":', 'region "Components":',
        'region "Worker train:5":', 'grid "Node 0":', 'gridcell "train:5, node 1, cuda 1, actor and other" [selected]',
        'gridcell "train:4, node 1, cuda 0, actor and other, tp of train:5"', 'radio "all dims" [checked]', "- status:",
        'spinbutton "Samples of a batch"', 'textbox "Go to worker"', 'combobox "Color by"', 'button "Go to train:1"',
    ):  # fmt: skip
        assert words in output, words
    assert re.search(r'gridcell "cuda 6–11, idle"|gridcell "cuda \S+, idle"', output)
    assert re.search(r'img "Pipeline of everything: 15 stages', output)


def test_focus_is_seen(opened: Open) -> None:
    page = opened(topology(everything()))
    for _ in range(12):
        page.keyboard.press("Tab")
        assert wrong(page, "outline").startswith("solid 3px on ")


def test_the_theme_can_be_chosen(opened: Open) -> None:
    page = opened(topology(everything()), look={"color_scheme": "dark"})
    color = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(color)
    page.click("#theme")
    assert page.inner_text("#theme") == "Theme light" and page.evaluate(color) != dark
    page.click("#theme")
    assert page.inner_text("#theme") == "Theme dark" and page.evaluate(color) == dark
    page.wait_for_function("localStorage.getItem('meshctl-theme') === 'dark'")
    page.reload()
    page.wait_for_function("document.querySelector('#theme').innerText.startsWith('Theme ')")
    page.wait_for_function("document.documentElement.dataset.theme === 'dark'")
    assert page.inner_text("#theme") == "Theme dark"


def test_forced_colors_print_and_still_pictures(opened: Open) -> None:
    page = opened(
        topology(everything()), "#train:5", look={"forced_colors": "active", "reduced_motion": "reduce"}
    )
    outline = "getComputedStyle(document.querySelector('#kinds [data-role=%s]')).outlineStyle"
    assert page.evaluate(outline % "self") == "solid" and page.evaluate(outline % "peer") == "dashed"
    assert (
        page.evaluate("getComputedStyle(document.querySelector('.picture .edge')).transitionDuration") == "0s"
    )
    page.emulate_media(media="print", forced_colors="none")
    assert (
        not page.is_visible("#jump")
        and not page.is_visible("#theme")
        and page.is_visible("#worker")
        and page.is_visible("#kinds")
    )


def test_without_a_script_it_is_reported(opened: Open) -> None:
    page = opened(topology(everything()), look={"java_script_enabled": False})
    assert "needs JavaScript" in page.inner_text("body") and page.is_visible(".picture") is False
