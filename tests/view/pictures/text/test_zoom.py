"""One part of a plan in detail, as text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from meshctl.plan.model import Plan
from meshctl.plan.views.selection import Zoom, of_component, of_dim, of_node, of_rank
from meshctl.plan.views.topology import topology
from meshctl.view.pictures.text.styled import width_of
from meshctl.view.pictures.text.zoom import draw
from tests.view.conftest import Pinned
from tests.view.pictures.plans import PLANS, hundred_thousand, program, sixteen


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


def test_a_component(pinned: Pinned) -> None:
    plan = sixteen()
    pinned("topology_component.txt", drawn(plan, of_component(plan, topology(plan), "actor")))


def test_a_dim(pinned: Pinned) -> None:
    plan = sixteen()
    pinned("topology_dim.txt", drawn(plan, of_dim(plan, topology(plan), "tp")))


@pytest.mark.parametrize("node", [0, 1])
def test_a_node(node: int, pinned: Pinned) -> None:
    plan = sixteen()
    pinned(f"topology_node_{node}.txt", drawn(plan, of_node(plan, topology(plan), node)))


@pytest.mark.parametrize("rank", ["rollout:1", "critic:3", "train:6", "judge:1", "watch:0"])
def test_a_rank(rank: str, pinned: Pinned) -> None:
    plan = sixteen()
    group, number = rank.split(":")
    pinned(f"topology_rank_{group}.txt", drawn(plan, of_rank(plan, topology(plan), group, int(number))))


def test_a_rank_of_very_many(pinned: Pinned) -> None:
    plan = hundred_thousand()
    pinned("topology_rank_of_100000.txt", drawn(plan, of_rank(plan, topology(plan), "train", 4097)))


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("width", [40, 80, 120])
def test_every_part_of_every_plan_fits(name: str, width: int) -> None:
    plan = PLANS[name]()
    whole = topology(plan)
    for zoom in every_zoom(plan):
        text = draw(zoom, whole, width, False)
        assert text.endswith("\n") and all(width_of(line) <= width for line in text[:-1].split("\n"))
        assert re.sub(r"\x1b\[[0-9;]*m", "", draw(zoom, whole, width, True)) == text


def test_what_is_long_is_folded() -> None:
    plan = hundred_thousand()
    whole = topology(plan)
    assert all(draw(zoom, whole, 80, False).count("\n") < 300 for zoom in every_zoom(plan))


def test_workers_beyond_those_that_are_listed_are_counted() -> None:
    plan = program()
    crowd = replace(plan, groups=(replace(plan.groups[0], workers=100, device_type="cpu", devices=()),))
    assert "... and 36 more" in drawn(crowd, of_node(crowd, topology(crowd), 0))
