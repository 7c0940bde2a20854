"""The mesh of each component of a recipe: its own sizes, or those of the component that it names."""

from __future__ import annotations

from typing import Any

from meshctl.recipe.model import Component, Recipe, Sizes
from meshctl.topology.mesh import DIMS, DeviceMesh, MeshError


class NoMesh(Exception):
    """A component has no mesh: a value that determines the mesh is wrong, and a rule reports it."""


def sizes_of(recipe: Recipe, component: Component) -> tuple[Component, Sizes]:
    """Returns the component whose sizes a component uses, and these sizes.

    Raises `NoMesh` where the chain of `parallel: COMPONENT` leads nowhere or in a circle.
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
    """Returns the mesh of a component. Raises `NoMesh` where its sizes do not make up the workers."""
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
