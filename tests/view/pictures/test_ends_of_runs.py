"""Every picture marks the sources whose data end the run, where those of other sources do not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from meshctl.plan.views.topology import Topology, topology
from meshctl.view.pictures import html, mermaid, svg
from meshctl.view.pictures.json import data
from meshctl.view.pictures.text.picture import pictured
from tests.view.pictures.plans import two_sources

MARK = "ends the run"


def as_text(drawn: Topology) -> str:
    return "\n".join(line.text for line in pictured(drawn, 100, 160))


def svg_text(drawn: Topology) -> str:
    return "\n".join(re.findall(r"<text[^>]*>([^<]*)</text>", svg.draw(drawn)))


@pytest.mark.parametrize("draw", [as_text, svg_text, mermaid.draw])
def test_one_source_is_marked(draw: Callable[[Topology], str]) -> None:
    marked = [line for line in draw(topology(two_sources(every=2))).splitlines() if MARK in line]
    assert len(marked) == 1
    assert draw is svg_text or "batch" in marked[0]


@pytest.mark.parametrize("draw", [as_text, svg_text, mermaid.draw])
def test_nothing_is_marked_where_the_data_of_every_source_end_the_run(
    draw: Callable[[Topology], str],
) -> None:
    assert MARK not in draw(topology(two_sources()))


def test_the_data_of_the_page_name_the_source() -> None:
    drawn = topology(two_sources(every=2))
    assert data(drawn)["ends_run"] == ["batch"]
    (facts,) = re.findall(r'<script type="application/json" id="facts-json">(.*?)</script>', html.draw(drawn))
    assert json.loads(facts)["ends_run"] == ["batch"]
    assert "ends_run" not in data(topology(two_sources()))
