"""The page in a browser: the picture of the pipeline, and the SVG."""

from __future__ import annotations

import re
from itertools import combinations, pairwise

import pytest

from meshctl.plan.views.topology import topology
from meshctl.view.formatting import size
from meshctl.view.pictures import svg
from tests.view.pictures.browser.page import Open, wrong
from tests.view.pictures.plans import (
    everything,
    many,
    odd,
    one,
)

# The pipeline

BOXES = """() => {
  const edge = document.querySelector('.picture').getBoundingClientRect();
  return [...document.querySelectorAll('.picture .stage')].map((one) => one.getBoundingClientRect())
    .map(({left, right, top, bottom}) => [left - edge.left, right - edge.left, top - edge.top, bottom - edge.top]);
}"""


WIRES = "[...document.querySelectorAll('.picture .edge')].map((one) => one.getAttribute('d'))"


Box = tuple[float, float, float, float]


def corners(drawn: str) -> list[tuple[float, float]]:
    """Returns the points at which a route turns, from its producer to its consumer."""
    points = [float(each) for each in re.findall(r"-?[\d.]+(?:e-?\d+)?", drawn)]
    x, start, across, stop, end = points[0], points[1], points[3], points[9], points[12]
    return [(x, start), (across, start), (across, stop), (end, stop)]


@pytest.mark.parametrize("width", [1280, 2000, 360])
def test_no_route_crosses_a_box_and_no_box_another(opened: Open, width: int) -> None:
    drawn = topology(everything())
    page = opened(drawn, width=width)
    boxes: list[Box] = page.evaluate(BOXES)
    wires = [corners(each) for each in page.evaluate(WIRES)]
    assert len(boxes) == len(drawn.stages) + 1 and len(wires) == len(drawn.routes)
    for wire in wires:
        for (x0, y0), (x1, y1) in pairwise(wire):
            x, y = (x0 + x1) / 2, (y0 + y1) / 2
            assert not any(left < x < right and top < y < bottom for left, right, top, bottom in boxes)
    for box, other in combinations(boxes, 2):
        assert box[1] <= other[0] or other[1] <= box[0] or box[3] <= other[2] or other[3] <= box[2]


INPUTS = "Object.fromEntries([...document.querySelectorAll('.picture .input')].map((one) => [one.dataset.input, one.textContent]))"


def test_all_transports_of_a_route_are_shown_whole(opened: Open) -> None:
    page = opened(topology(everything()))
    assert "in process, cuda ipc, nccl" in page.inner_text("#pipeline .picture")
    cut = "(all) => all.filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.textContent)"
    assert page.eval_on_selector_all(".picture .wraps .aside", cut) == []


def test_inputs_are_inside_of_their_boxes(opened: Open) -> None:
    page = opened(many(60))
    outside = """[...document.querySelectorAll('.picture .input')].filter((one) => {
      const input = one.getBoundingClientRect(), box = one.closest('.stage').getBoundingClientRect();
      return input.left < box.left || input.right > box.right || input.bottom > box.bottom;
    }).length"""
    assert page.evaluate(outside) == 0 and "more stage" in page.inner_text("#pipeline .left")


def test_bytes_are_written_as_the_text_picture_writes_them(opened: Open) -> None:
    page = opened(topology(one()))
    for amount in (0, 1, 999, 1000, 999_499, 999_500, 8_192_000, 12_345_678_901, 10**14):
        assert page.evaluate("(amount) => bytesOf(amount)", amount) == size(amount)


# The SVG


def test_the_picture_opens_and_is_all_there(opened: Open) -> None:
    for drawn in (topology(everything()), odd(), many(100)):
        page = opened(svg.draw(drawn))
        assert wrong(page, "outside") == []
