"""The plan as data: JSON and back, its digest, and where every worker is."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings

from meshctl.plan.model import Checkpoint, Cluster, Component, Group, Input, Plan, Program, Run, Stage, Worker
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import Dispatch, Route
from tests.examples import examples
from tests.plan.jobs import Sizes, jobs, naive


def plan() -> Plan:
    mesh = DeviceMesh.from_sizes(world_size=4, tp_size=2)
    return Plan(
        name="p",
        seed=1,
        cluster=Cluster.of(2, cuda=4),
        groups=(
            Group("train", "cuda", 3, 0, ((5, 7), (0, 4)), gpus_per_worker=2, env=(("A", "1"), ("B", None))),
            Group("judge", "cpu", 5, 3),
            Group("script", "cpu", 1, 8, program=Program(("a.py", "--x"))),
        ),
        components=(
            Component(
                "c", "m.C", "train", mesh, {"x": [1, {"y": None}]}, endpoints={"go": ("all", "mean", "first")}
            ),
        ),
        stages=(
            Stage("s", "call", "c", "next", samples=4),
            Stage("t", "call", "c", "go", (Input(("s",), "b", Dispatch(balance="tokens")),)),
        ),
        routes=(Route("s -> t", "s", "t", "b", dispatch=Dispatch(balance="tokens")),),
        run=Run(steps=3, checkpoint=Checkpoint(2)),
    )


def test_what_is_at_its_default_may_be_left_out_and_then_the_digest_stays() -> None:
    assert Plan.from_json(plan().to_json()) == plan()
    assert not {"patience", "record"} & {*json.loads(plan().to_json())["run"]}
    assert "checksum" not in plan().to_json() and "equal_counts" not in plan().to_json()
    stated = replace(plan(), run=Run(steps=3, patience=0.0, record=("s -> t",)))
    assert Plan.from_json(stated.to_json()) == stated and stated.digest != plan().digest


def test_the_digest_detects_any_change() -> None:
    assert plan().digest != replace(plan(), seed=2).digest
    changed = json.loads(plan().to_json()) | {"seed": 5}
    with pytest.raises(ValueError, match="this plan was changed"):
        Plan.from_json(json.dumps(changed))
    with pytest.raises(ValueError, match="has format 9"):
        Plan.from_json(json.dumps({"format": 9}))


def test_where_workers_are() -> None:
    def places(group: str) -> list[tuple[object, ...]]:
        found = plan().workers(group)
        return [(worker.job_rank, worker.node, worker.local_rank, worker.devices) for worker in found]

    assert places("train") == [(0, 1, 0, (5, 6)), (1, 0, 0, (0, 1)), (2, 0, 1, (2, 3))]
    assert places("judge") == [(3, 0, 0, ()), (4, 0, 1, ()), (5, 0, 2, ()), (6, 1, 0, ()), (7, 1, 1, ())]
    assert plan().job_size == 9 and plan().group_and_rank(7) == ("judge", 4)
    assert [worker.rank for worker in plan().workers("judge", node=1)] == [3, 4]
    assert plan().nodes_of("script") == (0,)
    with pytest.raises(IndexError, match="rank 3 does not exist; the group has 3 workers"):
        plan().worker("train", 3)
    with pytest.raises(IndexError, match="job rank 9 does not exist; the job has 9 workers"):
        plan().group_and_rank(9)


def test_many_devices_are_never_listed() -> None:
    large = replace(
        plan(),
        cluster=Cluster.of(125_000, cuda=8),
        groups=(Group("train", "cuda", 1_000_000, 0, ((0, 1_000_000),)),),
    )
    assert len(large.node_runs("train")) == 1 and large.node_runs_of("train") == ((0, 125_000),)
    assert large.worker("train", 999_999) == Worker("train", 999_999, 999_999, 124_999, 7, (999_999,))
    assert [worker.rank for worker in large.workers("train", 3)] == list(range(24, 32))


@given(jobs())
@settings(max_examples=examples(25, 300))
def test_workers_are_where_a_list_of_all_places_them(job: tuple[Plan, Sizes]) -> None:
    plan, sizes = job
    for group in plan.groups:
        listed = naive(group, sizes, plan.cluster.nodes)
        found = [(worker.node, worker.local_rank, worker.devices) for worker in plan.workers(group.name)]
        assert found == [(one.node, one.local_rank, one.devices) for one in listed]
        assert [worker.job_rank for worker in plan.workers(group.name)] == [
            group.first_job_rank + rank for rank in range(group.workers)
        ]
        for node in range(plan.cluster.nodes):
            ranks = [rank for rank, one in enumerate(listed) if one.node == node]
            assert [worker.rank for worker in plan.workers(group.name, node)] == ranks
            assert [plan.local_rank(group.name, rank) for rank in ranks] == list(range(len(ranks)))
        assert plan.nodes_of(group.name) == tuple(sorted({one.node for one in listed}))

    for kind in ("cuda", "npu"):
        own = [group for group in plan.groups if group.device_type == kind and not group.colocate]
        taken = [device for group in own for worker in plan.workers(group.name) for device in worker.devices]
        assert len(taken) == len(set(taken)) == sum(group.workers * group.gpus_per_worker for group in own)
    for guest in (group for group in plan.groups if group.colocate):
        hosts = {device for worker in plan.workers(guest.colocate) for device in worker.devices}
        assert {device for worker in plan.workers(guest.name) for device in worker.devices} <= hosts
