"""Who reaches whom: a group's own WORLD, and the ways between the groups, all on the launcher's store.

Each group is a world of its own, so FSDP, DDP and everybody's script see only their group. Workers of two
groups with a route between them (or of one) tell one another where they listen, and need nothing else: on
unix sockets within a node, on TCP between nodes. All begin with a handshake: every member says which plan it
runs, and a mismatch or an absence is an error that names the routes or the absent, not a hang.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, partial

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore

from meshctl.plan.model import Group, Plan
from meshctl.runtime.collective import RUNNING
from meshctl.runtime.devices.backend import (
    CHOICE,
    DEVICES,
    DeviceMemory,
    Neighbours,
    devices_at,
    meet,
    memory_of,
    transfers_of,
)
from meshctl.runtime.routes.end import TAGS_PER_ROUTE
from meshctl.runtime.transports.data_plane import PeerLost, Transport, WayError
from meshctl.runtime.transports.local import Address as NodeAddress
from meshctl.runtime.transports.local import Local
from meshctl.runtime.transports.tcp import Address, Tcp, address_towards
from meshctl.runtime.user_modes import source_digests
from meshctl.topology.cluster import transport_error
from meshctl.topology.modes import Route

JOIN = timedelta(seconds=60)
"""How long a worker waits for the others to come."""
FAR = "other nodes"


@dataclass(frozen=True)
class Crossing:
    """Two groups, or one, and the routes between them."""

    name: str
    groups: tuple[str, ...]
    routes: tuple[Route, ...]


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
    """Of a plan, in the same order for everybody."""
    found: dict[tuple[str, ...], list[Route]] = {}
    for route in plan.routes:
        source, target = plan.stage(route.source), plan.stage(route.target)
        taker = plan.component(source.to if route.kind == "weights" else target.component).group
        giver = plan.group_of(source)
        for pair in {tuple(sorted({giver, taker})), (giver,), (taker,)}:
            if sum(plan.group(name).workers for name in pair) > 1:
                found.setdefault(pair, []).append(route)
    for pair in sorted(found, key=lambda pair: (len(pair), pair)):  # what is within a group comes first
        yield Crossing("~".join(pair), pair, tuple(found[pair]))


def reach_all(plan: Plan, place: int, store: Store, slots: Mapping[int, int]) -> Transport:
    """A transport that reaches every worker that this one has a route to or from; all of them call it.

    Raises `PeerLost` where they do not come, and `WayError` where they do not agree or there is no such
    transport.
    """
    if why := transport_error(os.environ):
        raise WayError(why)
    group, rank = plan.at_place(place)
    node = plan.node_of(group, rank)
    meeting = Meeting(
        plan, place, store, tuple(crossing for crossing in crossings(plan) if group in crossing.groups)
    )
    names = {name for crossing in meeting.crossings for name in crossing.groups}
    near = {worker.place for name in names for worker in plan.workers(name, node)}
    far = {worker.place for name in names for worker in plan.workers(name)} - near
    transport = Transport(
        place, slots, partial(_name, plan), partial(_route_of, plan), len(plan.routes) * TAGS_PER_ROUTE
    )
    device = _device(meeting, transport, near, far)
    if len(near) > 1:
        _reach_near(meeting, transport, near, device)
    if far:
        _reach_by_tcp(meeting, transport, far, device)
    return transport


@dataclass(frozen=True)
class Meeting:
    """A worker that is about to meet the others."""

    plan: Plan
    place: int
    store: Store
    crossings: tuple[Crossing, ...]
    """Those that it is a member of."""

    @property
    def token(self) -> str:
        """The run's: the same for all."""
        return self.store.compare_set("token", "", secrets.token_hex(16)).decode()

    def addresses(self, where: str, own: object, places: Set[int]) -> dict[int, str]:
        """Tells where this worker listens, and hears where the others do. Raises `PeerLost`, `WayError`."""
        modes = json.dumps(self.mode_digests, separators=(",", ":"))
        self.store.set(f"{where}/{self.place}", f"{self.plan.digest}\n{modes}\n{own}")
        keys = {other: f"{where}/{other}" for other in sorted(places)}
        _await(self.plan, self.store, keys, where)
        found = {}
        for other, key in keys.items():
            digest, theirs, found[other] = self.store.get(key).decode().split("\n", 2)
            routes = [route for crossing in self.crossings for route in crossing.routes]
            _agree(self.plan, digest, self.plan.digest, other, where, routes)
            self._agree_on_modes(json.loads(theirs), other)
        return found

    @cached_property
    def mode_digests(self) -> dict[str, str]:
        """Route -> a digest of the source of the user's modes on it."""
        return source_digests(self.plan, (route for crossing in self.crossings for route in crossing.routes))

    def _agree_on_modes(self, theirs: Mapping[str, str], other: int) -> None:
        for route, digest in self.mode_digests.items():
            if theirs.get(route, digest) != digest:
                raise WayError(
                    f"`{route}`: {_name(self.plan, other)} has another source of its modes than "
                    f"{_name(self.plan, self.place)}"
                )


@dataclass(frozen=True)
class Device:
    """This worker's device, and those of others that its tensors get to without the CPU's memory."""

    memory: DeviceMemory
    neighbours: Neighbours
    """On this node."""
    far: frozenset[int]
    """On other nodes."""


def _device(meeting: Meeting, transport: Transport, near: Set[int], far: Set[int]) -> Device | None:
    """Meets the other workers on devices of a kind that has memory of its own to share."""
    plan, place, store = meeting.plan, meeting.place, meeting.store
    own = plan.group(plan.at_place(place)[0])
    if own.device_type not in DEVICES:
        return None
    on_devices = {
        other for other in near | far if plan.group(plan.at_place(other)[0]).device_type == own.device_type
    }
    first = devices_of(own)[0]
    if (chosen := os.environ.get(CHOICE, "")) not in ("", "cpu"):
        raise WayError(
            f"{CHOICE} is {chosen!r}: it may be `cpu`, so that tensors of devices go by way of the CPU's memory"
        )
    memory = None if chosen else memory_of(first)
    wait = partial(_await, plan, store, where="devices")
    neighbours = meet(memory, place, on_devices & near | {place}, store, wait)
    others = devices_at(on_devices & far, store, wait)
    if memory is None:
        return None
    transport.transfers = transfers_of(
        place, first, store, lambda other, error: transport.fail(transport.lost(other, f"broke off: {error}"))
    )
    return Device(memory, neighbours, others)


def _reach_near(meeting: Meeting, transport: Transport, near: Set[int], device: Device | None) -> None:
    local = Local(transport, meeting.token)
    if device:
        local.use(device.memory, device.neighbours)
    said = meeting.addresses("this node", local.address, near)
    local.meet({other: NodeAddress.parse(address) for other, address in said.items()})


def _reach_by_tcp(meeting: Meeting, transport: Transport, far: Set[int], device: Device | None) -> None:
    tcp = Tcp(transport, meeting.token, _own_address(meeting.store))
    if device:
        tcp.use(device.memory, device.far)
    try:
        said = meeting.addresses(FAR, tcp.address, far)
        addresses = {other: Address.parse(address) for other, address in said.items()}
        for other, address in addresses.items():
            if address.is_loopback != tcp.address.is_loopback:
                us, them = (_name(meeting.plan, place) for place in (meeting.place, other))
                pair = f"{them} listens on {address.host} and {us} on {tcp.address.host}"
                raise WayError(
                    f"{FAR}: {pair}: the head's address must be one by which every node reaches it"
                )
    except BaseException:
        tcp.release()
        raise
    tcp.meet(addresses)


def _own_address(store: Store) -> str:
    """The one by which this worker reaches the launcher; loopback for a store that is not over a network."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return address_towards(store.host, store.port) if isinstance(store, TCPStore) else "127.0.0.1"


def _await(plan: Plan, store: Store, keys: Mapping[int, str], where: str) -> None:
    """Waits until the places have said their word. Raises `PeerLost`."""
    try:
        store.wait([*keys.values()], JOIN)
    except dist.DistStoreError:
        absent = [_name(plan, place) for place, key in keys.items() if not store.check([key])]
        raise PeerLost(f"{where}: {', '.join(absent)} did not come within {JOIN.seconds} s") from None


def _agree(plan: Plan, theirs: str, ours: str, place: int, where: str, routes: Sequence[Route]) -> None:
    if theirs != ours:
        names = ", ".join(f"`{route.name}`" for route in routes)
        raise WayError(f"{where}: {_name(plan, place)} runs another plan of the routes {names}")


def _name(plan: Plan, place: int) -> str:
    return ":".join(map(str, plan.at_place(place))) if 0 <= place < plan.places else f"place {place}"


def _route_of(plan: Plan, lane: int) -> str:
    return plan.routes[lane // TAGS_PER_ROUTE].name if 0 <= lane < len(plan.routes) * TAGS_PER_ROUTE else ""


def devices_of(group: Group) -> tuple[torch.device, ...]:
    """What this worker sees of the hardware: its own devices, numbered from 0."""
    if group.device_type in ("cpu", "mps"):
        return (torch.device(group.device_type),)
    return tuple(torch.device(group.device_type, number) for number in range(group.gpus_per_worker))


def ranks_by_node(plan: Plan, group: str) -> list[list[int]]:
    """The ranks of a group that share a node, node by node."""
    return [[worker.rank for worker in plan.workers(group, node)] for node in plan.nodes_of(group)]
