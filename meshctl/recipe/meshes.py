"""Computes the mesh of each component, from its own sizes or from those of the component that its `parallel`
names."""

from __future__ import annotations

from typing import Any

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
