"""The connections between workers: the world of each group, through the store of torch's process groups, and
the data plane between groups, through the control store.

Each group is a world of its own, so FSDP, DDP and user scripts see only their group. Workers of two groups
(or of one) that a route connects exchange the addresses at which they listen: of unix sockets within a node,
of TCP between nodes. That exchange is a handshake: every worker publishes the plan it runs. A mismatch or an
absence is an error that names the routes or the absent workers, not a hang.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import closing, suppress
from dataclasses import field
from datetime import timedelta
from functools import cached_property, partial
from ipaddress import ip_address
from typing import cast

import torch
import torch.distributed as dist
from torch.distributed import FileStore, PrefixStore, TCPStore, distributed_c10d
from torch.distributed import Store as TorchStore

from meshctl.dataclass import dataclass
from meshctl.network.addresses import address_towards, split, with_short_lookups
from meshctl.network.control_store import CONNECT_S, Store, StoreClient, StoreLost, StoreTimeout
from meshctl.plan.model import Group, Plan
from meshctl.plan.views.distances import is_direct
from meshctl.run.shutdown import PREFIX, has_left
from meshctl.runtime.collectives.collective import RUNNING
from meshctl.runtime.devices.backend import (
    CHOICE,
    DEVICES,
    DeviceMemory,
    PeerAccess,
    devices_at,
    handshake,
)
from meshctl.runtime.devices.nccl import memory_of
from meshctl.runtime.devices.nccl import transfers as transfers_of
from meshctl.runtime.progress import Progress, WaitTimes
from meshctl.runtime.routes.end import TAGS_PER_ROUTE
from meshctl.runtime.transports.context import Context
from meshctl.runtime.transports.data_plane import DataPlane
from meshctl.runtime.transports.errors import ConnectError, PeerLost
from meshctl.runtime.transports.local.transport import LocalTransport
from meshctl.runtime.transports.peers import PeerTransport
from meshctl.runtime.transports.tcp.transport import TcpTransport
from meshctl.runtime.user_modes import source_digests
from meshctl.topology.modes import Route

JOIN = timedelta(seconds=60)
"""Time limit for the other workers to connect."""
ANSWER_S = 5.0
"""Time limit for the control store to answer a single question."""
CPU = torch.device("cpu")
NEAR, FAR = "this node", "other nodes"
"""Prefixes of keys in the store, and words of messages."""


def torch_stores(head: str, attempt: int, group: Group, generation: int) -> tuple[PrefixStore, PrefixStore]:
    """Returns the stores of torch in which the workers of a group meet, and the pairs of devices of all
    groups. Both are the one at HOST:PORT. In an attempt on one node, `head` is a folder of the owner of the
    run, and each is a file in it."""
    if not head.startswith("/"):
        host, port = split(head)
        served = with_short_lookups(lambda: TCPStore(host, port, is_master=False, timeout=JOIN))
        return (store := PrefixStore(f"run/{attempt}", served)), store
    files = [FileStore(f"{head}/run-{attempt}-world-{group.name}-{generation}", -1)]
    if group.device_type != "cpu":
        files.append(FileStore(f"{head}/run-{attempt}-pairs", -1))
    for file in files:
        file.set_timeout(JOIN)
    return PrefixStore(f"run/{attempt}", files[0]), PrefixStore(f"run/{attempt}", files[-1])


@dataclass(frozen=True)
class Control:
    """The control store of an attempt, as a worker reaches it."""

    address: str
    """HOST:PORT"""
    token: str = field(repr=False)
    attempt: int

    def connect(self, limit_s: float = CONNECT_S) -> StoreClient:
        """Returns a new connection. Raises `StoreLost`."""
        return StoreClient(self.address, self.token, f"run/{self.attempt}/", limit_s)

    def peer_has_left(self, job_rank: int) -> bool:
        """Returns whether a worker has left the run in order. A new connection asks, because other threads
        may wait on the existing ones. Without a store, the worker counts as lost."""
        try:
            store = self.connect(ANSWER_S)
        except StoreLost:
            return False
        with closing(store), suppress(StoreLost):
            return has_left(store.under(PREFIX), job_rank)
        return False


def join(store: TorchStore, group: Group, rank: int, generation: int = 0) -> None:
    """Makes this worker a member of its group's WORLD, and waits for the other workers of the group.
    `generation` is that of the group.

    Without this wait, the others could end a short run while one of them is still connecting. That one would
    find its connections closed.
    """
    backend = {"cuda": "cpu:gloo,cuda:nccl", "npu": "cpu:gloo,npu:hccl"}.get(group.device_type, "gloo")
    prefixed = PrefixStore(f"world/{group.name}{suffix_of(generation)}", store)
    lift_timeouts()
    dist.init_process_group(backend, store=prefixed, rank=rank, world_size=group.workers, timeout=RUNNING)
    if prefixed.add("joined", 1) == group.workers:
        prefixed.set("complete", "")
    prefixed.wait(["complete"], RUNNING)


def lift_timeouts() -> None:
    """Gives process groups that torch or a component makes without a timeout, as those of a mesh, the timeout
    `RUNNING`. torch's own is 30 minutes, and 10 for NCCL, after which it ends the process."""
    for name in ("default_pg_timeout", "default_pg_nccl_timeout"):
        if getattr(distributed_c10d, name, None) is not None:  # None in a torch without NCCL
            setattr(distributed_c10d, name, RUNNING)


def suffix_of(generation: int) -> str:
    """Returns the end of the prefixes and keys in a store that belong to a generation of a group."""
    return f"/{generation}" if generation else ""


@dataclass(frozen=True)
class Handshake:
    """A worker that connects to the others."""

    plan: Plan
    job_rank: int
    store: Store
    device: torch.device = CPU
    """The device of this worker."""
    generations: Mapping[str, int] = field(default_factory=dict)
    """Group -> its generation; 0 if a group is missing."""
    has_left: Callable[[int], bool] = lambda job_rank: False
    """Returns whether a job rank has left the run in order."""
    torch_store: TorchStore | None = None
    """The store through which communicators of devices are made, if it is not `store`."""
    progress: Progress = field(default_factory=Progress)
    """The record in which the waits of this worker are noted."""

    def connect(self) -> DataPlane:
        """Returns a data plane that reaches every worker with which this one shares a route; all workers call
        it. Raises `PeerLost` if workers do not come, and `ConnectError` where they do not agree."""
        near, far = self._peers()
        memory, access, far_devices = self._device(near, far)
        data_plane = DataPlane(self._context(memory is not None))
        # The secret of the attempt is chosen by the first worker that needs it and equal for all.
        token = self.store.compare_set("token", "", secrets.token_hex(16)).decode()
        try:
            if len(near) > 1:
                self._connect(NEAR, LocalTransport(data_plane, token, memory, access), near)
            if far:
                host = "127.0.0.1"
                if isinstance(self.store, StoreClient):  # the address from which this worker reaches the head
                    host = address_towards(*split(self.store.address))
                self._connect(FAR, TcpTransport(data_plane, token, host, memory, far_devices), far)
        except BaseException:
            data_plane.release()
            raise
        return data_plane

    @property
    def _group(self) -> str:
        name, _ = self.plan.group_and_rank(self.job_rank)
        return name

    @cached_property
    def _routes(self) -> list[Route]:
        return [route for route in self.plan.routes if self._group in self.plan.ends_of(route)]

    def _peers(self) -> tuple[set[int], set[int]]:
        """Returns the job ranks that this one shares routes with: on its node, itself included, and
        elsewhere."""
        node = self.plan.node_of(*self.plan.group_and_rank(self.job_rank))
        names = {name for route in self._routes for name in self.plan.ends_of(route)}
        if self.plan.run.has_all_checks:
            names.add(self._group)
        near = {worker.job_rank for name in names for worker in self.plan.workers(name, node)}
        return near, {worker.job_rank for name in names for worker in self.plan.workers(name)} - near

    def _context(self, has_device_memory: bool) -> Context:
        plan, device = self.plan, self.device
        self.progress.waits = waits = WaitTimes(plan, self._group, self.progress)
        return Context(
            self.job_rank,
            slots={number * TAGS_PER_ROUTE: route.slots for number, route in enumerate(plan.routes)},
            name_of=partial(_name, plan),
            route_of=lambda tag: (
                plan.routes[number % len(plan.routes)].name
                if 0 <= (number := tag // TAGS_PER_ROUTE) < 2 * len(plan.routes)
                else ""
            ),
            group_of=lambda job_rank: (
                plan.group_and_rank(job_rank)[0] if 0 <= job_rank < plan.job_size else ""
            ),
            generations=self.generations,
            restartable=frozenset(
                group.name for group in plan.groups if group.restartable and group.name != self._group
            ),
            has_left=self.has_left,
            on_wait=waits.note,
            has_digests=plan.run.has_all_checks,
            device=device if device.type != "cpu" else None,
            make_transfers=partial(
                transfers_of, self.job_rank, device, self.torch_store or cast(TorchStore, self.store)
            )
            if has_device_memory
            else None,
        )

    def _device(
        self, near: Set[int], far: Set[int]
    ) -> tuple[DeviceMemory | None, PeerAccess | None, frozenset[int]]:
        """Returns this worker's device with what its tensors reach without host memory: the pairs of workers
        on this node, and the job ranks on other nodes. There is no device if all tensors travel through host
        memory."""
        plan, nothing = self.plan, (None, None, frozenset[int]())
        if plan.group(self._group).device_type not in DEVICES:
            return nothing
        direct = {
            other for other in near | far if is_direct(plan, self._group, plan.group_and_rank(other)[0])
        }
        if (chosen := os.environ.get(CHOICE, "")) not in ("", "cpu"):
            raise ConnectError(
                f"{CHOICE} is {chosen!r}: it may be `cpu`, so that tensors of devices go by way of the "
                "CPU's memory"
            )
        memory = None if chosen else memory_of(self.device)
        store = self.store
        if self._generation and isinstance(store, StoreClient):  # it is direct with its own group only
            store = store.under(f"generation/{self._group}{suffix_of(self._generation)}/")
        wait = partial(_await, plan, store, where="devices")
        access = handshake(memory, self.job_rank, direct & near | {self.job_rank}, store, wait)
        library = memory.transfer_library if memory else ""
        others = devices_at(direct & far, library, store, wait)
        return nothing if memory is None else (memory, access, others)

    def _connect(self, where: str, transport: LocalTransport | TcpTransport, peers: Set[int]) -> None:
        try:
            addresses = self._exchange(where, transport.address, peers)
            for other, address in addresses.items() if where == FAR else ():
                self._check_reachable(transport.address, other, address)
        except BaseException:
            transport.release()
            raise
        transport.connect(addresses)

    def _check_reachable(self, own: str, other: int, address: str) -> None:
        hosts = [text.split()[0] for text in (own, address)]
        if len({ip_address(host).is_loopback for host in hosts}) == 1:
            return
        us, them = _name(self.plan, self.job_rank), _name(self.plan, other)
        pair = f"{them} listens on {hosts[1]} and {us} on {hosts[0]}"
        raise ConnectError(f"{FAR}: {pair}: the head's address must be one by which every node reaches it")

    def _exchange(self, where: str, own: str, peers: Set[int]) -> dict[int, str]:
        """Publishes where this worker listens and returns where its peers do. Raises `PeerLost`,
        `ConnectError`."""
        modes = source_digests(self.plan, self._routes).items()
        facts = {"plan": self.plan.digest} | {
            f"source of the modes of `{route}`": digest for route, digest in modes
        }
        greeting = {"address": own, "facts": facts}
        self.store.set(self._key(where, self.job_rank), json.dumps(greeting))
        keys = {other: self._key(where, other) for other in sorted(peers)}
        _await(self.plan, self.store, keys, where)
        values = self.store.multi_get([*keys.values()])
        greetings = {other: json.loads(value) for other, value in zip(keys, values, strict=True)}
        for other, theirs in greetings.items():
            for fact, known in facts.items():
                if theirs["facts"].get(fact, known) != known:
                    us, them = (_name(self.plan, one) for one in (self.job_rank, other))
                    raise ConnectError(f"{where}: {them} has another {fact} than {us}")
        return {other: theirs["address"] for other, theirs in greetings.items()}

    def _key(self, where: str, job_rank: int) -> str:
        group, _ = self.plan.group_and_rank(job_rank)
        return f"{where}/{job_rank}{suffix_of(self.generations.get(group, 0))}"

    @property
    def _generation(self) -> int:
        return self.generations.get(self._group, 0)


def connect_again(data_plane: DataPlane, store: Store, job_ranks: Sequence[int], generation: int) -> None:
    """Connects to the workers of a group that has restarted, and has been reopened. They have published their
    addresses."""
    for other in job_ranks:
        transport = data_plane.transport_to(other)
        assert isinstance(transport, PeerTransport)
        where = NEAR if isinstance(transport, LocalTransport) else FAR
        [text] = store.multi_get([f"{where}/{other}{suffix_of(generation)}"])
        transport.connect({other: json.loads(text)["address"]})


def _await(plan: Plan, store: Store, keys: Mapping[int, str], where: str) -> None:
    """Waits until job ranks have set their keys. Raises `PeerLost`."""
    try:
        store.wait([*keys.values()], JOIN)
    except (dist.DistStoreError, StoreTimeout):
        absent = [_name(plan, other) for other, key in keys.items() if not store.check([key])]
        raise PeerLost(f"{where}: {', '.join(absent)} did not connect within {JOIN.seconds} s") from None


def _name(plan: Plan, job_rank: int) -> str:
    return (
        ":".join(map(str, plan.group_and_rank(job_rank)))
        if 0 <= job_rank < plan.job_size
        else f"job rank {job_rank}"
    )


def devices_of(group: Group) -> tuple[torch.device, ...]:
    """Returns the devices that a worker of the group sees: its own, numbered from 0."""
    if group.device_type in ("cpu", "mps"):
        return (torch.device(group.device_type),)
    return tuple(torch.device(group.device_type, number) for number in range(group.gpus_per_worker))


def ranks_by_node(plan: Plan, group: str) -> list[list[int]]:
    """Returns the ranks of a group that share a node, node by node."""
    return [[worker.rank for worker in plan.workers(group, node)] for node in plan.nodes_of(group)]
