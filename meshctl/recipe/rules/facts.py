"""What rules know: the recipe, where it was written, which values were said to be wrong, and its components'
source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from meshctl.diagnostics import Span
from meshctl.recipe.code.classes import Class, Code, Endpoint, Found
from meshctl.recipe.code.model_config import Config, config
from meshctl.recipe.meshes import NoMesh, mesh_of
from meshctl.recipe.model import Cluster, Component, DeviceGroup, Input, Recipe, Stage
from meshctl.recipe.reader import Read
from meshctl.recipe.spans import Written
from meshctl.topology.allocation import Allocation, allocate
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import COLLECT


@dataclass(frozen=True)
class Facts:
    read: Read
    written: Written
    code: Code
    configs: dict[str, Config] = field(default_factory=dict)
    """By the path that the recipe says; filled on use."""
    noted: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What rules found out of stages and need again, by subject and stage."""

    @property
    def recipe(self) -> Recipe:
        return self.read.recipe

    def right(self, *path: str) -> bool:
        return self.read.right(*path)

    def names(self, *path: str) -> bool:
        """Whether something of this name was written, however wrong, or could have been: nobody knows what a
        wrong mapping names."""
        return self.written.node(*path) is not None or not self.read.stands(*path[:-1])

    def value(self, *path: str) -> Span:
        return self.written.value(*path)

    def key(self, *path: str) -> Span:
        return self.written.key(*path)

    @cached_property
    def allocation(self) -> Allocation | None:
        """None where a group's size or kind is not known."""
        groups = self.recipe.groups.values()
        sized = all(group.devices and group.device_type for group in groups)
        right = all(
            self.right("groups", group.name, key)
            for group in groups
            for key in ("gpus_per_worker", "colocate")
        )
        right = right and len(set(node_counts(self.recipe.cluster).values())) < 2
        return (
            allocate(self.recipe.groups, self.recipe.cluster)
            if sized and right and self.right("cluster")
            else None
        )

    @cached_property
    def classes(self) -> dict[str, Found]:
        """What each component's `_target_` leads to."""
        return {
            name: self.code.find(component.target)
            for name, component in self.recipe.components.items()
            if component.target
        }

    def class_of(self, component: str) -> Class | None:
        found = self.classes.get(component)
        return found if isinstance(found, Class) else None

    def endpoints(self) -> dict[str, dict[str, Endpoint]]:
        return {name: found.endpoints for name, found in self.classes.items() if isinstance(found, Class)}

    def endpoint(self, stage: Stage) -> Endpoint:
        """The defaults that hold for a stage: its method's, or the design's where that cannot be read."""
        found = self.class_of(stage.component)
        return (found.endpoints.get(stage.method) if found else None) or Endpoint()

    def leading(self, stage: Stage) -> Input | None:
        """The input that gives order and shares to all others: the first that is a batch; one that nobody
        knows may be one."""
        for given in stage.inputs:
            sources = [self.recipe.pipeline.get(name) for name in given.stages]
            if any(source is None or self.join(source) in ("", "samples", "first") for source in sources):
                return given
        return None

    def join(self, stage: Stage) -> str:
        """How what a stage gives is joined; nothing where that is not known, or it is a sync."""
        mode = COLLECT.get(stage.collect or self.endpoint(stage).collect)
        return mode.join if mode and stage.kind == "call" else ""

    def config(self, path: str) -> Config:
        """A model's config file, read once."""
        if path not in self.configs:
            self.configs[path] = config(path, self.code.own)
        return self.configs[path]

    @property
    def sources(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """(file, its lines) of the config files that were read."""
        return tuple((found.name, found.lines) for found in self.configs.values() if found.lines)

    def group_of(self, component: Component) -> DeviceGroup | None:
        return self.recipe.groups.get(component.group)

    @cached_property
    def meshes(self) -> dict[str, DeviceMesh]:
        """Of the components that have one."""
        meshes = {}
        for name, component in self.recipe.components.items():
            try:
                if self.right("components", name, "parallel"):
                    meshes[name] = mesh_of(self.recipe, component)
            except NoMesh:
                continue
        return meshes


def node_counts(cluster: Cluster) -> dict[tuple[str, ...], int]:
    """Returns the number of nodes that each key of `cluster` states."""
    given = cluster.devices_per_node
    by_key = {(kind,): each for kind, each in given.items()} if isinstance(given, Mapping) else {(): given}
    counts: dict[tuple[str, ...], int] = {("nodes",): cluster.nodes} if cluster.nodes else {}
    for key, each in by_key.items():
        if isinstance(each, tuple):
            counts["devices_per_node", *key] = len(each)
    return counts
