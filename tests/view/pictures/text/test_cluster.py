"""Node pools in the picture."""

from meshctl.plan.model import Cluster, Component, Group, Plan, Run
from meshctl.plan.views.topology import topology
from meshctl.topology.mesh import DeviceMesh
from meshctl.view.pictures.mermaid import draw as mermaid
from meshctl.view.pictures.text.picture import draw
from meshctl.view.pictures.text.placement import cluster_lines

POOLS = (("gpu", 4), ("cpu", 1))


def plan() -> Plan:
    cluster = Cluster(5, {"cuda": ((4, 8), (1, 0))}, POOLS)
    groups = (
        Group("train", "cuda", 32, 0, ((0, 32),)),
        Group("judge", "cpu", 2, 32, nodes=((4, 5),)),
    )
    mesh = DeviceMesh.from_sizes(dp_size=2, tp_size=16)
    components = (
        Component("actor", "m.Actor", "train", mesh),
        Component("judge", "m.Judge", "judge", DeviceMesh.from_sizes(dp_size=2)),
    )
    return Plan("p", 0, cluster, groups, components, (), (), Run())


def text(cluster: Cluster) -> list[str]:
    return [line.text for line in cluster_lines(cluster, 80)]


def test_pools_have_a_line() -> None:
    assert text(Cluster(5, {}, POOLS)) == ["  pools  gpu: nodes 0-3, cpu: node 4"]
    assert text(Cluster(5)) == []


def test_a_group_shows_its_pools() -> None:
    shown = topology(plan())
    assert [group.pools for group in shown.groups] == [("gpu",), ("cpu",)]
    drawn = draw(shown)
    assert "32 workers on 32 cuda, nodes 0-3 of gpu" in drawn and "2 workers on cpu, node 4 of cpu" in drawn
    assert "4 nodes of gpu" in mermaid(shown)
