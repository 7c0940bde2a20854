"""The meshes of components, from their own sizes or from those of the component that `parallel` names, and
the smaller counts of ranks with which an elastic group can go on, with the layouts
of its components for each count, which differ from those of the recipe in dp and fsdp sizes only.

    mesh_of(recipe, component)                                           a `DeviceMesh`
    for layouts in layouts_of(recipe, "train", most=7, least=1): ...     the largest count first
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import lcm
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.recipe.model import Component, Recipe, Sizes
from meshctl.topology.mesh import DIMS, DeviceMesh, MeshError


class NoMesh(Exception):
    """The mesh of a component is unknown, because a value that determines it is wrong. A rule reports that
    value."""


def sizes_of(recipe: Recipe, component: Component) -> tuple[Component, Sizes]:
    """Returns (component whose sizes a component uses, sizes).

    Raises `NoMesh` if the chain of `parallel: COMPONENT` ends at an unknown component or is a circle.
    """
    seen = {component.name}
    while isinstance(component.parallel, str):
        other = recipe.components.get(component.parallel)
        if other is None or other.name in seen:
            raise NoMesh(component.name)
        seen.add(other.name)
        component = other
    return component, component.parallel


def mesh_of(recipe: Recipe, component: Component) -> DeviceMesh:
    """Returns the mesh of a component. Raises `NoMesh` if the sizes do not fit the number of workers."""
    group = recipe.groups.get(component.group)
    if group is None or not group.workers:
        raise NoMesh(component.name)
    _, sizes = sizes_of(recipe, component)
    given: dict[str, Any] = dict(sizes.given)
    try:
        return DeviceMesh.from_sizes(
            world_size=group.workers,
            device_type=group.device_type,
            sequence_parallel=sizes.sequence_parallel,
            order=sizes.order or DIMS,
            **given,
        )
    except MeshError as error:
        raise NoMesh(component.name) from error


# Elastic groups


@dataclass(frozen=True)
class Layouts:
    """The layouts of the components of a group for one count of ranks."""

    ranks: int
    """Number of devices, or on cpu of processes."""
    sizes: Mapping[str, Mapping[str, int]]
    """Component -> the sizes that the recipe has to state for it. Components whose layout follows from the
    count are absent."""


def layouts_of(recipe: Recipe, group: str, most: int, least: int) -> Iterator[Layouts]:
    """Yields the layouts for the counts from `most` down to `least` for which all components of a group have
    one. Raises `NoMesh` if the sizes of a component are wrong."""
    step, each = replica_ranks(recipe, group), _devices_per_worker(recipe, group)
    for ranks in range(most - most % step, max(least, 1) - 1, -step):
        found = {one.name: _sizes(recipe, one, ranks // each) for one in recipe.components_of(group)}
        yield Layouts(ranks, {name: sizes for name, sizes in found.items() if sizes})


def replica_ranks(recipe: Recipe, group: str) -> int:
    """Returns the least number of ranks that hold whole replicas of all components of a group: its smallest
    count. Raises `NoMesh` if the sizes of a component are wrong."""
    meshes = [mesh_of(recipe, one) for one in recipe.components_of(group)]
    fixed = (mesh.world_size // (mesh.size("dp") * mesh.size("fsdp")) for mesh in meshes)
    return _devices_per_worker(recipe, group) * lcm(*fixed)


def _devices_per_worker(recipe: Recipe, group: str) -> int:
    found = recipe.groups[group]
    return 1 if found.device_type == "cpu" else found.gpus_per_worker


def _sizes(recipe: Recipe, component: Component, workers: int) -> Mapping[str, int]:
    """Returns the sizes that a component has to state for a number of workers."""
    if isinstance(component.parallel, str) or not component.parallel.given:
        return {}  # the layout of another component, or dp over all workers
    mesh, stated = mesh_of(recipe, component), dict(component.parallel.given)
    was = mesh.size("dp"), mesh.size("fsdp")
    dp, fsdp = split(workers * was[0] * was[1] // mesh.world_size, *was)
    sizes = {"dp_size": dp, "fsdp_size": fsdp}
    return {key: size for key, size in sizes.items() if size > 1 or key in stated}


def split(replicas: int, dp: int, fsdp: int) -> tuple[int, int]:
    """Returns the dp and fsdp sizes whose product is `replicas`, where they were `dp` and `fsdp`. A dim of
    size 1 stays so. Of two larger ones, fsdp becomes the least size that is not below its old one, so that
    the state on each rank does not grow as long as that is possible."""
    if fsdp == 1:
        return replicas, 1
    if dp == 1:
        return 1, replicas
    sharding = next((size for size in range(fsdp, replicas) if replicas % size == 0), replicas)
    return replicas // sharding, sharding
