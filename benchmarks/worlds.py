"""Two groups of real processes with one route between them, driven by hand: what the benchmarks of the data
plane measure."""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import PrefixStore, Store, TCPStore

from benchmarks import samples
from meshctl.plan.model import Cluster, Component, Group, Input, Plan, Run, Stage
from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.runtime.routes.channel import Channel
from meshctl.runtime.routes.end import RouteContext, RouteSide
from meshctl.runtime.transports.data_plane import DataPlane
from meshctl.runtime.world import Handshake
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import Dispatch, Route


def plan_of(
    producers: int,
    consumers: int,
    replicas: int = 1,
    dispatch: Dispatch = Dispatch(),
    slots: int = 2,
    samples: int = 256,
    steps: int = 1,
) -> Plan:
    """`producers` data ranks to `consumers` data ranks of `replicas` (tp) each."""
    groups = (Group("one", "cpu", producers, 0), Group("two", "cpu", consumers * replicas, producers))
    components = (
        Component("maker", "x.Maker", "one", DeviceMesh.from_sizes(dp_size=producers)),
        Component(
            "consumer", "x.Consumer", "two", DeviceMesh.from_sizes(dp_size=consumers, tp_size=replicas)
        ),
    )
    taken = Input(("made",), dispatch=dispatch)
    stages = (
        Stage("made", "call", "maker", "next", samples=samples),
        Stage("taken", "call", "consumer", "take", (taken,), collect="mean"),
    )
    route = Route("made -> taken", "made", "taken", dispatch=dispatch, slots=slots)
    return Plan("benchmark", 0, Cluster(), groups, components, stages, (route,), Run(steps=steps))


@dataclass(frozen=True)
class End:
    """A worker's end of the route."""

    plan: Plan
    job_rank: int
    connect: Callable[[], Store]
    """A new connection to the world's store."""
    driver: Driver

    @property
    def rank(self) -> int:
        return self.plan.group_and_rank(self.job_rank)[1]

    @property
    def group(self) -> str:
        return self.plan.group_and_rank(self.job_rank)[0]

    @property
    def gives(self) -> bool:
        return self.group == "one"

    def context(self, transport: DataPlane) -> RouteContext:
        """Returns the context of the plan's only route."""
        sides = [
            RouteSide(placed.mesh, self.plan.group(placed.group).first_job_rank, group=placed.group)
            for placed in self.plan.components
        ]
        return RouteContext(self.plan.routes[0], *sides, transport)


@dataclass(frozen=True)
class Driver:
    """Whoever drives the world, as a worker sees it."""

    pipe: socket.socket

    def asked(self) -> int:
        """Waits for a command: so many steps; 0 after the last."""
        return int(self.pipe.recv(64) or 0)

    def answer(self, seconds: float, given: Any = None) -> None:
        self.pipe.send(json.dumps([seconds, given]).encode())


Step = Callable[[], Any]
"""What a worker does in one step."""
Begin = Callable[[End], Step | None]
"""Makes a worker's step; none where it has answered the driver itself, to the end."""


def meshctl(
    end: End,
    make: Callable[[int, int], Batch],
    use: Callable[[Batch], Any],
    *,
    in_place: bool = False,
) -> Step:
    """A step over the product's own channel: a producer gives the same batch each time, `make(rank,
    producers)`. `in_place`: made in memory that is read as it lies."""
    transport = Handshake(end.plan, end.job_rank, end.connect()).connect()
    batch = make(end.rank, end.plan.group("one").workers) if end.gives else Batch({})
    if in_place:
        batch = batch.with_columns(**{name: _placed(transport, batch[name]) for name in batch.names})
    return _step(end, transport, lambda: batch, use)


def _placed(transport: DataPlane, column: torch.Tensor) -> torch.Tensor:
    return transport.alloc(column.nbytes).view(column.dtype).view(column.shape).copy_(column)


def moving(end: End, next: Callable[[], Batch], use: Callable[[Batch], Any]) -> Step:
    """A step over the product's own channel, with another batch each time."""
    return _step(end, Handshake(end.plan, end.job_rank, end.connect()).connect(), next, use)


def _step(end: End, transport: DataPlane, next: Callable[[], Batch], use: Callable[[Batch], Any]) -> Step:
    channel = Channel(end.context(transport))

    def give() -> int:
        channel.bytes_sent, batch = 0, next()
        channel.send(batch, 0, len(batch))
        return channel.bytes_sent

    return give if end.gives else lambda: use(channel.receive(0).value)


class World:
    """The workers of one plan: forked, each with a pipe to whoever drives them."""

    def __init__(self, plan: Plan, begin: Begin, host: str = "127.0.0.1") -> None:
        """`host` is the address of the world's store."""
        listener = socket.create_server((host, 0))
        port = listener.getsockname()[1]
        self._children: dict[int, socket.socket] = {}
        for job_rank in range(plan.job_size):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            sys.stdout.flush()
            if pid := os.fork():
                theirs.close()
                self._children[pid] = ours
                continue
            ours.close()
            for other in self._children.values():
                other.close()
            try:
                _work(plan, job_rank, (host, port), Driver(theirs), begin)
            except BaseException:
                traceback.print_exc()
            os._exit(0)
        self._store = TCPStore(
            host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )
        self._answers()

    def steps(self, count: int = 1) -> tuple[float, float, list[Any]]:
        """(seconds that the driver saw, seconds of the slowest worker's own loop, what each worker's last
        step gave)."""
        begin = time.perf_counter()
        with suppress(BrokenPipeError):  # a worker that is gone is told where its answer is missing
            for child in self._children.values():
                child.send(str(count).encode())
        answers = self._answers()
        return (
            time.perf_counter() - begin,
            max(seconds for seconds, _ in answers),
            [given for _, given in answers],
        )

    def _answers(self) -> list[Any]:
        """What every worker says next. Leaves the benchmark where one is gone: it has said why."""
        try:
            return [json.loads(child.recv(1 << 16)) for child in self._children.values()]
        except (ConnectionError, json.JSONDecodeError):
            raise SystemExit("a worker of the benchmark died") from None

    @property
    def pids(self) -> list[int]:
        return [*self._children]

    def close(self) -> None:
        for child in self._children.values():
            child.close()
        for pid in self._children:
            os.waitpid(pid, 0)


def _work(plan: Plan, job_rank: int, address: tuple[str, int], driver: Driver, begin: Begin) -> None:
    torch.set_num_threads(1)
    # touches all objects: what is shared with the parent is copied now, and not counted as what a step takes
    gc.collect()

    def connect() -> Store:
        return PrefixStore("w", TCPStore(*address, is_master=False, timeout=timedelta(seconds=60)))

    step = begin(End(plan, job_rank, connect, driver))
    if step is None:
        return
    driver.answer(0)
    while count := driver.asked():
        start, given = time.perf_counter(), None
        for _ in range(count):
            given = step()
        driver.answer(time.perf_counter() - start, given)


def even(nbytes: int, rank: int, producers: int) -> Batch:
    """A speaker's share of `nbytes` in all."""
    mine = samples.share(rank, producers)
    return Batch(dict(samples.columns(nbytes, rank, producers)), ids=torch.arange(mine.start, mine.stop))


def ragged(nbytes: int, rank: int, producers: int) -> Batch:
    """The same in samples of log-normal lengths."""
    mine = samples.share(rank, producers)
    lengths = samples.lengths_of(nbytes)[mine.start : mine.stop]
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    numbers = torch.arange(mine.start, mine.stop)
    values = numbers.repeat_interleave(lengths)
    return Batch(
        {name: Ragged(values.to(dtype, copy=True), offsets) for name, dtype in samples.FIELDS.items()},
        ids=numbers,
    )


class Consumer:
    """The body of a consumer. It checks the whole of the first batch, and both ends of each column of the
    later ones."""

    def __init__(self, expected: Sequence[int] | None = None) -> None:
        """`expected` are the samples that it must get; none where that follows from their lengths."""
        self._expected = expected
        self._checked = False

    def __call__(self, batch: Batch) -> int:
        """Returns how many elements it got of one column."""
        found = {
            name: column.values if isinstance(column := batch[name], Ragged) else column
            for name in batch.names
        }
        if not self._checked:
            self._check(batch, found)
            self._checked = True
        for column in found.values():
            samples.touch(column)
        return found["tokens"].numel()

    def _check(self, batch: Batch, found: dict[str, torch.Tensor]) -> None:
        ids = batch.ids[:, 0]
        if self._expected is not None and ids.tolist() != [*self._expected]:
            raise ValueError("other samples than were sent")
        if isinstance(tokens := batch["tokens"], Ragged):
            ids = ids.repeat_interleave(tokens.lengths)
        samples.check(found, ids)
