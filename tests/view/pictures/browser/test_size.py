"""The page in a browser: very much, very little, and odd names."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from meshctl.plan.model import Plan
from meshctl.plan.views.topology import topology
from tests.view.pictures.browser.page import Open
from tests.view.pictures.plans import (
    ODD,
    hundred_thousand,
    many,
    odd,
    one,
    program,
)

DRAWN = (
    "[...document.querySelectorAll('.component')].every((one) => one.querySelector('.body').children.length)"
)
"""Components are drawn after they are opened."""

# Very much


def test_a_hundred_thousand_devices_are_not_a_hundred_thousand_elements(opened: Open) -> None:
    page = opened(topology(hundred_thousand()))
    elements = "document.querySelectorAll('*').length"
    assert page.evaluate(elements) < 3000
    page.click('#kinds [aria-expanded="false"] >> nth=1')
    assert page.evaluate(elements) < 6000
    assert page.locator(".node").count() > 20
    page.click('#kinds [aria-label^="Next 64 of Nodes 2,500"]')
    assert page.locator('[data-node="2564"]').count() == 1
    page.fill('#kinds [aria-label="Node, of Nodes 0–2,499"]', "1234")
    page.keyboard.press("Tab")
    assert page.locator('[data-node="1234"] [data-worker="rollout:9872"]').count() == 1


def test_peers_on_other_nodes_are_brought_along(opened: Open) -> None:
    plan = hundred_thousand()
    page = opened(topology(plan), "#train:777")
    page.check('#worker input[value="dim actor pp"]')
    nodes = {plan.node_of("train", rank) for rank in plan.component("actor").mesh.ranks_along("pp", 777)}
    shown = {
        int(node)
        for node in page.eval_on_selector_all("[data-node]", "all => all.map((one) => one.dataset.node)")
    }
    assert len(nodes & shown) == 8 and plan.node_of("train", 777) in shown


def test_very_many_of_everything(opened: Open) -> None:
    page = opened(many(500))
    assert page.evaluate("document.querySelectorAll('*').length") < 12_000
    before = page.locator(".component").count()
    page.click("text=/Show .* more components/")
    assert page.locator(".component").count() > before


def test_odd_names_are_text(opened: Open) -> None:
    drawn = odd()
    page = opened(drawn)
    assert page.title() == f"{drawn.name} · meshctl"
    assert page.locator("h1").inner_text() == drawn.name
    assert page.evaluate("document.querySelectorAll('script').length") == 3
    assert (
        page.locator("#warnings li")
        .inner_text()
        .startswith("MC320 <img src=x onerror=alert(1)> code is idle")
    )
    for group in drawn.groups:
        if "\ud800" not in group.name:
            page.evaluate("(name) => choose(topology.worker(name))", f"{group.name}:0")
            assert page.locator("#worker h2 .mono").text_content() == f"{group.name}:0"
    page.evaluate("document.querySelectorAll('.component').forEach((one) => { one.open = true; })")
    page.wait_for_function(DRAWN)
    shown = page.locator("body").inner_text()
    assert sum(" ".join(name.split()) in " ".join(shown.split()) for name in ODD[2:9]) >= 6


@pytest.mark.parametrize("make", [program, one])
def test_little(opened: Open, make: Callable[[], Plan]) -> None:
    plan = make()
    page = opened(topology(plan))
    page.click("#kinds .tile")
    assert page.locator("#worker h2").inner_text().split()[-1] == f"{plan.groups[0].name}:0"
