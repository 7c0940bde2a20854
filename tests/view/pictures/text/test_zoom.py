"""One part of a plan in detail, as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from meshctl.plan.model import Plan
from meshctl.plan.views.selection import Zoom, of_component, of_dim, of_node, of_rank
from meshctl.plan.views.topology import topology
from meshctl.view.pictures.text.zoom import draw
from tests.view.conftest import Pinned
from tests.view.pictures.plans import PLANS, hundred_thousand, program, sixteen
from tests.view.pictures.text.test_picture import ESCAPE, fits


def drawn(plan: Plan, zoom: Zoom, width: int = 80, color: bool = False) -> str:
    return draw(zoom, topology(plan), width, color)


def every_zoom(plan: Plan) -> Iterator[Zoom]:
    whole = topology(plan)
    for component in whole.components:
        yield of_component(plan, whole, component.name)
    for dim in {groups.dim for component in whole.components for groups in component.process_groups}:
        yield of_dim(plan, whole, dim)
    for node in {0, plan.cluster.nodes // 2, plan.cluster.nodes - 1}:
        yield of_node(plan, whole, node)
    for group in whole.groups:
        for rank in {0, group.workers // 2, group.workers - 1}:
            yield of_rank(plan, whole, group.name, rank, 100)


@pytest.mark.parametrize(
    ("name", "make", "zoom"),
    [
        ("component", sixteen, lambda *plan: of_component(*plan, "actor")),
        ("dim", sixteen, lambda *plan: of_dim(*plan, "tp")),
        ("node_0", sixteen, lambda *plan: of_node(*plan, 0)),
        ("node_1", sixteen, lambda *plan: of_node(*plan, 1)),
        ("rank_rollout", sixteen, lambda *plan: of_rank(*plan, "rollout", 1)),
        ("rank_critic", sixteen, lambda *plan: of_rank(*plan, "critic", 3)),
        ("rank_train", sixteen, lambda *plan: of_rank(*plan, "train", 6)),
        ("rank_judge", sixteen, lambda *plan: of_rank(*plan, "judge", 1)),
        ("rank_watch", sixteen, lambda *plan: of_rank(*plan, "watch", 0)),
        ("rank_of_100000", hundred_thousand, lambda *plan: of_rank(*plan, "train", 4097)),
    ],
)
def test_golden(name: str, make: Callable[[], Plan], zoom: Callable[..., Zoom], pinned: Pinned) -> None:
    plan = make()
    pinned(f"topology_{name}.txt", drawn(plan, zoom(plan, topology(plan))))


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("width", [40, 120])
def test_every_part_of_every_plan_fits(name: str, width: int) -> None:
    plan = PLANS[name]()
    whole = topology(plan)
    for zoom in every_zoom(plan):
        text = draw(zoom, whole, width, False)
        assert fits(text, width, 300)
        assert ESCAPE.sub("", draw(zoom, whole, width, True)) == text


def test_workers_beyond_those_that_are_listed_are_counted() -> None:
    plan = program()
    crowd = replace(plan, groups=(replace(plan.groups[0], workers=100, device_type="cpu", devices=()),))
    assert "... and 36 more" in drawn(crowd, of_node(crowd, topology(crowd), 0))
