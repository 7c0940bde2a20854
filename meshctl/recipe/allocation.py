"""The devices of the groups of a recipe, with the ranks of each group that should be close to each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from meshctl.recipe.meshes import NoMesh, mesh_of
from meshctl.recipe.model import Cluster, Component, DeviceGroup, Recipe, Sizes
from meshctl.topology.allocation import Allocation, allocate

WITHIN_LAYERS = ("tp", "etp", "ep")
"""Dims whose process groups communicate within every layer, the most frequent ones first."""
CLOSE_SIZES = tuple(f"{dim}_size" for dim in (*WITHIN_LAYERS, "fsdp"))


def allocation_of(
    recipe: Recipe, groups: Mapping[str, DeviceGroup] | None = None, cluster: Cluster | None = None
) -> Allocation:
    """Returns the devices of every group. `groups` and `cluster` replace those of the recipe."""
    neighbours = {name: tuple(dict.fromkeys(_neighbours(recipe, name))) for name in recipe.groups}
    return allocate(groups or recipe.groups, cluster or recipe.cluster, neighbours)


def _neighbours(recipe: Recipe, group: str) -> Iterator[int]:
    """Yields the numbers of neighbouring ranks of a group that exchange data within every layer, and those
    that shard a replica (HSDP)."""
    components = [each for each in recipe.components_of(group) if _states_close_dims(each)]
    if not components or recipe.groups[group].device_type == "cpu":
        return
    meshes = []
    for component in components:
        try:
            meshes.append(mesh_of(recipe, component))
        except NoMesh:
            continue
    for dim in (*WITHIN_LAYERS, "fsdp"):
        for mesh in meshes:
            stride, size = mesh.stride(dim), mesh.size(dim)
            is_close = dim != "fsdp" or mesh.size("dp") > 1
            if stride and size > 1 and is_close:
                yield size * stride


def _states_close_dims(component: Component) -> bool:
    layout = component.parallel
    return isinstance(layout, Sizes) and any(key in CLOSE_SIZES for key, _ in layout.given)
