"""Node pools and domains in the picture."""

from meshctl.plan.model import Cluster, Component, Group, Plan, Run
from meshctl.plan.views.topology import topology
from meshctl.topology.domains import domains_of
from meshctl.topology.mesh import DeviceMesh
from meshctl.view.pictures.mermaid import draw as mermaid
from meshctl.view.pictures.text.cluster import cluster_lines
from meshctl.view.pictures.text.picture import draw

POOLS = (("gpu", 4), ("cpu", 1))
DOMAINS = {"nvlink": ((2, 2), (1, 1)), "rack": ((1, 5),)}


def plan() -> Plan:
    cluster = Cluster(5, {"cuda": ((4, 8), (1, 0))}, POOLS, DOMAINS)
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


def test_pools_and_domains_have_a_line_each() -> None:
    assert text(Cluster(5, {}, POOLS, DOMAINS)) == [
        "  pools   gpu: nodes 0-3, cpu: node 4",
        "  nvlink  2 domains of 2 nodes, 1 of 1: 0-1, 2-3, 4",
        "  rack    1 domain of 5 nodes: 0-4",
    ]
    assert text(Cluster(5)) == []


def test_many_domains_are_counted() -> None:
    assert text(Cluster(9000, {}, domains={"nvlink": domains_of(9000, 18)})) == [
        "  nvlink  500 domains of 18 nodes: 0-17, 18-35, 36-53, … 8982-8999"
    ]
    sizes = {"rack": ((1, 2), (1, 3), (1, 4), (1, 5), (1, 6))}
    assert text(Cluster(20, {}, domains=sizes)) == [
        "  rack  1 domain of 2 nodes, 1 of 3, 1 of 4, 2 more: 0-1, 2-4, 5-8, … 14-19"
    ]


def test_each_dim_shows_what_its_process_groups_are_inside_of() -> None:
    shown = topology(plan())
    dp, tp = shown.components[0].process_groups
    assert [(each.reach, each.domain) for each in (dp, tp)] == [("all", "rack"), ("all", "nvlink")]
    assert [group.pools for group in shown.groups] == [("gpu",), ("cpu",)]
    drawn = draw(shown)
    assert "inside rack" in drawn and "inside nvlink" in drawn
    assert "32 workers on 32 cuda, nodes 0-3 of gpu" in drawn and "2 workers on cpu, node 4 of cpu" in drawn
    assert "4 nodes of gpu" in mermaid(shown)
