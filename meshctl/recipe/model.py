"""What the user wrote, with its types checked: `Recipe` and its parts.

The keys, their defaults and their documentation stand in `fields.py`. Nothing here knows where a value was written:
spans stand in a table of their own (`spans.py`), so two recipes with the same values are equal. A number that was
wrong or left out is 0, a text is empty; the diagnostic about it silences the rules that need it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from meshctl.recipe.fields import CHECKPOINT, GROUP, RECIPE, RUN, STAGE
from meshctl.topology.modes import Dispatch


@dataclass(frozen=True)
class Cluster:
    nodes: int = 0
    """0 where it is left out: as many as are listed, or the least that hold the groups."""
    devices_per_node: int | tuple[int, ...] | Mapping[str, int | tuple[int, ...]] = 0
    """Of every accelerator type of the job, or by type: one count for all nodes, or one for each. 0 where it
    is left out."""

    def devices_of(self, device_type: str) -> int | tuple[int, ...]:
        """What it says of a type."""
        given = self.devices_per_node
        return given.get(device_type, 0) if isinstance(given, Mapping) else given

    @property
    def named(self) -> tuple[str, ...]:
        """The types that it says by name: hardware, though no group may use it."""
        return tuple(self.devices_per_node) if isinstance(self.devices_per_node, Mapping) else ()


@dataclass(frozen=True)
class Program:
    """Somebody's own script, started as torchrun would."""

    script: str = ""
    module: str = ""
    """In place of a script."""
    args: tuple[str, ...] = ()
    cwd: str = ""
    python: str = ""
    service: bool = False
    """Whether it serves the other groups: the run ends without it."""


@dataclass(frozen=True)
class DeviceGroup:
    name: str
    ranks: int | tuple[int, ...] = 0
    """A count of devices (on cpu: of processes), or exactly these devices of the cluster."""
    device_type: str = ""
    gpus_per_worker: int = GROUP.default("gpus_per_worker")
    visible_devices: tuple[str, ...] = ()
    env: tuple[tuple[str, str | None], ...] = ()
    """Values, or none for what is passed through."""
    colocate: str = ""
    """The group whose devices it shares."""
    program: Program | None = None

    @property
    def devices(self) -> int:
        """How many, or on cpu, how many processes."""
        return self.ranks if isinstance(self.ranks, int) else len(self.ranks)

    @property
    def workers(self) -> int:
        """Its processes; 0 where that is not known or does not come out even."""
        each = 1 if self.device_type == "cpu" else self.gpus_per_worker
        return self.devices // each if each and self.devices % each == 0 else 0


@dataclass(frozen=True)
class Sizes:
    """A layout in numbers; a size of None was left out."""

    given: tuple[tuple[str, int | str], ...] = ()
    """(`tp_size`, 2 or "auto"), as written."""
    order: tuple[str, ...] = ()
    sequence_parallel: bool = False


@dataclass(frozen=True)
class Model:
    """What a component computes with, as far as the recipe says: its sizes are held against the layout,
    nothing else."""

    config: str = ""
    """The path of a config.json, or of the folder that holds one."""
    given: tuple[tuple[str, int], ...] = ()
    """(`num_heads`, 32); what is said here counts before what the file says."""


@dataclass(frozen=True)
class Component:
    name: str
    target: str = ""
    """The dotted path of its class."""
    group: str = ""
    parallel: Sizes | str = Sizes()
    """Sizes, or the name of a component of the same group whose mesh it takes."""
    args: Mapping[str, Any] = field(default_factory=dict)
    frozen: bool = False
    model: Model = Model()


@dataclass(frozen=True)
class DispatchWords:
    """What a recipe says of a dispatch; None where it leaves the decorator's word."""

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
    """Several are one batch, joined by sample id."""
    parameter: str = ""
    """Empty for the only one."""
    dispatch: DispatchWords | None = None
    """None where the stage's holds."""


@dataclass(frozen=True)
class Stage:
    name: str
    kind: str = "call"
    """`call` or `sync`; empty where neither can be told."""
    component: str = ""
    method: str = ""
    inputs: tuple[Input, ...] = ()
    samples: int = 0
    sample_bytes: int = 0
    """About how many bytes one sample of its value has; 0 where it is not said."""
    dispatch: DispatchWords = DispatchWords()
    execute: str = ""
    """Empty where the decorator's word holds."""
    collect: str = ""
    every: int = STAGE.default("every")
    when: str = ""
    after: tuple[str, ...] = ()
    to: str = ""
    to_method: str = ""
    max_staleness: int | None = None
    """Of a sync, in steps; None for `every` - 1."""
    checksum: bool = False
    """Of a sync."""

    @property
    def lag(self) -> int:
        return 0 if self.max_staleness is None else self.max_staleness - (self.every - 1)

    @property
    def takes(self) -> tuple[str, ...]:
        """The stages whose values it takes."""
        return tuple(dict.fromkeys(stage for given in self.inputs for stage in given.stages))

    @property
    def routes(self) -> tuple[str, ...]:
        """The names of the routes that lead to it."""
        several = len(self.inputs) > 1
        return tuple(
            route_name(source, self.name, given.parameter if several else "")
            for given in self.inputs
            for source in given.stages
        )

    @property
    def is_source(self) -> bool:
        return self.kind == "call" and not self.inputs


@dataclass(frozen=True)
class Checkpoint:
    every: int = 0
    keep: int = CHECKPOINT.default("keep")


@dataclass(frozen=True)
class Run:
    steps: int = 0
    epochs: int = 0
    dir: str = RUN.default("dir")
    checkpoint: Checkpoint | None = None
    grace: float = RUN.default("grace")
    show: tuple[str, ...] = ()
    record: tuple[str, ...] = ()
    patience: float = RUN.default("patience")


@dataclass(frozen=True)
class Recipe:
    name: str = ""
    seed: int = RECIPE.default("seed")
    cluster: Cluster = Cluster()
    groups: Mapping[str, DeviceGroup] = field(default_factory=dict)
    """In written order, as all that follow."""
    components: Mapping[str, Component] = field(default_factory=dict)
    pipeline: Mapping[str, Stage] = field(default_factory=dict)
    run: Run = Run()

    def components_of(self, group: str) -> tuple[Component, ...]:
        return tuple(component for component in self.components.values() if component.group == group)


def route_name(source: str, target: str, parameter: str) -> str:
    """`SOURCE -> TARGET`, with `.PARAMETER` where the target has several inputs."""
    return f"{source} -> {target}{'.' if parameter else ''}{parameter}"
