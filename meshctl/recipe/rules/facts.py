"""The input of all rules: the recipe, the places of its values, the values that were reported as wrong, the
source of the components' classes, and facts derived from these.

Facts that several rules use are computed here, once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import cached_property, reduce
from pathlib import Path
from typing import Any, NamedTuple

from meshctl.dataclass import dataclass
from meshctl.diagnostics import Span
from meshctl.recipe.allocation import Allocation, allocation_of
from meshctl.recipe.code.classes import Class, Code, Endpoint, Found, GroupCode
from meshctl.recipe.code.declarations import Declarations
from meshctl.recipe.code.model_config import Config, config, config_of_name, sizes_in
from meshctl.recipe.compose.yaml_tree import MISSING, KeyPath, Node, merge, plain
from meshctl.recipe.meshes import NoMesh, mesh_of
from meshctl.recipe.model import Cluster, Component, DeviceGroup, Input, Recipe, Stage, stage_path
from meshctl.recipe.reader import Read
from meshctl.recipe.stages import StageModes, Times, modes_of, times_by_stage
from meshctl.topology.cluster import DEVICE_ALIASES
from meshctl.topology.device_ranges import most_per_node
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import COLLECT, DISPATCH, Dispatch

ALL_LINEAR = "all-linear"
"""The target of `lora` that means all linear layers."""
KnownCall = Stage
"""A stage with `call` whose inputs and modes are known."""


class Metric(NamedTuple):
    """A metric that `run` names."""

    key: str
    """The key that names it, such as `run.show`."""
    text: str
    span: Span
    stage: str
    name: str
    """Its own name; empty if there is none."""


@dataclass(frozen=True)
class Facts:
    read: Read
    tree: Node
    """The composed recipe, with the places of its values."""
    group_code: GroupCode
    hub: Path | None = None
    """The local cache of the Hugging Face hub."""
    configs: dict[str, Config] = field(default_factory=dict)
    """Path in the recipe -> config file that was read."""
    named_configs: dict[str, Config | None] = field(default_factory=dict)
    """Name of a model in an argument -> its config; None if its format is unknown."""
    items: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """Type of the items of a recipe -> the items, after the first rule about each of them."""

    @property
    def code(self) -> Code:
        """The code that the launcher's interpreter imports."""
        return self.group_code.launcher

    # Places of values

    @property
    def recipe(self) -> Recipe:
        return self.read.recipe

    # In a path, a stage of a block has its full name: ("pipeline", "eval.exam", "call")

    def is_valid(self, *path: str) -> bool:
        """Returns whether no diagnostic is about a value, a part of it, or a mapping that contains it."""
        return self.read.is_valid(*written_path(path))

    def is_named(self, *path: str) -> bool:
        """Returns whether a key exists, or may exist because the mapping that contains it could not be
        read."""
        return self.node(*path) is not None or not self.read.is_known(*written_path(path)[:-1])

    def node(self, *path: str) -> Node | None:
        return self.tree.at(written_path(path))

    def value(self, *path: str) -> Span:
        return self.tree.span_at(written_path(path))

    def key(self, *path: str) -> Span:
        return self.tree.key_span_at(written_path(path))

    def item(self, *path: str, index: int) -> Span:
        """Returns the span of a list item, or of the single value that is allowed instead of a list."""
        node = self.node(*path)
        return self.value(*path, str(index)) if node is not None and node.is_list else self.value(*path)

    def cluster_value(self, *path: str) -> Span:
        """Returns the span of a value of `cluster`. The key of a device type may be an alias (`gpu`)."""
        node = self.node("cluster", *path[:-1])
        keys = [key for key, _ in node.items()] if node else []
        written = [key for key in keys if DEVICE_ALIASES.get(key.lower(), key.lower()) == path[-1]]
        return self.value("cluster", *path[:-1], *(written[:1] or path[-1:]))

    # Devices and meshes

    @cached_property
    def allocation(self) -> Allocation | None:
        """The devices of all groups; None if a number of devices or a device type is unknown."""
        groups = self.recipe.groups
        for name, group in groups.items():
            is_sized = group.devices and group.device_type
            if not is_sized or not all(
                self.is_valid("groups", name, key) for key in ("gpus_per_worker", "colocate", "nodes")
            ):
                return None
        cluster = self.recipe.cluster
        is_consistent = len(set(node_counts(cluster).values())) < 2
        is_consistent = is_consistent and not (cluster.pools and cluster.devices_per_node)
        return allocation_of(self.recipe) if is_consistent and self.is_valid("cluster") else None

    def devices_beyond_visible(self, group: DeviceGroup) -> int:
        """Returns the number of devices that a group uses on one node, if that is more than `visible_devices`
        names; otherwise 0."""
        if self.allocation is None or not group.visible_devices:
            return 0
        devices = self.allocation.devices[group.name]
        most = most_per_node(devices, self.allocation.cluster, group.device_type)
        return most if len(group.visible_devices) < most else 0

    def is_detected(self, group: str) -> bool:
        """Returns whether a group does not state its device type, so that it depends on the machine."""
        node = self.node("groups", group, "device_type")
        return node is not None and node.inferred_from != ""

    def group_of(self, component: Component) -> DeviceGroup | None:
        return self.recipe.groups.get(component.group)

    @cached_property
    def meshes(self) -> dict[str, DeviceMesh]:
        """Component -> mesh, for components with valid sizes."""
        meshes = {}
        for name, component in self.recipe.components.items():
            try:
                if self.is_valid("components", name, "parallel"):
                    meshes[name] = mesh_of(self.recipe, component)
            except NoMesh:
                continue
        return meshes

    # Source code

    @cached_property
    def targets(self) -> frozenset[str]:
        """The classes of all components, as dotted paths."""
        return frozenset(component.target for component in self.recipe.components.values())

    @cached_property
    def classes(self) -> dict[str, Found]:
        """Component -> what its `_target_` is in the source code of its group."""
        components = self.recipe.components.items()
        return {
            name: self.group_code.find(component.group, component.target)
            for name, component in components
            if component.target
        }

    def code_of(self, component: str) -> Code:
        """Returns the code that the workers of a component import; the launcher's if it does not exist."""
        found = self.recipe.components.get(component)
        return self.group_code.of(found.group) if found else self.group_code.launcher

    def class_of(self, component: str) -> Class | None:
        found = self.classes.get(component)
        return found if isinstance(found, Class) else None

    def endpoints(self) -> dict[str, dict[str, Endpoint]]:
        """Returns component -> method -> endpoint, for components whose class was read."""
        return {name: found.endpoints for name, found in self.classes.items() if isinstance(found, Class)}

    def known_endpoint(self, stage: Stage) -> Endpoint | None:
        """Returns the endpoint that a stage calls; None if its source was not read."""
        found = self.class_of(stage.component) if stage.kind == "call" else None
        return found.endpoints.get(stage.method) if found else None

    def endpoint(self, stage: Stage) -> Endpoint:
        """Returns the endpoint that a stage calls; an endpoint with default modes if its source was not
        read."""
        return self.known_endpoint(stage) or Endpoint()

    def config(self, path: str) -> Config:
        """Returns a model's config file. Each file is read once."""
        if path not in self.configs:
            self.configs[path] = config(path, self.code.own)
        return self.configs[path]

    def stated_config(self, component: str) -> Config | None:
        """Returns the config that `model` of a component names or contains; None if there is none."""
        stated = self.recipe.components[component].model.config
        if not stated or not self.is_valid("components", component, "model"):
            return None
        if isinstance(stated, str):
            return self.config(stated)
        return Config("", tree=self.node("components", component, "model", "config"))

    def declared_configs(self, component: str) -> list[tuple[tuple[str, ...], Config]]:
        """Returns (key path, config) for the arguments that `MODEL` of a component's class names: the names
        of models, and mappings with values of a config. One that is not on this machine is `missing`."""
        found: list[tuple[tuple[str, ...], Config]] = []
        for path in (("components", component, *one) for one in self.declares(component).model):
            node = self.node(*path)
            if node is None or node.from_environment or node.is_interpolated or not node.value:
                continue
            name = node.value
            if node.is_mapping:
                found.append((path, Config("", tree=node)))
            elif isinstance(name, str) and name != MISSING:
                if name not in self.named_configs:
                    self.named_configs[name] = config_of_name(name, self.code.own, self.hub)
                if file := self.named_configs[name]:
                    found.append((path, file))
        return found

    def declared_values(self, component: str) -> Node | None:
        """Returns the values of the config to which `MODEL` of a component's class leads; None if there are
        none."""
        trees = [file.tree for _, file in self.declared_configs(component) if file.tree]
        return reduce(merge, trees) if trees else None

    def config_values(self, component: str) -> Node | None:
        """Returns the values of the config of a component's model: those of `declared_values`, and those that
        only its `model` states. None if there are none."""
        stated, declared = self.stated_config(component), self.declared_values(component)
        if stated is None or stated.tree is None or declared is None:
            return declared or (stated.tree if stated else None)
        return merge(stated.tree, declared)

    @cached_property
    def models(self) -> dict[str, ModelSizes]:
        """Component -> sizes of its model. Sizes in the recipe take precedence over those in config files."""
        return {name: self._model(name) for name in self.recipe.components}

    def _model(self, component: str) -> ModelSizes:
        given = self.recipe.components[component].model.given
        is_valid = self.is_valid("components", component, "model")
        sizes, spans = dict(given) if is_valid else {}, dict[str, Span]()
        for size in sizes:
            spans[size] = self.value("components", component, "model", size)
        stated = self.stated_config(component)
        declared = self.declared_values(component)
        for found in (stated.sizes if stated else {}, sizes_in(declared) if declared else {}):
            for size, (number, span) in found.items():
                sizes.setdefault(size, number)
                spans.setdefault(size, span)
        return ModelSizes(sizes, spans, bool(self.declares(component).layouts.tp_plan))

    def sequence_length(self, component: str) -> tuple[int, Span] | None:
        """Returns (number, span) of the argument with the most tokens of a component's sequences; None if it
        is unknown, or if sequences are packed, whose texts may be shorter."""
        longest = self.declares(component).shipped.longest
        node = self.argument(component, ("args", longest)) if longest else None
        packed = self.argument(component, ("args", "pack"))
        if node is None or type(node.value) is not int or (packed and packed.value):
            return None
        return node.value, node.span

    def declares(self, component: str) -> Declarations:
        """Returns the declarations of a component's class; none if it was not read."""
        found = self.class_of(component)
        return found.declares if found and found.is_component else Declarations()

    @cached_property
    def samplers(self) -> dict[str, str]:
        """Component -> the component of the same group whose engine it calls."""
        found = {name: self.declares(name).shipped.sampler for name in self.recipe.components}
        nodes = {name: self.argument(name, ("args", path)) for name, path in found.items() if path}
        return {name: node.value for name, node in nodes.items() if node and isinstance(node.value, str)}

    def trained_by(self, component: str) -> frozenset[str]:
        """Returns the methods of a component that are known to train it: those that its class declares,
        otherwise those whose text computes gradients."""
        found, stated = self.class_of(component), self.declares(component).shipped.trained_by
        return frozenset((found.trains if found else ()) if stated is None else stated)

    def argument(self, component: str, path: KeyPath) -> Node | None:
        """Returns the value of an argument that a class declares; None if it is not given or unknown."""
        node = self.node("components", component, *path) if path else None
        if node is None or node.from_environment or node.is_interpolated or node.value == MISSING:
            return None
        return node

    def head(self, component: str) -> object:
        """Returns the head of a component's model; None if it is unknown."""
        if self.declares(component).shipped.trained_by is None:
            return None
        if node := self.node("components", component, "args", "head"):
            return node.value
        found = self.class_of(component)
        return found.constructor.defaults.get("head", "lm") if found and found.constructor else None

    def memory_argument(self, component: str, key: str) -> Node | None:
        """Returns the value of an argument on which the bytes of a component depend; None if it is not given
        or unknown."""
        is_known = self.declares(component).shipped.trained_by is not None
        return self.argument(component, ("args", key)) if is_known else None

    @property
    def sources(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """(file, its lines) of the config files that were read."""
        read = [*self.configs.values(), *(one for one in self.named_configs.values() if one)]
        return tuple((found.name, found.lines) for found in read if found.lines)

    # Stages

    @cached_property
    def modes(self) -> dict[str, StageModes]:
        """Stage -> its modes."""
        return {name: modes_of(stage, self.endpoint(stage)) for name, stage in self.recipe.pipeline.items()}

    @cached_property
    def times(self) -> dict[str, Times]:
        return times_by_stage(self.recipe.pipeline, lambda stage: (*stage.takes, *stage.outside))

    @cached_property
    def taken(self) -> frozenset[str]:
        """The stages whose values are inputs of other stages."""
        return frozenset(name for stage in self.recipe.pipeline.values() for name in stage.takes)

    @cached_property
    def metrics(self) -> list[Metric]:
        """The metrics that `run` names, where the value is valid."""
        run = self.recipe.run
        best = run.checkpoint.best if run.checkpoint else None
        shown = enumerate(run.show if self.is_valid("run", "show") else ())
        found = [("run.show", metric, self.item("run", "show", index=index)) for index, metric in shown]
        for metric, *path in (
            (run.stop.on if run.stop else "", "run", "stop", "on"),
            (best.on if best else "", "run", "checkpoint", "best", "on"),
        ):
            if metric and self.is_valid(*path):
                found.append((".".join(path), metric, self.value(*path)))
        return [Metric(key, metric, span, *self.recipe.metric(metric)) for key, metric, span in found]

    def join(self, stage: Stage) -> str:
        """Returns how the parts of a stage's value are joined; empty for a sync or an unknown mode."""
        mode = COLLECT.get(self.modes[stage.name].collect)
        join = mode.join if mode and stage.kind == "call" else ""
        return join if isinstance(join, str) else ""

    def producers(self, stage: Stage) -> int:
        """Returns the number of ranks that produce a stage's value; 0 if it is unknown."""
        return self.modes[stage.name].producer_count(self.meshes.get(stage.component))

    @cached_property
    def known_calls(self) -> tuple[Stage, ...]:
        """The stages with `call` whose inputs and modes are known."""
        return tuple(stage for stage in self.known_receivers if self.modes[stage.name].are_known)

    @cached_property
    def known_receivers(self) -> tuple[Stage, ...]:
        """The stages with `call` whose ranks receive known samples."""
        keys = ("in", "samples", "dispatch", "execute", "collect")
        found = []
        for name, stage in self.recipe.pipeline.items():
            is_valid = all(self.is_valid("pipeline", name, key) for key in keys)
            is_declared = self.endpoint(stage).dispatch in DISPATCH
            if stage.kind == "call" and is_valid and is_declared and self.modes[name].are_known_to_receive:
                found.append(stage)
        return tuple(found)

    def lead_input(self, stage: Stage) -> Input | None:
        """Returns the lead input of a stage, which determines the order and shares of all inputs: the first
        that is, or may be, a batch."""
        for given in stage.inputs:
            sources = [self.recipe.pipeline.get(name) for name in given.stages]
            if any(source is None or self.join(source) in ("", "samples", "first") for source in sources):
                return given
        return None

    def lead_stage(self, stage: Stage) -> Stage | None:
        """Returns the stage whose samples are the lead input of a stage."""
        lead = self.lead_input(stage)
        return self.recipe.pipeline.get(lead.stages[0]) if lead and lead.stages else None

    def lead_line(self, stage: Stage) -> Iterator[Stage]:
        """Yields a stage, the stage of its lead input, that of the lead input of this one, and so on."""
        seen: set[str] = set()
        here: Stage | None = stage
        while here is not None and here.name not in seen:
            seen.add(here.name)
            yield here
            here = self.lead_stage(here)

    def lead_dispatch(self, stage: Stage) -> Dispatch:
        lead = self.lead_input(stage)
        return self.dispatch(stage, lead) if lead else Dispatch()

    def dispatch(self, stage: Stage, given: Input) -> Dispatch:
        """Returns the dispatch of an input of a stage."""
        return self.modes[stage.name].inputs[stage.inputs.index(given)]


def written_path(path: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the key path at which a value is written, from one with the full name of a stage."""
    if path[:1] != ("pipeline",) or len(path) < 2 or "." not in path[1]:
        return path
    block = path[1].partition(".")[0]
    is_of_block = path[2:] in (("every",), ("when",))
    return ("pipeline", block, *path[2:]) if is_of_block else (*stage_path(path[1]), *path[2:])


def input_path(given: Input, index: int) -> tuple[str, ...]:
    """Returns the key path, below the stage, of one of the stages that an input names."""
    path = ("in", given.parameter) if given.parameter else ("in",)
    return (*path, str(index)) if len(given.stages) > 1 else path


def node_counts(cluster: Cluster) -> dict[tuple[str, ...], int]:
    """Returns key path below `cluster` -> number of nodes that its value states."""
    given = cluster.devices_per_node
    by_key = {(kind,): each for kind, each in given.items()} if isinstance(given, Mapping) else {(): given}
    counts: dict[tuple[str, ...], int] = {("nodes",): cluster.nodes} if cluster.nodes else {}
    for key, each in by_key.items():
        if isinstance(each, tuple):
            counts["devices_per_node", *key] = len(each)
    return counts


@dataclass(frozen=True)
class ModelSizes:
    """The known sizes of a component's model."""

    sizes: Mapping[str, int]
    spans: Mapping[str, Span]
    has_tp_plan: bool = False
    """True if a plan of a library splits it over tp ranks. Such a plan does not replicate kv heads, and the
    shards of a vocabulary may differ in size."""

    def get(self, size: str) -> int:
        """Returns a size; 0 if it is unknown."""
        return self.sizes.get(size, 0)

    def stated(self, *sizes: str) -> tuple[Span, ...]:
        """Returns the spans of those of the sizes that are known, each labelled with its number."""
        known = [size for size in sizes if size in self.sizes]
        return tuple(self.spans[size].with_word(f"`{size}` is {self.sizes[size]}") for size in known)

    def undivided_by_tp(self, tp: int) -> list[str]:
        """Returns the sizes that tp does not divide. If there are fewer kv heads than ranks, and they can be
        replicated, their number must divide tp instead."""
        kv_heads = self.get("num_kv_heads")
        undivided = [size for size in ("num_heads", "num_kv_heads", "hidden_size") if self.get(size) % tp]
        can_repeat = kv_heads and tp % kv_heads == 0 and not self.has_tp_plan
        if can_repeat and "num_kv_heads" in undivided:
            undivided.remove("num_kv_heads")
        return undivided


def named_by(facts: Facts, component: str, path: KeyPath) -> Node | None:
    """Returns the value of an argument if it is a name; None for an empty text and for other values, also
    those that are unknown before the launch."""
    node = facts.argument(component, path)
    return node if node is not None and isinstance(node.value, str) and node.value else None


def texts_listed_by(facts: Facts, component: str, path: KeyPath) -> list[str] | None:
    """Returns the texts in the list that an argument is; none if it is left out, and None if one of them is
    unknown before the launch."""
    if facts.node("components", component, *path) is None:
        return []
    node = facts.argument(component, path)
    if node is None or not node.is_list:
        return None
    is_known = not any(one.from_environment or one.is_interpolated for one in node.value)
    return [one for one in plain(node) if isinstance(one, str)] if is_known else None
