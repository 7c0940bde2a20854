"""Groups and clusters as the command line changes them."""

import pytest

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.load import load
from meshctl.recipe.model import Cluster
from tests.paths import RECIPE_GOLDEN as GOLDEN


def found(*overrides: str) -> list[Diagnostic]:
    return [
        one
        for one in load("base_of_all.yaml", overrides, GOLDEN, environ={}).report.diagnostics
        if one.severity == "error"
    ]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["cluster.devices_per_node=[8,4]"], Cluster(0, (8, 4))),
        (["cluster.devices_per_node.cuda=8"], Cluster(0, {"cuda": 8})),
        (["cluster.devices_per_node.GPU=[8,0]", "cluster.nodes=2"], Cluster(2, {"cuda": (8, 0)})),
        (["cluster.devices_per_node=8", "cluster.devices_per_node={npu: 2}"], Cluster(0, {"npu": 2})),
        (["cluster.devices_per_node=[8,4]", "cluster.devices_per_node.1=6"], Cluster(0, (8, 6))),
    ],
)
def test_overrides_set_devices(overrides: list[str], expected: Cluster) -> None:
    assert load("base_of_all.yaml", overrides, GOLDEN, environ={}).recipe.cluster == expected
    assert not found(*overrides)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["cluster.devices_per_node=0"], "`devices_per_node` must be a positive integer, not 0"),
        (["cluster.devices_per_node=[]"], "`devices_per_node` is empty"),
        (["cluster.devices_per_node=[8,-1]"], "`devices_per_node.1` must be an integer of at least 0, not -1"),
        (["cluster.devices_per_node.cuda=true"], "`cuda` must be a positive integer, not true"),
        (["cluster.devices_per_node={cuda: [0, 0]}"], "`cuda` is empty"),
        (["cluster.devices_per_node.cdua=8"], "`cluster.devices_per_node.cdua` is not in the recipe"),
        (["cluster.devices_per_node={cdua: 8}"], "`cdua` is not a device type"),
        (["cluster.devices_per_node={cpu: 8}"], "`devices_per_node` counts accelerators, not cpus"),
        (["cluster.devices_per_node={cuda: 8, gpu: 8}"], "`devices_per_node` names cuda twice"),
        (["cluster.nodes=3", "cluster.devices_per_node=[8,4]"], "`devices_per_node` lists 2 nodes, but the cluster has 3"),
        (["cluster.devices_per_node={gpu: [8,4], npu: [1]}"], "`devices_per_node.npu` lists 1 node, but the cluster has 2"),
        (["cluster.devices_per_node=8", "cluster.devices_per_node.cuda=8"], "`cluster.devices_per_node` is a single value and has no keys"),
        (["groups.train={ranks: 2, device_type: mps}"], "group `train` needs a second mps device of a machine, which has only one"),
        (["groups.train={ranks: [1], device_type: mps}"], "group `train` needs a second mps device of a machine, which has only one"),
        (["groups.train={ranks: [0, 3, 0], device_type: cuda}"], "`ranks` names device 0 twice"),
        (["groups.train={ranks: [0, true], device_type: cuda}"], "`ranks` must be a device number, an integer of at least 0, not true"),
    ],
)  # fmt: skip
def test_wrong_placements(overrides: list[str], message: str) -> None:
    assert [one.message for one in found(*overrides)] == [message]
