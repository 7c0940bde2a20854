"""Warnings about costs, compared with lists of all devices, process groups and samples: none is false, and
none is missing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.load import load
from meshctl.recipe.rules import Facts
from meshctl.recipe.rules.costs import CODES, devices_are_used, process_groups_stay_on_node
from meshctl.topology.mesh import DIMS
from meshctl.topology.sizes import divisors
from tests.examples import examples
from tests.paths import RECIPE_GOLDEN as GOLDEN
from tests.recipe.rules.facts import facts_of

# Devices that idle


@st.composite
def clusters(draw: st.DrawFn) -> dict[str, Any]:
    """Draws groups, which may need more devices than the cluster has."""
    nodes = draw(st.integers(1, 4))
    kinds = draw(st.sampled_from([("cuda",), ("cuda", "npu")]))
    each = {
        kind: draw(st.one_of(st.integers(1, 5), st.lists(st.integers(1, 5), min_size=nodes, max_size=nodes)))
        for kind in kinds
    }
    groups: dict[str, Any] = {}
    for index in range(draw(st.integers(1, 3))):
        kind, per_worker = draw(st.sampled_from(kinds)), draw(st.sampled_from([1, 1, 2]))
        listed = st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True)
        ranks = draw(
            st.one_of(st.integers(1, 4).map(lambda workers, each=per_worker: workers * each), listed)
        )
        groups[f"g{index}"] = {"ranks": ranks, "device_type": kind} | (
            {"gpus_per_worker": per_worker} if isinstance(ranks, int) else {}
        )
    if draw(st.booleans()) and isinstance(groups["g0"]["ranks"], int):
        groups["guest"] = {"ranks": 1, "device_type": groups["g0"]["device_type"], "colocate": "g0"}
    return {"cluster": {"nodes": nodes, "devices_per_node": each}, "groups": groups}


@settings(max_examples=examples(40, 300))
@given(clusters())
def test_idle_devices_are_those_that_no_group_lists(recipe: dict[str, Any]) -> None:
    facts = facts_of(recipe)
    warned = {found.message.split()[3]: found.message for found in devices_are_used(facts)}
    assert facts.allocation is not None
    if facts.allocation.beyond:
        assert not warned
        return
    for kind in facts.allocation.cluster.devices_per_node:
        groups = [name for name, group in facts.recipe.groups.items() if group.device_type == kind]
        used = {
            device
            for name in groups
            for start, stop in facts.allocation.devices[name]
            for device in range(start, stop)
        }
        total = facts.allocation.cluster.total(kind)
        idle = [device for device in range(total) if device not in used]
        assert (kind in warned) == bool(idle)
        if idle:
            assert warned[kind].startswith(f"{len(idle)} of {total} {kind} devices ")
            first = warned[kind].split(": ")[1]
            node = facts.allocation.cluster.node_of(kind, idle[0])
            assert re.match(rf"(all |number )?\d+(-\d+)? of nodes? {node}\b", first)


def of_train(cluster: dict[str, Any], ranks: int, device_type: str = "cuda") -> list[Diagnostic]:
    groups = {"train": {"ranks": ranks, "device_type": device_type}}
    return list(devices_are_used(facts_of({"cluster": cluster, "groups": groups})))


def test_what_does_not_idle() -> None:
    """Devices beyond a cluster that the recipe does not state, and second mps devices, which no machine has."""
    assert not of_train({"nodes": 2}, 3) and of_train({"devices_per_node": 4}, 3)
    assert not of_train({"devices_per_node": 8}, 3, "cpu")
    assert not of_train({"nodes": 2, "devices_per_node": 2}, 1, "mps")
    (found,) = of_train({"nodes": 2, "devices_per_node": 1}, 1, "mps")
    assert found.message.startswith("1 of 2 mps devices is not used by any group: number 0 of node 1")


# Process groups across nodes


@st.composite
def layouts(draw: st.DrawFn, world: int) -> dict[str, Any]:
    """Draws the sizes of a mesh with this many ranks."""
    sizes: dict[str, Any] = {}
    left = world
    for dim in draw(st.permutations(DIMS))[1:]:
        sizes[f"{dim}_size"] = draw(st.sampled_from(divisors(left)))
        left //= sizes[f"{dim}_size"]
    sizes[next(f"{dim}_size" for dim in DIMS if f"{dim}_size" not in sizes)] = left
    stage = world // sizes["pp_size"]
    sizes["ep_size"] = draw(st.sampled_from(divisors(stage)))
    sizes["etp_size"] = draw(st.sampled_from(divisors(stage // sizes["ep_size"])))
    sizes["ulysses_size"] = draw(st.sampled_from(divisors(sizes["dp_size"] * sizes["fsdp_size"])))
    return sizes | ({"order": list(draw(st.permutations(DIMS)))} if draw(st.booleans()) else {})


@st.composite
def placements(draw: st.DrawFn) -> dict[str, Any]:
    """Draws a component on part of a cluster, after another group that shifts its first device."""
    nodes, each = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    kind = draw(st.sampled_from(["cuda", "cuda", "cpu"]))
    before = draw(st.integers(0, min(each, nodes * each - 1)))
    workers = draw(st.integers(1, nodes * each - before))
    groups: dict[str, Any] = {"train": {"ranks": workers, "device_type": kind}}
    if kind == "cuda" and draw(st.booleans()):
        groups["train"]["ranks"] = draw(st.permutations(range(before, nodes * each)))[:workers]
    if before:
        groups = {"before": {"ranks": before, "device_type": "cuda"}, **groups}
    actor = {"_target_": "arithmetic.Actor", "group": "train", "parallel": draw(layouts(workers))}
    return {
        "cluster": {"nodes": nodes, "devices_per_node": each},
        "groups": groups,
        "components": {"actor": actor},
    }


def nodes_by_rank(facts: Facts) -> list[int]:
    group, placed = facts.recipe.groups["train"], facts.allocation
    assert placed is not None
    if group.device_type == "cpu":
        each, more = divmod(group.workers, placed.cluster.nodes)
        return [node for node in range(placed.cluster.nodes) for _ in range(each + (node < more))]
    return [
        placed.cluster.node_of("cuda", device)
        for start, stop in placed.devices["train"]
        for device in range(start, stop)
    ]


@settings(max_examples=examples(40, 300))
@given(placements())
def test_groups_across_nodes_are_those_that_are_found_by_listing(recipe: dict[str, Any]) -> None:
    facts = facts_of(recipe)
    if facts.allocation is None or facts.allocation.beyond:
        assert not list(process_groups_stay_on_node(facts))
        return
    nodes, mesh = nodes_by_rank(facts), facts.meshes["actor"]
    warned = {found.code: found for found in process_groups_stay_on_node(facts)}
    for dim, code in CODES.items():
        spread = [len({nodes[rank] for rank in ranks}) > 1 for ranks in mesh.process_groups(dim)]
        assert (code in warned) == any(spread)
        if any(spread):
            assert warned[code].message.split()[0] == (
                "all" if all(spread) and len(spread) > 1 else "some" if len(spread) > 1 else "the"
            )
            helps(recipe, warned[code])


def helps(recipe: dict[str, Any], found: Diagnostic) -> None:
    """Checks that the proposed size has no such warning."""
    component = recipe["components"]["actor"]
    proposed = re.fullmatch(r"`(\w+): (\d+)`( without `order`)? stays inside a node", found.help)
    assert proposed, found.help
    parallel = {**component["parallel"], proposed[1]: int(proposed[2])}
    if proposed[1] == "tp_size":
        parallel["dp_size"] = "auto"
    if proposed[3]:
        parallel.pop("order")
    changed = {**recipe, "components": {"actor": {**component, "parallel": parallel}}}
    again = [one.code for one in process_groups_stay_on_node(facts_of(changed))]
    assert found.code not in again, found.help


def test_a_hundred_thousand_ranks_across_nodes() -> None:
    parallel = {"pp_size": 10, "tp_size": 16, "ep_size": 8}
    recipe = {
        "cluster": {"nodes": 12_500, "devices_per_node": 8},
        "groups": {"train": {"ranks": 100_000, "device_type": "cuda"}},
        "components": {"actor": {"_target_": "arithmetic.Actor", "group": "train", "parallel": parallel}},
    }
    (found,) = process_groups_stay_on_node(facts_of(recipe))
    assert found.message == "all 6250 tp groups of `actor` cross nodes"
    assert found.help == "`tp_size: 8` stays inside a node"


WITHOUT_VLLM = {"MC322", "MC442"}
"""The notes that the interpreter or its library is not here."""


@pytest.mark.parametrize(
    "path", sorted((GOLDEN.parents[2] / "recipes").glob("*.yaml")), ids=lambda path: path.stem
)
def test_shipped_recipes_have_nothing_to_warn_of(path: Path) -> None:
    found = {one.code for one in load(path, [], path.parent).report.diagnostics}
    assert found <= (WITHOUT_VLLM if path.stem == "grpo_vllm" else set())
