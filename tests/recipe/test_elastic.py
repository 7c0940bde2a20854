"""With which smaller counts a group goes on, and in which layouts."""

from __future__ import annotations

from math import lcm, prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshctl.recipe.meshes import Layouts, layouts_of, mesh_of, replica_ranks, split
from meshctl.recipe.model import Component, DeviceGroup, Recipe, Sizes

FREE, FIXED = ("dp_size", "fsdp_size"), ("tp_size", "cp_size", "pp_size")


def recipe_of(ranks: int, *layouts: dict[str, int | str], kind: str = "cuda", per_worker: int = 1) -> Recipe:
    group = DeviceGroup("train", ranks, kind, gpus_per_worker=per_worker)
    components = {
        f"c{number}": Component(f"c{number}", group="train", parallel=Sizes(tuple(sizes.items())))
        for number, sizes in enumerate(layouts)
    }
    return Recipe(groups={"train": group}, components=components)


def resized(recipe: Recipe, layouts: Layouts) -> Recipe:
    """The recipe with the count and the sizes of some layouts."""
    [group] = recipe.groups.values()
    components = {}
    for name, one in recipe.components.items():
        assert isinstance(one.parallel, Sizes)
        given = {**dict(one.parallel.given), **layouts.sizes.get(name, {})}
        components[name] = Component(name, group=one.group, parallel=Sizes(tuple(given.items())))
    changed = DeviceGroup(group.name, layouts.ranks, group.device_type, group.gpus_per_worker)
    return Recipe(groups={"train": changed}, components=components)


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    """A group of one or two components, each with sizes that multiply to its workers."""
    workers, per_worker = draw(st.sampled_from([1, 2, 4, 6, 8, 12, 16])), draw(st.sampled_from([1, 2]))
    layouts = []
    for _ in range(draw(st.integers(1, 2))):
        left, sizes = workers, dict[str, int | str]()
        for key in draw(st.permutations((*FIXED, "fsdp_size"))):
            size = draw(st.sampled_from([one for one in range(1, left + 1) if left % one == 0]))
            sizes[key], left = size, left // size
        sizes["dp_size"] = left
        if draw(st.booleans()):
            sizes[draw(st.sampled_from(FREE))] = "auto"
        layouts.append({key: size for key, size in sizes.items() if size != 1 or draw(st.booleans())})
    return recipe_of(workers * per_worker, *layouts, per_worker=per_worker)


@given(recipes(), st.integers(1, 8))
def test_only_dp_and_fsdp_sizes_change_and_the_largest_count_is_first(recipe: Recipe, least: int) -> None:
    group = recipe.groups["train"]
    found = list(layouts_of(recipe, "train", group.devices, least))
    counts = [one.ranks for one in found]
    assert counts == sorted(set(counts), reverse=True)
    assert all(count >= least and count % group.gpus_per_worker == 0 for count in counts)
    for layouts in found:
        after = resized(recipe, layouts)
        for name, component in recipe.components.items():
            was, now = mesh_of(recipe, component), mesh_of(after, after.components[name])
            assert now.world_size == layouts.ranks // group.gpus_per_worker
            assert all(was.size(dim) == now.size(dim) for dim in ("tp", "cp", "pp"))
            assert all(now.size(dim) == 1 for dim in ("dp", "fsdp") if was.size(dim) == 1 < was.size("fsdp"))
    fixed = [mesh_of(recipe, one) for one in recipe.components.values()]
    unit = (
        lcm(*(prod(mesh.size(dim) for dim in ("tp", "cp", "pp")) for mesh in fixed)) * group.gpus_per_worker
    )
    assert {*counts} == {count for count in range(unit, group.devices + 1, unit) if count >= least}


@given(recipes())
def test_the_whole_count_keeps_its_layout(recipe: Recipe) -> None:
    whole = next(iter(layouts_of(recipe, "train", recipe.groups["train"].devices, 1)))
    after = resized(recipe, whole)
    for name, component in recipe.components.items():
        assert mesh_of(after, after.components[name]).shape == mesh_of(recipe, component).shape


@pytest.mark.parametrize(
    ("replicas", "was", "now"),
    [
        (7, (8, 1), (7, 1)),
        (7, (1, 8), (1, 7)),
        (7, (2, 4), (1, 7)),
        (6, (2, 4), (1, 6)),
        (12, (4, 4), (3, 4)),
    ],
)
def test_the_state_on_a_rank_does_not_grow_if_possible(
    replicas: int, was: tuple[int, int], now: tuple[int, int]
) -> None:
    assert split(replicas, *was) == now


def test_a_group_of_one_replica_has_no_smaller_count() -> None:
    recipe = recipe_of(8, {"tp_size": 8})
    assert list(layouts_of(recipe, "train", 7, 1)) == [] and replica_ranks(recipe, "train") == 8


def test_a_group_of_programs_has_every_count() -> None:
    counts = [one.ranks for one in layouts_of(recipe_of(4, kind="cpu"), "train", 3, 2)]
    assert counts == [3, 2]
