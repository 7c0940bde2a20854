"""The page in a browser: its answers about placement, meshes and routes are Python's."""

from __future__ import annotations

from typing import Any

import pytest

from meshctl.plan.model import Plan
from meshctl.plan.views.topology import topology
from meshctl.topology.mesh import DeviceMesh
from tests.plan.links import links, partners
from tests.view.pictures.browser.page import Open, described
from tests.view.pictures.plans import (
    PLANS,
    everything,
    hundred_thousand,
)


def workers(plan: Plan, most: int = 10_000) -> list[str]:
    """Returns all workers of a group; for a large group, the first, the last and some between."""
    found = []
    for group in plan.groups:
        step = max(1, group.workers // most)
        found += [
            f"{group.name}:{rank}" for rank in sorted({*range(0, group.workers, step), group.workers - 1})
        ]
    return found


# Its answers are Python's


@pytest.mark.parametrize("name", PLANS)
def test_process_placement(opened: Open, name: str) -> None:
    plan = PLANS[name]()
    names = workers(plan, 50)
    for found in described(opened(topology(plan)), names, 1, 1):
        worker = plan.worker(found["group"], found["rank"])
        seen = tuple(found[key] for key in ("jobRank", "node", "localRank", "devices"))
        assert seen == (worker.job_rank, worker.node, worker.local_rank, list(worker.devices))


def test_meshes(opened: Open) -> None:
    plan = everything()
    page = opened(topology(plan))
    for total in (97, 3):
        for found in described(page, workers(plan), total):
            for mesh in found["meshes"]:
                check_mesh(plan.component(mesh["component"]).mesh, mesh, found["rank"], total)


def test_meshes_of_a_hundred_thousand(opened: Open) -> None:
    plan = hundred_thousand()
    for found in described(opened(topology(plan)), workers(plan, 20), 1_000_003, 64):
        for mesh in found["meshes"]:
            check_mesh(plan.component(mesh["component"]).mesh, mesh, found["rank"], 1_000_003, 64)


def check_mesh(mesh: DeviceMesh, found: dict[str, Any], rank: int, total: int, most: int = 10_000) -> None:
    mine = mesh.sample_range(total, rank)
    views = {dim: mesh.dim_rank(rank, dim) for dim in ("data", "ulysses", "ep_fsdp", "ep", "etp")}
    assert found["coordinate"] == {**mesh.coordinate(rank), **views}
    assert (found["dataRank"], found["slice"]) == (mesh.data_rank(rank), [mine.start, mine.stop])
    assert tuple(found["stages"]) == mesh.pp_stages_of(rank)
    for dim, peers in found["peers"].items():
        along = mesh.ranks_along(dim, rank)
        assert peers["ranks"] == sorted(along[:most]), dim
        if mesh.world_size < 100:
            assert list(mesh.process_groups(dim))[peers["group"]] == along, dim


def test_routes(opened: Open) -> None:
    plan = everything()
    drawn = topology(plan)
    page = opened(drawn)
    for samples in (1, 5, 16, 97):
        seen = {
            (each["group"], each["rank"], route["route"], route["role"]): route
            for each in described(page, workers(plan), samples)
            for route in each["routes"]
        }
        for route, flow in zip(plan.routes, drawn.routes, strict=True):
            sent, received = partners(links(plan, route, flow.samples or samples))
            for component, role, expected in (
                (flow.producer, "sends", sent),
                (flow.consumer, "receives", received),
            ):
                for rank in range(plan.component(component).mesh.world_size):
                    found = seen[plan.component(component).group, rank, route.name, role]
                    assert found["agrees"] and found["count"] == len(found["ranks"])
                    assert found["ranks"] == sorted(expected.get(rank, ())), (route.name, role, rank, samples)


def test_routes_of_a_hundred_thousand_are_not_listed(opened: Open) -> None:
    plan = hundred_thousand()
    found = described(opened(topology(plan)), ["train:65535", "rollout:16", "judge:6999"], 1000, 8)
    counts = {
        (each["group"], route["route"], route["role"]): route["count"]
        for each in found
        for route in each["routes"]
    }
    sampler, actor = plan.component("sampler").mesh, plan.component("actor").mesh
    assert counts["train", "publish", "sends"] == sampler.world_size
    assert counts["rollout", "publish", "receives"] == actor.world_size
    assert counts["rollout", "rollouts -> all", "sends"] == actor.world_size // sampler.data_size + 1
    assert all(len(route["ranks"]) <= 8 for each in found for route in each["routes"])
