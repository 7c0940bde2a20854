"""Process groups: a group's own WORLD, and the bridges between groups, all on the launcher's store.

Each group is a world of its own, so FSDP, DDP and everybody's script see only their group. A bridge is a process group over the
workers of two groups (or of one), built by hand on the same store, because torch makes subgroups of its own world only. Bridges
are made in one sorted order everywhere, and begin with a handshake: every member says which routes it thinks the bridge
carries, and a mismatch or an absence is an error that names the routes or the absent, not a hang.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, ProcessGroupGloo, Store, TCPStore

from meshctl.plan.model import Group, Plan
from meshctl.routes import Route
from meshctl.runtime.collective import RUNNING
from meshctl.runtime.transports import PeerLost
from meshctl.runtime.transports.gloo import Bridge, PointToPoint

JOIN = timedelta(seconds=60)
"""How long a worker waits for the others to come."""


@dataclass(frozen=True)
class Crossing:
    """Two groups, or one, and the routes between them."""

    name: str
    groups: tuple[str, ...]
    routes: tuple[Route, ...]

    def digest(self, plan: Plan) -> str:
        """What both ends must agree on: the routes, and how both sides' meshes lie."""
        return hashlib.sha256(f"{plan.digest} {self.routes!r}".encode()).hexdigest()[:16]


def connect(head: str, attempt: int) -> PrefixStore:
    """A connection to the launcher's store, under this attempt's prefix. `head` is HOST:PORT."""
    host, port = head.rsplit(":", 1)
    return PrefixStore(f"run/{attempt}", TCPStore(host, int(port), is_master=False, timeout=JOIN))


def join(store: Store, group: Group, rank: int) -> None:
    """Makes this worker a member of its group's WORLD."""
    backend = {"cuda": "cpu:gloo,cuda:nccl", "npu": "cpu:gloo,npu:hccl"}.get(group.device_type, "gloo")
    prefixed = PrefixStore(f"world/{group.name}", store)
    dist.init_process_group(backend, store=prefixed, rank=rank, world_size=group.workers, timeout=RUNNING)


def crossings(plan: Plan) -> Iterator[Crossing]:
    """All bridges of a plan, in the order in which everybody makes them."""
    found: dict[tuple[str, ...], list[Route]] = {}
    for route in plan.routes:
        source, target = plan.stage(route.source), plan.stage(route.target)
        taker = plan.component(source.to if route.kind == "weights" else target.component).group
        giver = plan.group_of(source)
        for pair in {tuple(sorted({giver, taker})), (giver,), (taker,)}:
            if sum(plan.group(name).workers for name in pair) > 1:
                found.setdefault(pair, []).append(route)
    for pair in sorted(found, key=lambda pair: (len(pair), pair)):  # within a group its own bridge comes first
        yield Crossing("~".join(pair), pair, tuple(found[pair]))


def bridge(plan: Plan, crossing: Crossing, store: Store, place: int) -> Bridge:
    """This worker's end of a bridge; all its members call it, in the order of `crossings`."""
    placed = [plan.group(name) for name in crossing.groups]
    places = tuple(place for group in placed for place in range(group.first_place, group.first_place + group.workers))
    rank = places.index(place)
    prefixed = PrefixStore(f"bridge/{crossing.name}", store)
    _shake_hands(plan, crossing, prefixed, places, rank)
    group = ProcessGroupGloo(PrefixStore("gloo", prefixed), rank, len(places), RUNNING)
    return Bridge(crossing.name, cast(PointToPoint, group), places)


def _shake_hands(plan: Plan, crossing: Crossing, store: Store, places: tuple[int, ...], rank: int) -> None:
    digest = crossing.digest(plan)
    store.set(f"hello/{rank}", digest)
    keys = [f"hello/{other}" for other in range(len(places))]
    try:
        store.wait(keys, JOIN)
    except dist.DistStoreError:
        absent = [":".join(map(str, plan.at_place(places[other]))) for other, key in enumerate(keys) if not store.check([key])]
        raise PeerLost(f"bridge {crossing.name}: {', '.join(absent)} did not come within {JOIN.seconds} s") from None
    for other, key in enumerate(keys):
        if store.get(key).decode() != digest:
            names = ", ".join(f"`{route.name}`" for route in crossing.routes)
            who = ":".join(map(str, plan.at_place(places[other])))
            raise ConnectionError(f"bridge {crossing.name}: {who} runs another plan of the routes {names}")


def devices_of(group: Group) -> tuple[torch.device, ...]:
    """What this worker sees of the hardware: its own devices, numbered from 0."""
    if group.device_type in ("cpu", "mps"):
        return (torch.device(group.device_type),)
    return tuple(torch.device(group.device_type, number) for number in range(group.gpus_per_worker))


def ranks_by_node(plan: Plan, group: str) -> list[list[int]]:
    """The ranks of a group that share a node, node by node."""
    return [[worker.rank for worker in plan.workers(group, node)] for node in plan.nodes_of(group)]
