"""The plan as data: JSON and back, its digest, and where every worker is."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from meshctl.mesh import DeviceMesh
from meshctl.plan.model import Checkpoint, Cluster, Component, Group, Input, Plan, Program, Run, Stage
from meshctl.routes import Dispatch, Route


def plan() -> Plan:
    mesh = DeviceMesh.from_sizes(world_size=4, tp_size=2)
    return Plan(
        name="p",
        seed=1,
        cluster=Cluster(2, 4),
        groups=(
            Group("train", "cuda", 3, 0, ((5, 7), (0, 4)), gpus_per_worker=2, env=(("A", "1"), ("B", None))),
            Group("judge", "cpu", 5, 3),
            Group("script", "cpu", 1, 8, program=Program(("a.py", "--x"))),
        ),
        components=(Component("c", "m.C", "train", mesh, {"x": [1, {"y": None}]}, endpoints={"go": ("all", "mean", "first")}),),
        stages=(
            Stage("s", "call", "c", "next", samples=4),
            Stage("t", "call", "c", "go", (Input(("s",), "b", Dispatch(balance="tokens")),)),
        ),
        routes=(Route("s -> t", "s", "t", "b", dispatch=Dispatch(balance="tokens")),),
        run=Run(steps=3, checkpoint=Checkpoint(2)),
    )


def test_it_comes_back_from_json_as_it_was() -> None:
    assert Plan.from_json(plan().to_json()) == plan()
    assert plan().to_json() == plan().to_json()


def test_the_digest_tells_any_change() -> None:
    assert plan().digest != replace(plan(), seed=2).digest
    changed = json.loads(plan().to_json()) | {"seed": 5}
    with pytest.raises(ValueError, match="this plan was changed"):
        Plan.from_json(json.dumps(changed))
    with pytest.raises(ValueError, match="has format 9"):
        Plan.from_json(json.dumps({"format": 9}))


def test_where_workers_are() -> None:
    train = [(worker.place, worker.node, worker.local_rank, worker.devices) for worker in plan().workers("train")]
    assert train == [(0, 1, 0, (5, 6)), (1, 0, 0, (0, 1)), (2, 0, 1, (2, 3))]
    judge = [(worker.place, worker.node, worker.local_rank, worker.devices) for worker in plan().workers("judge")]
    assert judge == [(3, 0, 0, ()), (4, 0, 1, ()), (5, 0, 2, ()), (6, 1, 0, ()), (7, 1, 1, ())]
    assert plan().places == 9 and plan().at_place(7) == ("judge", 4)
    assert [worker.rank for worker in plan().workers("judge", node=1)] == [3, 4]
    assert plan().nodes_of("script") == (0,)


def test_many_devices_cost_no_list_each() -> None:
    large = replace(plan(), cluster=Cluster(12_500, 8), groups=(Group("train", "cuda", 100_000, 0, ((0, 100_000),)),))
    assert len(large.nodes_of("train")) == 12_500
