"""The rank of a component and its access to the run, as the worker sets them, or without a launcher.

Under plain torchrun (or after `torch.distributed.init_process_group`) a component is a rank of that world. In
a notebook or a test it is alone: a mesh of one rank.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from meshctl.runtime.progress import Progress
from meshctl.topology.mesh import DeviceMesh, MeshError

TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""The variables that torchrun sets for each worker."""


class Location(NamedTuple):
    """The position of a rank among the nodes of its group."""

    node_rank: int
    """The number of its node among those of the group."""
    local_rank: int
    """The number of the rank among those of the group on its node."""
    local_world_size: int
    """The number of the group's ranks on that node."""


@dataclass
class RankContext:
    """The rank of a component, and the objects that it may use. The worker creates one for each component."""

    name: str = ""
    mesh: DeviceMesh = DeviceMesh.from_sizes()
    rank: int = 0
    device: torch.device = torch.device("cpu")
    devices: tuple[torch.device, ...] = (torch.device("cpu"),)
    step: int = 0
    last_step: int = 0
    """The last step of the run, as it is planned; 0 before the first step and if nobody knows it."""
    version: int | None = None
    """The step in which the weights of the last sync were sent; None without a sync to the component."""
    run_dir: Path = Path()
    """The folder of the run; the working directory without a launcher."""
    exports: str = "exports"
    """The folder below `run_dir` for exported models of the component."""
    seed: int = 0
    """The recipe's `seed`."""
    log: Callable[[Mapping[str, float], float], None] = lambda values, weight: None
    """Adds metrics, by name, with a weight."""
    stop: Callable[[str], None] = lambda reason: None
    """Asks for the end of the run."""
    alloc: Callable[[int], torch.Tensor] = lambda nbytes: torch.empty(nbytes, dtype=torch.uint8)
    """Returns uint8 `[nbytes]` in memory that other workers can read."""
    nodes: Callable[[], Iterable[Sequence[int]]] | None = None
    """Returns the group's ranks by node. Without it, all ranks are on one node."""
    progress: Progress = field(default_factory=Progress)
    """The worker's progress record, in which collectives are counted."""
    in_use: threading.RLock = field(default_factory=threading.RLock)
    """Held while ordinary methods of the component run, where passes call it beside the program."""
    peers: Mapping[str, object] = field(default_factory=dict)
    """The components of this rank, by name. Those that come later in the recipe are there after `setup`."""
    serves: bool = False
    """True if another component of this rank calls its engine."""
    known_location: Location | None = None
    """The location, if the environment states it; None if it follows from `nodes`."""

    def ranks_by_node(self) -> list[list[int]]:
        """Returns the group's ranks, node by node."""
        if self.nodes is None:
            return [sorted(self.mesh.ranks())]
        return [list(ranks) for ranks in self.nodes()]

    @cached_property
    def location(self) -> Location:
        if self.known_location is not None:
            return self.known_location
        for node_rank, ranks in enumerate(self.ranks_by_node()):
            if self.rank in ranks:
                return Location(node_rank, ranks.index(self.rank), len(ranks))
        raise AssertionError(f"no node has rank {self.rank}")

    def groups(self, dims: tuple[str, ...]) -> Iterable[Sequence[int]]:
        """Returns the partition of the world into the ranks that work together along `dims`.

        All ranks of the world get the same list. A rank that is alone along the dims gets only itself, so
        that nothing lists the ranks of a large mesh.
        """
        if dims == ("world",):
            return [sorted(self.mesh.ranks())]
        if dims == ("local",):
            return self.ranks_by_node()
        mine = self.mesh.ranks_along(dims, self.rank)
        return self.mesh.process_groups(dims) if len(mine) > 1 else [mine]


STARTING: ContextVar[RankContext | None] = ContextVar("STARTING", default=None)
"""The context of the component whose constructor is running."""


def standalone(mesh: DeviceMesh | None = None) -> RankContext:
    """Returns the context of a component that no launcher of meshctl started.

    It is a rank of torch's world: of the one that exists, or else of the one that torchrun describes in the
    environment. Without either, it is alone. `mesh` defaults to data parallelism over the world.

    Raises `MeshError` if the mesh has another number of ranks than the world.
    """
    if not dist.is_initialized() and all(name in os.environ for name in TORCHRUN):
        device = _own_device()
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    if not dist.is_initialized():
        return RankContext(mesh=mesh or DeviceMesh.from_sizes())
    size, device = dist.get_world_size(), _own_device()
    mesh = mesh or DeviceMesh.from_sizes(world_size=size, device_type=device.type)
    if mesh.world_size != size:
        raise MeshError(f"the mesh has {mesh.world_size} ranks, and torch's world has {size}")
    return RankContext(
        mesh=mesh.at(dist.get_rank()),
        rank=dist.get_rank(),
        device=device,
        devices=(device,),
        nodes=_gathered_nodes if size > 1 else None,
        known_location=_torchrun_location(),
    )


def _own_device() -> torch.device:
    """Returns the CUDA device with the number of torchrun's local rank, or the CPU."""
    local_rank = os.environ.get("LOCAL_RANK", "")
    if torch.cuda.is_available() and local_rank.isdecimal():
        return torch.device("cuda", int(local_rank) % torch.cuda.device_count())
    return torch.device("cpu")


def _torchrun_location() -> Location | None:
    names = ("GROUP_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    if not all(name in os.environ for name in names):
        return None
    return Location(*(int(os.environ[name]) for name in names))


def _gathered_nodes() -> list[list[int]]:
    from meshctl.runtime.collectives.collective import Collective

    size = dist.get_world_size()
    world = Collective.of([range(size)], dist.get_rank())
    found: dict[int, list[int]] = {}
    location = _torchrun_location()
    for rank, node in enumerate(world.all_gather_object(location.node_rank if location else 0)):
        found.setdefault(node, []).append(rank)
    return [found[node] for node in sorted(found)]
