"""The data of a picture: pinned for a small plan, compared with lists of all devices for random ones.

python -m tests.plan.views.test_topology      writes the golden JSON anew; read the difference
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings

from meshctl.plan.model import Cluster, Plan
from meshctl.plan.resolve import resolve
from meshctl.plan.views.topology import NodeKind, Topology, Warning, topology
from meshctl.recipe.load import load
from meshctl.view.pictures.json import draw
from tests.examples import examples
from tests.paths import PLAN_GOLDEN, RECIPE_GOLDEN
from tests.plan.jobs import Sizes, jobs, naive
from tests.view.pictures import plans

GOLDEN = PLAN_GOLDEN
CLASSES = str(RECIPE_GOLDEN)


def plan_of(recipe: str, *overrides: str) -> Plan:
    loaded = load(recipe, overrides, GOLDEN, path=(CLASSES,))
    assert [found.message for found in loaded.report.errors] == []
    return resolve(loaded.recipe, loaded.endpoints)


def small() -> Topology:
    return topology(
        plan_of("two_nodes.yaml"), [Warning("MC320", "1 device is idle", "two_nodes.yaml:3:39", "")]
    )


def test_json_is_as_pinned() -> None:
    assert draw(small()) == (GOLDEN / "two_nodes.json").read_text()


# Nodes


def looks(kind: NodeKind) -> tuple[dict[tuple[str, int], tuple[str, ...]], dict[str, int]]:
    """(type, number) -> the groups that use it; the processes of each cpu group."""
    devices = {
        (cell.device_type, number): cell.groups for cell in kind.cells for number in range(*cell.devices)
    }
    return devices, dict(kind.processes)


def listed(
    plan: Plan, sizes: Sizes
) -> Iterator[tuple[dict[tuple[str, int], tuple[str, ...]], dict[str, int]]]:
    """Returns the same for every node, by visiting all workers."""
    for node in range(plan.cluster.nodes):
        users = {(kind, number): list[str]() for kind in sizes for number in range(sizes[kind][node])}
        processes: dict[str, int] = {}
        for group in plan.groups:
            for worker in naive(group, sizes, plan.cluster.nodes):
                if worker.node == node and group.device_type == "cpu":
                    processes[group.name] = processes.get(group.name, 0) + 1
                for number in worker.numbers if worker.node == node else ():
                    users[group.device_type, number].append(group.name)
        yield {device: tuple(names) for device, names in users.items()}, processes


@settings(max_examples=examples(20, 150))
@given(jobs())
def test_nodes_show_every_device_as_it_is_used(job: tuple[Plan, Sizes]) -> None:
    plan, sizes = job
    drawn = topology(plan)
    found = {node: kind for kind in drawn.nodes for start, stop in kind.nodes for node in range(start, stop)}
    assert [looks(found[node]) for node in range(plan.cluster.nodes)] == list(listed(plan, sizes))
    assert sum(stop - start for kind in drawn.nodes for start, stop in kind.nodes) == plan.cluster.nodes
    assert drawn.idle == sum(not groups for node in found.values() for groups in looks(node)[0].values())
    assert len({(kind.cells, kind.processes) for kind in drawn.nodes}) == len(drawn.nodes)
    for kind in drawn.nodes:
        for one, other in zip(kind.cells, kind.cells[1:], strict=False):
            assert one.device_type != other.device_type or (
                one.devices[1] == other.devices[0] and one.groups != other.groups
            )


def test_a_picture_of_100_000_devices_is_no_larger() -> None:
    ranks = {"rollout": 40_000, "critic": 40_000, "train": 59_988}
    samples = {"batch": 1 << 20, "rollouts": 1 << 20, "advantages": 1 << 20}
    overrides = [f"groups.{group}.ranks={count}" for group, count in ranks.items()]
    overrides += [f"pipeline.{stage}.samples={count}" for stage, count in samples.items()]
    large = topology(
        plan_of(
            "two_nodes.yaml", "cluster.nodes=12500", "components.actor.parallel.fsdp_size=auto", *overrides
        )
    )
    assert large.workers == 20_000 + 40_000 + 59_988 + 1 + 3 and large.idle == 11
    assert len(draw(large)) < 1.2 * len(draw(small()))


# Components


def test_letters_go_on_after_z() -> None:
    alone = plans.group("g", "cpu", 1)
    components = [plans.component(f"c{number}", alone) for number in range(703)]
    shown = topology(plans.plan("p", Cluster(), [alone], components, [])).components
    letters = [one.letter for one in shown]
    assert [letters[at] for at in (0, 25, 26, 701, 702)] == ["A", "Z", "AA", "ZZ", "AAA"]
    assert len(set(letters)) == 703 and shown[0].layout == "one rank"


# Routes


def route_plan(collect: str, nodes: int = 1) -> Plan:
    """Returns a plan of a source on dp 2 x tp 2, whose batches are sent to fsdp 3 x pp 2."""
    one, other = plans.group("a", "cpu", 4), plans.group("b", "cpu", 6)
    components = [
        plans.component("x", one, dp_size=2, tp_size=2),
        plans.component("y", other, fsdp_size=3, pp_size=2),
    ]
    stages = [
        plans.call("s", "x.next", collect=collect, samples=100, sample_bytes=10),
        plans.call("t", "y.take", "s"),
        plans.sync("w", "x", "y"),
    ]
    return plans.plan("p", Cluster(nodes), [one, other], components, stages)


@pytest.mark.parametrize(("collect", "samples"), [("flatten", 100), ("first", 100), ("mean", 0), ("none", 0)])
def test_samples_and_bytes_of_a_route(collect: str, samples: int) -> None:
    """The numbers of ranks and shares are compared with lists of links in `test_distances`."""
    flow, weights = topology(route_plan(collect)).routes
    assert (flow.samples, flow.bytes) == (samples, 10 * samples)
    assert (weights.producers, weights.consumers, weights.shares, weights.bytes) == (4, 6, 1, 0)
    assert (flow.producer, flow.consumer, weights.kind) == ("x", "y", "weights")


if __name__ == "__main__":
    (GOLDEN / "two_nodes.json").write_text(draw(small()))
