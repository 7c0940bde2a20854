"""The difference of two plans as text."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import pytest

from meshctl.plan.views.difference import difference
from meshctl.plan.views.topology import Topology, Warning, topology
from meshctl.topology.cluster import Cluster
from meshctl.view.pictures.text.diff import draw
from tests.view.conftest import Pinned
from tests.view.pictures.plans import (
    call,
    component,
    drawn,
    everything,
    group,
    hundred_thousand,
    many,
    odd,
    plan,
    small,
    sync,
)
from tests.view.pictures.text.test_picture import ESCAPE, fits


def larger() -> Topology:
    """The recipe of the design on two nodes: more ranks, another layout, one group removed, another added."""
    rollout = group("rollout", "cuda", 4, (0, 4))
    train = group("train", "cuda", 12, (4, 16))
    critic = group("critic", "cpu", 2)
    components = [
        component("prompts", rollout),
        component("sampler", rollout, tp_size=2),
        component("actor", train, fsdp_size=3, tp_size=4),
        component("values", critic, fsdp_size=2, frozen=True),
    ]
    stages = [
        call("batch", "prompts.next", samples=64, sample_bytes=2000),
        call("rollouts", "sampler.sample", "batch", samples=512, sample_bytes=32_000),
        call("scored", "values.score", "rollouts"),
        call("metrics", "actor.update", "scored", "rollouts", collect="mean"),
        sync("publish", "actor", "sampler", every=2, lag=1),
    ]
    warnings = [Warning("MC420", "`tp` of `actor` crosses nodes", "recipe.yaml:19:7", "")]
    return topology(
        plan("grpo-arithmetic", Cluster.of(2, cuda=8), [rollout, train, critic], components, stages), warnings
    )


def test_golden(pinned: Pinned) -> None:
    found = difference(drawn("8"), larger())
    pinned("topology_difference.txt", draw(found))
    assert ESCAPE.sub("", draw(found, color=True)) == draw(found)
    text = draw(difference(larger(), drawn("8")))
    assert re.search(r"^  - values +in critic, x.Values, fsdp 2$", text, re.MULTILINE)
    assert re.search(r"^  \+ judge +workers 2, cpu, node 0$", text, re.MULTILINE)
    assert re.search(r"^  - MC420 +`tp` of `actor` crosses nodes$", text, re.MULTILINE)


def test_no_difference() -> None:
    assert draw(difference(drawn("8"), drawn("8"))) == "no difference\n"
    assert draw(difference(drawn("8"), replace(drawn("8"), digest="another"))) == (
        "no difference in the topology; arguments, seed or run settings differ\n"
    )


@pytest.mark.parametrize("width", [40, 120])
def test_fits_whatever_changes(width: int) -> None:
    plans = (everything(), small(), hundred_thousand())
    pictures = [odd(), many(100), *map(topology, plans)]
    for before, after in pairwise([*pictures, *pictures[:1]]):
        assert fits(draw(difference(before, after), width), width, 60)
        assert fits(draw(difference(after, before), width), width, 60)
    assert "more changes: --format json" in draw(difference(topology(small()), many(100)))
