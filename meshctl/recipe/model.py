"""`Recipe` and its parts, as plain classes: the values that the user has written, with their types checked.

Keys of recipes are declared in `fields.py`, with their defaults and their documentation. `reader.py` creates
these classes. Only the composed tree has the places of values, so that two recipes with the same values are
equal. A number that was wrong or left out is 0, and a text is empty. Rules skip values that were reported as
wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from meshctl.dataclass import dataclass
from meshctl.recipe.fields import GROUP, RECIPE, REPEAT, STAGE
from meshctl.run.directory import EngineChoice
from meshctl.run.settings import Run
from meshctl.topology.cluster import DevicesPerNode, NodeRanges, devices_by_node
from meshctl.topology.device_ranges import merged
from meshctl.topology.modes import Dispatch


@dataclass(frozen=True)
class NodePool:
    """Some nodes with the same devices, which have a name."""

    name: str
    count: int = 1
    devices: int | Mapping[str, int] = 0
    """Number of devices of each node: one number for all accelerator types, or by type."""

    def devices_of(self, device_type: str) -> int:
        return self.devices.get(device_type, 0) if isinstance(self.devices, Mapping) else self.devices


@dataclass(frozen=True)
class Cluster:
    nodes: int = 0
    """0 if left out; then it is the number of nodes that another value states, or the smallest that fits all
    groups."""
    devices_per_node: int | tuple[int, ...] | Mapping[str, int | tuple[int, ...]] = 0
    """Number of devices per node: one number for all nodes, or a number per node; for all accelerator types,
    or by type. 0 if left out, and with node pools."""
    device_memory: int = 0
    """Bytes of memory of each device; 0 if left out."""
    nodes_by_pool: tuple[NodePool, ...] = ()
    """The node pools, from node 0 on; empty if the nodes have no names."""

    def devices_of(self, device_type: str) -> int | DevicesPerNode:
        """Returns the number of devices of one type per node: one number for all nodes, or runs of equal
        nodes. 0 if left out."""
        if self.nodes_by_pool:
            return tuple((pool.count, pool.devices_of(device_type)) for pool in self.nodes_by_pool)
        counts = self.devices_per_node
        given = counts.get(device_type, 0) if isinstance(counts, Mapping) else counts
        return given if isinstance(given, int) else devices_by_node(len(given), given)

    @property
    def named(self) -> tuple[str, ...]:
        """The device types that `cluster` names, even if no group uses them."""
        stated = [self.devices_per_node, *(pool.devices for pool in self.nodes_by_pool)]
        return tuple(dict.fromkeys(kind for each in stated if isinstance(each, Mapping) for kind in each))

    @property
    def pools(self) -> tuple[tuple[str, int], ...]:
        """(name, number of nodes) of each node pool."""
        return tuple((pool.name, pool.count) for pool in self.nodes_by_pool)

    def range_of(self, node: int | str) -> tuple[int, int] | None:
        """Returns the nodes [start, stop) of a node pool, or a single node; None for an unknown name."""
        if isinstance(node, int):
            return node, node + 1
        start = 0
        for pool in self.nodes_by_pool:
            if pool.name == node:
                return start, start + pool.count
            start += pool.count
        return None

    def ranges_of(self, nodes: tuple[int | str, ...]) -> NodeRanges:
        """Returns the nodes that a group names, in ascending order. Unknown names are left out."""
        return tuple(merged(sorted(found for node in nodes if (found := self.range_of(node)))))


@dataclass(frozen=True)
class Program:
    """A script of the user, which is started as by torchrun."""

    script: str = ""
    module: str = ""
    """Name of a module that is run instead of a script."""
    args: tuple[str, ...] = ()
    cwd: str = ""
    service: bool = False
    """True if the run ends without waiting for it, because it serves the other groups."""


@dataclass(frozen=True)
class DeviceGroup:
    name: str
    ranks: int | tuple[int, ...] = 0
    """A number of devices (on cpu, of processes), or a list of devices of the cluster."""
    device_type: str = ""
    gpus_per_worker: int = GROUP.default("gpus_per_worker")
    visible_devices: tuple[str, ...] = ()
    env: tuple[tuple[str, str | None], ...] = ()
    """(name, value) of each variable. The value is None for a variable that is passed through."""
    colocate: str = ""
    """The group whose devices this group shares."""
    nodes: tuple[int | str, ...] = ()
    """Numbers of nodes, and names of node pools, on which the group is placed; empty for all nodes."""
    python: str = ""
    """The interpreter of its workers, as written; empty for that of the launcher."""
    program: Program | None = None
    restartable: bool = False

    @property
    def devices(self) -> int:
        """Number of devices, or on cpu of processes."""
        return self.ranks if isinstance(self.ranks, int) else len(self.ranks)

    @property
    def workers(self) -> int:
        """The number of processes. It is 0 if the number of devices is unknown, or if `gpus_per_worker` does
        not divide it."""
        each = 1 if self.device_type == "cpu" else self.gpus_per_worker
        return self.devices // each if each and self.devices % each == 0 else 0


@dataclass(frozen=True)
class Sizes:
    """The sizes of a layout."""

    given: tuple[tuple[str, int | str], ...] = ()
    """(key, number or "auto") of each stated size, e.g. (`tp_size`, 2)."""
    order: tuple[str, ...] = ()
    sequence_parallel: bool = False


@dataclass(frozen=True)
class Model:
    """The sizes of a component's model. They are only compared with the layout."""

    config: str | Mapping[str, Any] = ""
    """Path of a config.json, or of a folder that contains one; or its values."""
    given: tuple[tuple[str, int], ...] = ()
    """(key, number) of each stated size, e.g. (`num_heads`, 32). They take precedence over those of the
    file."""


@dataclass(frozen=True)
class Component:
    name: str
    target: str = ""
    """Dotted path of the class."""
    group: str = ""
    parallel: Sizes | str = Sizes()
    """The sizes, or the name of a component of the same group whose mesh is used."""
    args: Mapping[str, Any] = field(default_factory=dict)
    frozen: bool = False
    model: Model = Model()


@dataclass(frozen=True)
class DispatchWords:
    """The `dispatch` in a recipe. If the mode is None, the decorator's mode is used."""

    mode: str | None = None
    balance: str = ""
    home: str = ""
    allow_empty: bool = False
    split_groups: bool = False
    equal_counts: bool = False

    def with_default(self, mode: str) -> Dispatch:
        balance: Literal["", "tokens"] = "tokens" if self.balance else ""
        return Dispatch(
            self.mode or mode, balance, self.home, self.allow_empty, self.split_groups, self.equal_counts
        )


@dataclass(frozen=True)
class Input:
    """One parameter of a call."""

    stages: tuple[str, ...]
    """The stages whose values form the input. Several are joined into one batch by sample id."""
    parameter: str = ""
    """The name of the parameter; empty if the call has one input."""
    dispatch: DispatchWords | None = None
    """None if the stage's `dispatch` applies."""


@dataclass(frozen=True)
class Stage:
    name: str
    kind: str = "call"
    """`call` or `sync`; empty if the stage has neither key."""
    component: str = ""
    method: str = ""
    inputs: tuple[Input, ...] = ()
    is_without_data: bool = False
    """True if the endpoint is called without arguments: `in: []`."""
    samples: int = 0
    sample_bytes: int = 0
    """Approximate size in bytes of one sample of the value; 0 if unknown."""
    dispatch: DispatchWords = DispatchWords()
    execute: str = ""
    """Empty for the decorator's mode."""
    collect: str = ""
    every: int = STAGE.default("every")
    when: str = ""
    after: tuple[str, ...] = ()
    to: str = ""
    to_method: str = ""
    max_staleness: int | None = None
    """For a sync: the maximum staleness in steps; None for `every` - 1."""
    checksum: bool | None = None
    """For a sync: whether received weights are verified; None for the first syncs only."""
    ends_run: bool | None = None
    """For a source: whether the end of its data ends the run; None for the rule in `run.settings`."""
    patience: float | None = None
    """For a call: seconds in which a worker must advance while the endpoint runs; None for those of the
    run."""
    block: str = ""
    """The block that the stage belongs to. Its name is then BLOCK.STAGE, and its `every` and `when` are those
    of the block."""
    outside: tuple[str, ...] = ()
    """In a block: the stages outside whose values some stage of the block takes."""

    @property
    def lag(self) -> int:
        return 0 if self.max_staleness is None else self.max_staleness - (self.every - 1)

    @property
    def takes(self) -> tuple[str, ...]:
        """The stages whose values this stage takes."""
        return tuple(dict.fromkeys(stage for given in self.inputs for stage in given.stages))

    @property
    def routes(self) -> tuple[str, ...]:
        """The names of the routes to this stage."""
        several = len(self.inputs) > 1
        return tuple(
            route_name(source, self.name, given.parameter if several else "")
            for given in self.inputs
            for source in given.stages
        )

    @property
    def is_source(self) -> bool:
        return self.kind == "call" and not self.inputs and not self.is_without_data


@dataclass(frozen=True)
class Block:
    """Stages that run several times in a step. They are in the pipeline, too, under their full names."""

    name: str
    stages: tuple[str, ...] = ()
    """Their full names, BLOCK.STAGE, in written order."""
    until: str = ""
    """The source with whose data a round ends, as a full name; empty if there are minibatches."""
    times: int = REPEAT.default("times")
    over: str = ""
    """The stage outside of the block whose value is divided into minibatches."""
    size: int = 0
    seed: int = REPEAT.default("seed")
    after: tuple[str, ...] = ()
    take: int = 0
    """The number of passes whose samples a step takes; 0 for a block of another form."""
    ahead: int = REPEAT.default("ahead")
    late: int = REPEAT.default("late")


@dataclass(frozen=True)
class Recipe:
    name: str = ""
    seed: int = RECIPE.default("seed")
    cluster: Cluster = Cluster()
    groups: Mapping[str, DeviceGroup] = field(default_factory=dict)
    """Groups by name. Groups, components and pipeline keep the order of the file."""
    components: Mapping[str, Component] = field(default_factory=dict)
    pipeline: Mapping[str, Stage] = field(default_factory=dict)
    """Stages by name, those of blocks included."""
    blocks: Mapping[str, Block] = field(default_factory=dict)
    run: Run = Run()
    engine: EngineChoice = EngineChoice()

    def before(self, stage: Stage) -> tuple[str, ...]:
        """Returns the stages that run before a stage in a step, where both run."""
        after = stage.after + (self.blocks[stage.block].after if stage.block in self.blocks else ())
        named = (*stage.takes, *stage.outside, *after)
        return tuple(
            one for name in named for one in (self.blocks[name].stages if name in self.blocks else (name,))
        )

    def metric(self, text: str) -> tuple[str, str]:
        """Splits the name of a metric into the stage and the metric's own name. The stage of `STAGE.NAME` is
        `STAGE`, and that of `BLOCK.STAGE.NAME` is `BLOCK.STAGE`."""
        stage, _, name = text.partition(".")
        if stage in self.blocks:
            inner, _, name = name.partition(".")
            stage = f"{stage}.{inner}" if inner else stage
        return stage, name

    def components_of(self, group: str) -> tuple[Component, ...]:
        return tuple(component for component in self.components.values() if component.group == group)


def stage_path(name: str) -> tuple[str, ...]:
    """Returns the key path of a stage, or of a block."""
    block, dot, inner = name.partition(".")
    return ("pipeline", block, "stages", inner) if dot else ("pipeline", name)


def route_name(source: str, target: str, parameter: str) -> str:
    """Returns `SOURCE -> TARGET`, with `.PARAMETER` if the target has several inputs."""
    return f"{source} -> {target}{'.' if parameter else ''}{parameter}"
