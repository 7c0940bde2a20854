"""The plan, as data: the recipe with ranks, nodes and devices for all workers.

A plan depends on the composed recipe alone. It is stored as JSON with a digest, and the same recipe gives the
same bytes: no host, port or GPU uuid is in it. It stores facts (groups, components with their meshes, stages
in the order in which every worker runs them, routes) and derives the rest (workers, links), so its size grows
with components and not with devices.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, field, fields, is_dataclass
from functools import cached_property
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from meshctl.dataclass import dataclass
from meshctl.run.reading import decoded, text_of
from meshctl.run.settings import SPARSE as SPARSE
from meshctl.run.settings import Best as Best
from meshctl.run.settings import Checkpoint as Checkpoint
from meshctl.run.settings import Elastic as Elastic
from meshctl.run.settings import Restarts as Restarts
from meshctl.run.settings import Run as Run
from meshctl.run.settings import Stop as Stop
from meshctl.run.settings import bounding_sources
from meshctl.topology.cluster import Cluster as Cluster
from meshctl.topology.cluster import NodeRanges
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import Dispatch, Route
from meshctl.topology.placement import GroupPlacement, NodeRun, node_runs
from meshctl.topology.take import staleness

T = TypeVar("T")
FORMAT = 2
"""The format of the JSON. A plan of another format is refused."""
NOT_STORED = {"stored": False}
"""Metadata of a field that is left out of the JSON."""


@dataclass(frozen=True)
class Program:
    """A user's own script instead of components. It runs with the environment variables of torchrun."""

    argv: tuple[str, ...]
    """The arguments after the interpreter, e.g. ("train.py", "--epochs", "3") or ("-m", "torchtitan.train").
    `{run_dir}` is replaced at start."""
    cwd: str = ""
    """Relative to the recipe's folder; empty for the working directory of the launch."""
    python: str = ""
    """Its interpreter; empty for the launcher's own."""
    service: bool = field(default=False, metadata=SPARSE)
    """True if it serves the other groups: it is terminated when all of them are done."""


@dataclass(frozen=True)
class Group:
    """A device group with its devices and job ranks."""

    name: str
    device_type: Literal["cuda", "npu", "mps", "cpu"]
    workers: int
    first_job_rank: int = field(metadata={"key": "first_place"})
    """The job rank of its rank 0. The job ranks of the other ranks follow."""
    devices: tuple[tuple[int, int], ...] = ()
    """Ranges [start, stop) of the cluster's devices of its type, in the order of the workers; empty on
    cpu."""
    gpus_per_worker: int = 1
    visible_devices: tuple[str, ...] = ()
    """The hardware's names of the devices that the group may use on its node; empty for all."""
    env: tuple[tuple[str, str | None], ...] = ()
    """(name, value) of environment variables; the value is None for a variable that is passed through from
    the launcher's environment."""
    colocate: str = ""
    """The group whose devices it shares; empty for none."""
    program: Program | None = None
    python: str = field(default="", metadata=SPARSE)
    """The interpreter of the workers of its components, relative to the recipe's folder; empty for the
    launcher's own."""
    nodes: NodeRanges = field(default=(), metadata=SPARSE)
    """On cpu: the nodes over which its workers are spread; empty for all nodes."""
    restartable: bool = field(default=False, metadata=SPARSE)
    """True if it restarts alone, while the other groups wait."""


@dataclass(frozen=True)
class Component:
    name: str
    target: str
    """The dotted path of its class."""
    group: str
    mesh: DeviceMesh
    args: Mapping[str, Any] = field(default_factory=dict)
    """The constructor's keyword arguments, plain data; `${oc.env:X}` stays a reference that the worker
    resolves."""
    frozen: bool = False
    endpoints: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)
    """Method -> (dispatch, collect, execute) of its decorator, as read from the source text. A worker
    compares them with those of the imported class."""
    sampler: str = field(default="", metadata=SPARSE)
    """The component of the same group whose engine it calls; empty for none."""


@dataclass(frozen=True)
class Input:
    """One parameter of a call: a stage's value, or several stages' columns joined by sample id."""

    stages: tuple[str, ...]
    parameter: str = ""
    """The parameter's name; empty if the recipe does not name it, because all inputs go to one
    parameter."""
    dispatch: Dispatch = Dispatch()


@dataclass(frozen=True)
class Stage:
    """A call of a component's endpoint, or a sync of weights from one component to another."""

    name: str
    kind: Literal["call", "sync"]
    component: str
    method: str
    inputs: tuple[Input, ...] = ()
    """Empty for a source, a stage without data and a sync."""
    execute: str = "all"
    collect: str = "flatten"
    samples: int = 0
    """The global number of samples of its value; 0 if the recipe does not state it."""
    sample_bytes: int = 0
    """The approximate size of one sample in bytes; 0 if the recipe does not state it."""
    every: int = 1
    """The stage runs in the steps that are multiples of this number."""
    when: Literal["", "start", "end", "checkpoint"] = ""
    to: str = ""
    """The component that a sync loads into."""
    to_method: str = ""
    lag: int = 0
    """A field of syncs: in step k the receiver loads the weights that were sent in step k - lag."""
    checksum: bool | None = field(default=None, metadata=SPARSE)
    """A field of syncs: whether the receiver compares weights with checksums of the sent weights; None for
    the first syncs only."""
    is_without_data: bool = field(default=False, metadata={**SPARSE, "key": "without_data"})
    """True if the endpoint is called without arguments."""
    ends_run: bool | None = field(default=None, metadata=SPARSE)
    """A field of sources: whether the run ends when the source has no more data. For None, `run.settings`
    decides."""
    patience: float | None = field(default=None, metadata=SPARSE)
    """Seconds in which a worker must advance while the endpoint runs; 0 for no limit, None for those of the
    run."""
    block: str = field(default="", metadata=SPARSE)
    """The block that the stage belongs to; empty for none. The name of such a stage is BLOCK.STAGE, and its
    `every` and `when` are those of the block."""

    @property
    def is_source(self) -> bool:
        return self.kind == "call" and not self.inputs and not self.is_without_data


@dataclass(frozen=True)
class Block:
    """Stages that run several times in a step: in rounds, which consist of passes.

    A round goes through the data of one source, a batch in each pass, or through minibatches of the value of
    a stage outside. A block with `take` has passes of its own pace (`topology.take`).
    """

    name: str
    until: str = ""
    """The source whose data end the only round; empty if the block has minibatches."""
    times: int = 1
    """The number of rounds."""
    over: str = ""
    """The stage outside of the block whose value is cut into minibatches."""
    size: int = 0
    """The global number of samples of a minibatch."""
    seed: int = 0
    """The seed of the order of samples in each round."""
    take: int = field(default=0, metadata=SPARSE)
    """The number of passes whose samples a step takes; 0 for a block of another form."""
    ahead: int = field(default=0, metadata=SPARSE)
    late: int = field(default=0, metadata=SPARSE)


@dataclass(frozen=True)
class Worker:
    """One process of a group: where it is in its group, on its node and in the whole job."""

    group: str
    rank: int
    job_rank: int
    node: int
    local_rank: int
    devices: tuple[int, ...]
    """Numbers among the cluster's devices of the group's type; empty on cpu."""


@dataclass(frozen=True)
class Plan:
    name: str
    seed: int
    cluster: Cluster
    groups: tuple[Group, ...]
    components: tuple[Component, ...]
    stages: tuple[Stage, ...]
    """All stages, in the order in which a worker runs those of its group in each step."""
    routes: tuple[Route, ...]
    run: Run
    replayed: tuple[Route, ...] = field(default=(), metadata=SPARSE)
    """In a plan of one group alone: the routes from stages of other groups, whose values are read from
    recordings."""
    blocks: tuple[Block, ...] = field(default=(), metadata=SPARSE)

    # Look-ups

    @cached_property
    def _groups(self) -> dict[str, Group]:
        return {group.name: group for group in self.groups}

    @cached_property
    def _components(self) -> dict[str, Component]:
        return {component.name: component for component in self.components}

    @cached_property
    def _stages(self) -> dict[str, Stage]:
        return {stage.name: stage for stage in self.stages}

    @cached_property
    def _blocks(self) -> dict[str, Block]:
        return {block.name: block for block in self.blocks}

    def group(self, name: str) -> Group:
        return self._groups[name]

    def component(self, name: str) -> Component:
        return self._components[name]

    def stage(self, name: str) -> Stage:
        return self._stages[name]

    def block(self, name: str) -> Block:
        return self._blocks[name]

    @property
    def sources(self) -> tuple[Stage, ...]:
        """The sources whose position is part of the run's: those outside of blocks."""
        return tuple(stage for stage in self.stages if stage.is_source and not stage.block)

    def is_of_take(self, stage: Stage) -> bool:
        """Returns whether a stage runs in passes of their own pace."""
        return bool(stage.block) and self.block(stage.block).take > 0

    def staleness(self, block: str) -> int:
        """Returns the greatest age in steps of the weights with which a block samples."""
        called = [self.component(stage.component) for stage in self.stages if stage.block == block]
        return staleness(self.stages, {name for one in called for name in (one.name, one.sampler)})

    def is_in_passes(self, component: str) -> bool:
        """Returns whether passes of their own pace call a component."""
        return any(self.is_of_take(stage) for stage in self.stages if stage.component == component)

    def is_into_block(self, route: Route) -> bool:
        """Returns whether a route leads into a block from a stage outside of it."""
        block, source = self.stage(route.target).block, self._stages.get(route.source)
        return bool(block) and (source is None or source.block != block)

    @cached_property
    def inputs_of(self) -> dict[str, frozenset[str]]:
        """Stage -> the stages that must run in a step for it to run: its inputs and, in a block, the inputs
        of the whole block."""
        own = {stage.name: {name for part in stage.inputs for name in part.stages} for stage in self.stages}
        for block in self.blocks:
            names = [stage.name for stage in self.stages if stage.block == block.name]
            outside = set().union(*(own[name] for name in names), {block.over} - {""}).difference(names)
            for name in names:
                own[name] = own[name] | outside
        return {name: frozenset(inputs) for name, inputs in own.items()}

    @cached_property
    def bounding_sources(self) -> tuple[str, ...]:
        """The names of the sources that end the run when their data end."""
        return bounding_sources(self.stages)

    def group_of(self, stage: Stage) -> str:
        """The group that runs a stage. Two groups run a sync; this is the one that sends its weights."""
        return self.component(stage.component).group

    def ends_of(self, route: Route) -> tuple[str, str]:
        """Returns the groups from which and to which a route leads."""
        source, target = self.stage(route.source), self.stage(route.target)
        into = target.to if route.kind == "weights" else target.component
        return self.group_of(source), self.component(into).group

    def components_of(self, group: str) -> tuple[Component, ...]:
        return tuple(component for component in self.components if component.group == group)

    @property
    def job_size(self) -> int:
        """The number of workers of the whole job."""
        return sum(group.workers for group in self.groups)

    # Placement

    @cached_property
    def _placements(self) -> dict[str, GroupPlacement]:
        return {}

    def _placement(self, name: str) -> GroupPlacement:
        if name not in self._placements:
            group = self.group(name)
            own = group.workers, group.devices, group.gpus_per_worker, group.nodes
            runs = node_runs(self.cluster, group.device_type, *own)
            self._placements[name] = GroupPlacement(runs, group.gpus_per_worker)
        return self._placements[name]

    def node_runs(self, group: str) -> tuple[NodeRun, ...]:
        """Returns the nodes and devices of a group's workers, as runs of ranks."""
        return self._placement(group).runs

    def node_runs_of(self, group: str) -> tuple[tuple[int, int], ...]:
        """Returns the nodes on which a group has workers, as ranges [start, stop)."""
        return self._placement(group).nodes

    def nodes_of(self, group: str) -> tuple[int, ...]:
        return tuple(node for start, stop in self.node_runs_of(group) for node in range(start, stop))

    def node_of(self, group: str, rank: int) -> int:
        return self._placement(group).locate(rank).node

    def local_rank(self, group: str, rank: int) -> int:
        return self._placement(group).locate(rank).local_rank

    def worker(self, group: str, rank: int) -> Worker:
        placed, location = self.group(group), self._placement(group).locate(rank)
        devices = range(0)
        if placed.device_type != "cpu":
            first = self.cluster.first_on(placed.device_type, location.node) + location.first_device
            devices = range(first, first + placed.gpus_per_worker)
        return Worker(
            group, rank, placed.first_job_rank + rank, location.node, location.local_rank, tuple(devices)
        )

    def workers(self, group: str, node: int | None = None) -> Iterator[Worker]:
        """Returns the workers of a group, or those of them that are on `node`, by rank."""
        ranks = range(self.group(group).workers) if node is None else self._placement(group).on(node)
        return (self.worker(group, rank) for rank in ranks)

    def group_and_rank(self, job_rank: int) -> tuple[str, int]:
        """Returns the (group, rank) of a job rank. Raises `IndexError` if the job has no such rank."""
        for group in self.groups:
            if group.first_job_rank <= job_rank < group.first_job_rank + group.workers:
                return group.name, job_rank - group.first_job_rank
        raise IndexError(f"job rank {job_rank} does not exist; the job has {self.job_size} workers")

    # JSON

    @property
    def digest(self) -> str:
        return _digest_of(as_data(self))

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, "digest": self.digest, **as_data(self)}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Plan:
        data = decoded(text)
        if data.get("format") != FORMAT:
            raise ValueError(f"the plan has format {data.get('format')!r}, but this meshctl reads {FORMAT}")
        digest = _digest_of({key: value for key, value in data.items() if key not in ("format", "digest")})
        if digest != data["digest"]:
            raise ValueError(f"this plan was changed: its digest is {digest}, it states {data['digest']}")
        return cast(Plan, from_data(cls, data))

    @classmethod
    def read(cls, path: Path) -> Plan:
        return cls.from_json(text_of(path))


def copied(kind: type[T], source: Any, **more: Any) -> T:
    """Returns an object of a dataclass with the values that `source` has under the names of its fields.
    `more` are further values, which take precedence."""
    names = [one.name for one in fields(cast(Any, kind)) if hasattr(source, one.name)]
    return kind(**{name: getattr(source, name) for name in names} | more)


def _digest_of(data: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


def as_data(value: Any) -> Any:
    """Returns dataclasses and tuples as plain JSON data.

    Fields with the metadata `NOT_STORED` are left out, and so are `SPARSE` fields that have their default
    value. The key of a field is its name, or the `key` in its metadata.
    """
    if is_dataclass(value) and not isinstance(value, type):
        found = {}
        for part in fields(value):
            item, meta = getattr(value, part.name), part.metadata
            default = part.default if part.default_factory is MISSING else part.default_factory()
            if meta.get("stored", not meta.get("sparse") or item != default):
                found[_key(part)] = as_data(item)
        return found
    if isinstance(value, Mapping):
        return {str(key): as_data(item) for key, item in value.items()}
    return [as_data(item) for item in value] if isinstance(value, (tuple, list)) else value


def _key(part: Field[Any]) -> str:
    return str(part.metadata.get("key", part.name))


def from_data(kind: Any, data: Any) -> Any:
    """Returns an object of the type `kind` from the plain data that `as_data` returned for it. Unknown keys
    are ignored."""
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind) and isinstance(kind, type):
        hints = get_type_hints(kind)
        return kind(
            **{
                part.name: from_data(hints[part.name], data[_key(part)])
                for part in fields(kind)
                if _key(part) in data
            }
        )
    if origin in (Union, UnionType) and data is not None:
        return from_data(next(option for option in arguments if option is not NoneType), data)
    if origin is Mapping:
        return {key: from_data(arguments[1], item) for key, item in data.items()}
    if origin is tuple:
        kinds = [arguments[0]] * len(data) if arguments[-1] is Ellipsis else arguments
        return tuple(from_data(item_kind, item) for item_kind, item in zip(kinds, data, strict=True))
    return data
