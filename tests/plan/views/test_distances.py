"""The facts about a route, compared with those of its links one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshctl.plan.model import Plan
from meshctl.plan.views.distances import NEAREST_FIRST, carries_samples
from meshctl.plan.views.topology import Flow, topology
from meshctl.topology.cluster import Cluster
from meshctl.topology.modes import COLLECT, Dispatch, Route
from meshctl.view.pictures import mermaid
from meshctl.view.pictures.text.picture import draw as drawn
from tests.examples import examples
from tests.plan.jobs import of_types
from tests.plan.links import links
from tests.plan.views.test_selection import TYPE, DeviceType, apart_and_together, routed
from tests.view.pictures.plans import call, component, group, plan, sync


def listed(plan: Plan, route: Route) -> tuple[str, ...]:
    """Returns the distances of all links, the nearest first."""
    source, target = plan.stage(route.source), plan.stage(route.target)
    one, other = plan.component(source.component).group, plan.component(target.component).group
    is_direct = plan.group(one).device_type == plan.group(other).device_type == "cuda"
    found = set()
    for producer, consumer in links(plan, route, source.samples):
        if (one, producer) == (other, consumer):
            found.add("process")
        else:
            is_near = plan.node_of(one, producer) == plan.node_of(other, consumer)
            found.add(("device" if is_direct else "node") + ("" if is_near else "s"))
    return tuple(each for each in NEAREST_FIRST if each in found)


DISPATCHES = st.sampled_from([None, Dispatch(balance="tokens"), Dispatch(home="s")])


@settings(max_examples=examples(40, 3000))
@given(routed(sorted(COLLECT)), st.tuples(TYPE, TYPE), DISPATCHES)
def test_the_distances_of_a_route_are_those_of_its_links(
    made: Plan, types: tuple[DeviceType, DeviceType], other: Dispatch | None
) -> None:
    made = of_types(made, types)
    (route,) = made.routes
    made = replace(made, routes=(replace(route, dispatch=other or route.dispatch),))
    for each in apart_and_together(made):
        check(each)


def check(made: Plan) -> None:
    (route,), (flow,) = made.routes, topology(made).routes
    assert flow.distances == listed(made, route)
    assert flow.over == flow.distances[-1]
    check_counts(made, route, flow)


def check_counts(made: Plan, route: Route, flow: Flow) -> None:
    """With enough samples, each producer and each consumer has a link, and each share has samples."""
    enough = replace(made, stages=(replace(made.stages[0], samples=5040), *made.stages[1:]))
    found = links(enough, route, 5040)
    assert flow.producers == len({producer for producer, _ in found})
    assert flow.consumers == len({consumer for _, consumer in found})
    if carries_samples(made, route) and not (route.dispatch.balance or route.dispatch.home):
        received: dict[int, list[int]] = {}
        for (_, consumer), samples in found.items():
            received.setdefault(consumer, []).extend(samples)
        assert flow.shares == len({tuple(sorted(samples)) for samples in received.values()})


@pytest.mark.parametrize(
    ("nodes", "pythons", "found"),
    [
        (1, ("", "other"), ("device",)),
        (2, ("", ""), ("devices",)),
        (2, ("other", "other"), ("devices",)),
        (2, ("", "other"), ("devices_or_nodes",)),
        (2, ("one", "other"), ("devices_or_nodes",)),
    ],
)
def test_tensors_between_interpreters_may_pass_cpu_memory(
    nodes: int, pythons: tuple[str, str], found: tuple[str, ...]
) -> None:
    """The versions of NCCL of two interpreters are unknown to a plan."""
    rollout, train = (
        group(name, "cuda", 4, (first, first + 4), python=python)
        for name, first, python in zip(("rollout", "train"), (0, 4), pythons, strict=True)
    )
    components = [component("sampler", rollout), component("actor", train, fsdp_size=4)]
    stages = [
        call("rollouts", "sampler.sample", samples=8),
        call("metrics", "actor.update", "rollouts"),
        sync("publish", "actor", "sampler"),
    ]
    made = plan("p", Cluster.of(nodes, cuda=8 // nodes), [rollout, train], components, stages)
    assert [flow.distances for flow in topology(made).routes] == [found, found]
    shown = "nccl or tcp" if found == ("devices_or_nodes",) else ""
    assert all(shown in text for text in (drawn(topology(made)), mermaid.draw(topology(made))))


@pytest.mark.parametrize("restartable", ["rollout", "train"])
def test_tensors_of_a_restartable_group_pass_cpu_memory(restartable: str) -> None:
    groups = [
        replace(group(name, "cuda", 4, (first, first + 4)), restartable=name == restartable)
        for name, first in (("rollout", 0), ("train", 4))
    ]
    sampler, judge = component("sampler", groups[0]), component("judge", groups[0], tp_size=4)
    components = [sampler, judge, component("actor", groups[1], fsdp_size=4)]
    stages = [
        call("rollouts", "sampler.sample", samples=8),
        call("scored", "judge.score", "rollouts", samples=8),
        call("metrics", "actor.update", "scored"),
        sync("publish", "actor", "sampler"),
    ]
    made = plan("p", Cluster.of(1, cuda=8), groups, components, stages)
    assert [flow.distances for flow in topology(made).routes] == [("process", "device"), ("node",), ("node",)]
