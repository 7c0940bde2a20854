"""The rule about peers with different samples in mode `execute: peer`, compared with a check of every
rank."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from meshctl.recipe.rules import Facts, flow
from meshctl.topology.mesh import DIMS, DeviceMesh
from meshctl.topology.modes import EXECUTE, producers_of
from tests.examples import examples
from tests.recipe.rules.facts import facts_of


def piped(producers: int, parallel: dict[str, Any], workers: int, mode: str) -> Facts:
    recipe = {
        "groups": {
            "one": {"ranks": producers, "device_type": "cpu"},
            "other": {"ranks": workers, "device_type": "cpu"},
        },
        "components": {
            "prompts": {"_target_": "arithmetic.Prompts", "group": "one"},
            "judge": {"_target_": "arithmetic.Judge", "group": "other", "parallel": parallel},
        },
        "pipeline": {
            "batch": {"call": "prompts.next", "samples": 1024},
            "scored": {"call": "judge.score", "in": "batch", "execute": "peer", "dispatch": mode},
        },
    }
    return facts_of(recipe)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[dict[str, Any], int]:
    sizes = {f"{dim}_size": draw(st.sampled_from([1, 1, 2, 3, 4])) for dim in DIMS}
    world = 1
    for size in sizes.values():
        world *= size
    data = sizes["dp_size"] * sizes["fsdp_size"]
    sizes["ulysses_size"] = draw(st.sampled_from([size for size in (1, 2, 3, 4) if data % size == 0]))
    return {**sizes, "order": list(draw(st.permutations(DIMS)))}, world


@settings(max_examples=examples(40, 300))
@given(layouts(), st.integers(1, 24), st.sampled_from(["slice_dp", "all", "slice"]))
def test_peers_with_different_samples_are_found_as_by_listing(
    layout: tuple[dict[str, Any], int], producers: int, mode: str
) -> None:
    parallel, workers = layout
    mesh = DeviceMesh.from_sizes(world_size=workers, **parallel)
    own: dict[int, set[range]] = {}
    for rank in range(workers):
        found = producers_of(mesh, EXECUTE["peer"], producers, rank)
        own.setdefault(mesh.data_rank(rank), set()).add(found)
    is_split = mode != "slice" and any(len(ranges) > 1 for ranges in own.values())
    reported = list(flow.peers_have_same_samples(piped(producers, parallel, workers, mode)))
    assert [one.code for one in reported] == ["MC528"] * is_split
    for one in reported:
        ranks = [int(word) for word in one.message.split("ranks ")[1].split(" of ")[0].split(" and ")]
        assert mesh.data_rank(ranks[0]) == mesh.data_rank(ranks[1]) and len(one.seconds) == 2


def test_the_producers_of_a_value_do_not_depend_on_how_its_stage_receives() -> None:
    """The mode in the decorator of `look` is unknown. It decides what `spread` receives, and not how many ranks
    give its value."""
    recipe = {
        "groups": {"one": {"ranks": 4, "device_type": "cpu"}},
        "components": {
            "prompts": {"_target_": "arithmetic.Prompts", "group": "one"},
            "first": {"_target_": "arithmetic.Actor", "group": "one", "parallel": {"tp_size": 2}},
            "judge": {"_target_": "arithmetic.Judge", "group": "one", "parallel": {"tp_size": 4}},
        },
        "pipeline": {
            "batch": {"call": "prompts.next", "samples": 1024},
            "spread": {"call": "first.look", "in": "batch"},
            "scored": {"call": "judge.score", "in": "spread", "execute": "peer"},
        },
    }
    assert [one.code for one in flow.peers_have_same_samples(facts_of(recipe))] == ["MC528"]


def test_a_large_world_is_not_listed() -> None:
    reported = list(flow.peers_have_same_samples(piped(3, {"tp_size": 2}, 100_000, "slice_dp")))
    assert [one.code for one in reported] == ["MC528"]
    assert not list(flow.peers_have_same_samples(piped(4, {"tp_size": 2}, 100_000, "slice_dp")))
