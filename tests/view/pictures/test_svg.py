"""The picture: valid XML that stands alone, what it says, both themes, and that it is bounded."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from meshctl.plan.model import Plan
from meshctl.plan.views.topology import Topology, topology
from meshctl.view.pictures.drawn.colours import tokens
from meshctl.view.pictures.drawn.pipeline import BOX, NARROWEST, TRACK, Box, pipeline
from meshctl.view.pictures.drawn.shapes import Picture, escaped
from meshctl.view.pictures.svg import draw, workers_on
from tests.view.pictures.plans import PLANS, everything, hundred_thousand, many, odd

BOXES = re.compile(r'class="box" x="(\S+)" y="(\S+)" width="(\S+)" height="(\S+)"')
SVG = "{http://www.w3.org/2000/svg}"


def texts(drawn: str) -> list[str]:
    return ["".join(found.itertext()) for found in ElementTree.fromstring(drawn).iter(f"{SVG}text")]


@pytest.mark.parametrize("name", PLANS)
def test_it_is_xml_that_stands_alone(name: str) -> None:
    drawn = draw(topology(PLANS[name]()))
    root = ElementTree.fromstring(drawn)
    assert root.tag == f"{SVG}svg" and root.get("role") == "img"
    labels = {found.get("id"): found.text for found in root if found.get("id")}
    assert set((root.get("aria-labelledby") or "").split()) == set(labels) and all(labels.values())
    assert not re.search(r"(href|src|@import|url\(|<script|<image|<foreignObject|\bon\w+=)", drawn)
    assert set(re.findall(r"https?://[^\"]+", drawn)) == {"http://www.w3.org/2000/svg"}


def test_what_it_says() -> None:
    said = texts(draw(topology(everything())))
    for text in (
        "everything",
        "Placement",
        "Components",
        "Pipeline",
        "idle",
        "cuda",
        "npu",
        "cpu processes",
        "a",
    ):
        assert text in said, text
    assert "7 → 16" in said and "16 → 4" in said
    assert any(text.startswith("4 on cuda, 1 node, 2 devices each") for text in said)
    assert "stride 8" in said and "crosses nodes" in said and "inside a node" in said


def test_equal_nodes_are_drawn_once() -> None:
    said = texts(draw(topology(hundred_thousand())))
    assert "nodes 0–2,499" in said and "2,500 alike, this is 0" in said


def test_both_themes_are_in_it() -> None:
    drawn = draw(topology(everything()))
    light, _, dark = drawn.partition("prefers-color-scheme: dark")
    for name in ("ink", "muted", "surface", "page", "h0-tint", "h7-ink"):
        assert tokens()[name].light in light and tokens()[name].dark in dark, name


def test_odd_names_are_text() -> None:
    drawn = draw(odd())
    said = texts(drawn)
    assert "<script>alert(1)</script>" in said
    assert {found.tag for found in ElementTree.fromstring(drawn).iter()} <= {
        f"{SVG}{tag}" for tag in ("svg", "title", "desc", "style", "rect", "text", "path", "g")
    }


def test_text_that_xml_cannot_say_is_replaced() -> None:
    assert (
        escaped("a\x00\ud800\uffff<&\"'>b\U0001f600") == "a\ufffd\ufffd\ufffd&lt;&amp;&quot;'&gt;b\U0001f600"
    )


def test_what_is_cut_is_whole_in_a_tooltip() -> None:
    picture = Picture()
    picture.text(0, 0, "x" * 60 + "<", "t", room=100)
    assert f"<title>{'x' * 60}&lt;</title>" in picture.markup and "…" in picture.markup


def test_it_is_bounded() -> None:
    drawn = draw(many(500))
    ElementTree.fromstring(drawn)
    assert len(drawn) < 300_000
    assert sum(text.startswith("and ") and "more" in text for text in texts(drawn)) >= 5


@pytest.mark.parametrize("name", PLANS)
def test_workers_of_a_node_are_those_of_the_plan(name: str) -> None:
    plan = PLANS[name]()
    drawn = topology(plan)
    for node in range(min(plan.cluster.nodes, 4)):
        for placed in drawn.groups:
            found = [(tile.rank, tile.device) for tile in workers_on(placed, node)]
            assert found == [
                (worker.rank, number(plan, worker.devices, placed.device_type))
                for worker in plan.workers(placed.name, node)
            ]


def number(plan: Plan, devices: tuple[int, ...], device_type: str) -> int:
    return plan.cluster.number_on_node(device_type, devices[0]) if devices else -1


# The pipeline


@pytest.mark.parametrize(("narrow", "room"), [(False, 0), (False, 828), (True, 0)])
def test_no_route_crosses_a_box(narrow: bool, room: float) -> None:
    drawn = topology(everything())
    picture = pipeline(drawn, narrow=narrow, room=room)
    boxes = [Rect(*map(float, found)) for found in BOXES.findall(picture.markup)]
    wires = re.findall(r'class="edge \w+" data-route="\d+" d="(\S+ [^"]+)"', picture.markup)
    assert len(boxes) == len(drawn.stages) + 1 and len(wires) == len(drawn.routes)
    for wire in wires:
        ends = [tuple(map(float, point)) for point in re.findall(r"(-?[\d.]+) (-?[\d.]+)", wire)]
        for (x0, y0), (x1, y1) in pairwise(ends):
            assert not any(box.holds((x0 + x1) / 2, (y0 + y1) / 2) for box in boxes)


class Rect:
    def __init__(self, x: float, y: float, width: float, height: float) -> None:
        self.x, self.y, self.right, self.bottom = x, y, x + width, y + height

    def holds(self, x: float, y: float) -> bool:
        return self.x < x < self.right and self.y < y < self.bottom


def test_lanes_share_the_room_there_is() -> None:
    drawn = topology(everything())
    whole, shared = pipeline(drawn), pipeline(drawn, room=1000)
    assert whole.width > 1000 and shared.width == pytest.approx(1000, abs=TRACK)
    assert shared.height > whole.height, "what does not fit is said in more lines"
    wide = {float(width) for _, _, width, _ in BOXES.findall(pipeline(drawn, room=100).markup)}
    assert wide == {NARROWEST}


@pytest.mark.parametrize("room", [0, 400])
def test_boxes_do_not_overlap_and_inputs_are_inside(room: float) -> None:
    drawn = many(60)
    picture = pipeline(drawn, room=room)
    boxes = BOXES.findall(picture.markup)
    columns: dict[str, list[tuple[float, float]]] = {}
    for x, y, width, height in boxes:
        assert float(width) == (NARROWEST if room else BOX)
        columns.setdefault(x, []).append((float(y), float(y) + float(height)))
    for spans in columns.values():
        spans.sort()
        assert all(before[1] < after[0] for before, after in pairwise(spans))


def test_the_height_of_a_box_holds_its_inputs() -> None:
    drawn: Topology = topology(everything())
    stage = next(stage for stage in drawn.stages if stage.name == "metrics")
    flows = [flow for flow in drawn.routes if flow.target == "metrics"]
    box = Box(stage, stage.component, stage.method, 0, 0, flows, ("some facts",), BOX)
    assert all(box.y + 20 < box.entry(number) < box.y + box.height for number in range(len(flows)))


def test_no_stages_no_picture() -> None:
    assert pipeline(topology(PLANS["program"]())).markup == ""
