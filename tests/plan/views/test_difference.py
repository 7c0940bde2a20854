"""The difference between two plans, as data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meshctl.plan.views.difference import Change, Fact, difference
from meshctl.plan.views.topology import Topology, topology
from meshctl.topology.cluster import Cluster
from meshctl.topology.memory import ComponentMemory, DeviceMemory, Memory
from tests.view.pictures.plans import call, component, group, plan, sync

GB = 1_000_000_000


def job(ranks: int = 4, nodes: int = 1) -> Topology:
    """Returns a plan of a sampler and an actor on nodes of eight devices."""
    rollout, train = group("rollout", "cuda", 4, (0, 4)), group("train", "cuda", ranks, (4, 4 + ranks))
    components = [
        component("sampler", rollout, dp_size=4),
        component("actor", train, fsdp_size=ranks),
    ]
    stages = [
        call("rollouts", "sampler.sample", samples=64, sample_bytes=1000),
        call("metrics", "actor.update", "rollouts", collect="mean"),
        sync("publish", "actor", "sampler"),
    ]
    return topology(plan("job", Cluster.of(nodes, cuda=8), [rollout, train], components, stages))


def facts(change: Change) -> dict[str, tuple[Any, Any]]:
    return {f"{fact.what} {fact.dim}".strip(): (fact.before, fact.after) for fact in change.facts}


def found(before: Topology, after: Topology) -> dict[tuple[str, str], Change]:
    return {(change.subject, change.name): change for change in difference(before, after).changes}


def test_a_stage_more_does_not_move_the_others_but_another_order_does() -> None:
    before = job()
    first, second, third = before.stages
    more = replace(before, stages=(replace(first, name="new"), *before.stages))
    assert [change.name for change in difference(before, more).changes] == ["new"]
    turned = replace(before, stages=(second, first, third))
    assert [(change.name, change.facts) for change in difference(before, turned).changes] == [
        ("metrics", (Fact("order", 2, 1),)),
        ("rollouts", (Fact("order", 1, 2),)),
    ]


def with_memory(actor: ComponentMemory, limit: int = 0) -> Topology:
    sampler = ComponentMemory("sampler", weights=5 * GB)
    devices = (
        DeviceMemory(("rollout",), ("sampler",), sampler.total, True, "cuda"),
        DeviceMemory(("train",), ("actor",), actor.total, actor.is_complete, "cuda", limit),
    )
    return replace(job(), memory=Memory((sampler, actor), devices))


def test_memory() -> None:
    trained = ComponentMemory("actor", 4 * GB, 4 * GB, 8 * GB, optimizer_name="AdamW")
    smaller = ComponentMemory("actor", 4 * GB + 1, GB, None, sync=GB, optimizer_name="mine.Best")
    changes = found(with_memory(trained, 80 * GB), with_memory(smaller, 40 * GB))
    assert [*changes] == [("memory", "actor"), ("device memory", "train")]
    assert facts(changes["memory", "actor"]) == {
        "bytes": (16 * GB, 6 * GB + 1),
        "gradients": (4 * GB, GB),
        "optimizer": (8 * GB, "unknown"),
        "sync": (0, GB),
    }
    assert facts(changes["device memory", "train"]) == {
        "bytes": (16 * GB, 6 * GB + 1),
        "device memory": (80 * GB, 40 * GB),
    }
    assert not found(with_memory(trained), with_memory(trained))
