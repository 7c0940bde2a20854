"""The time and memory of a weight sync from a trainer to samplers with another layout.

    python benchmarks/weight_sync.py [--rounds 7] [--mib 1024]

A model of 1 GiB (bfloat16: 8 layers, an embedding and a head) is sent between two groups of processes on one
node. This process drives them: the time of a round is from its command until all workers have answered. The
contenders alternate, and the first rounds are not counted. A ratio is the median of the ratios of the rounds.
All memory is warm, and every received value is checked once before the measurement.

    once    consumers read both ends of each parameter, against one memcpy of the model: within a node its
            bytes
            must move once
    load    consumers copy each parameter to one of their own, against one memcpy of everything that they load

`extra` is the growth of the memory of all processes from before the first sync to after the rounds (PSS, so
that shared pages count once), in buckets for each set of consumers with the same shards. Memory is reused and
not released, so this is the peak.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.worlds import End, Step, World
from meshctl.plan.model import Cluster, Component, Group, Plan, Run, Stage
from meshctl.runtime.routes.sync_plan import Shard as Part
from meshctl.runtime.routes.weights import WeightChannel
from meshctl.runtime.world import Handshake
from meshctl.topology.memory import MAX_BUCKET_BYTES
from meshctl.topology.mesh import DeviceMesh, even_split
from meshctl.topology.modes import Route

MIB = 1 << 20
HIDDEN, INNER, VOCABULARY, LAYERS = 2048, 5632, 32000, 8
WARMUP_ROUNDS = 2
MIN_MEMCPY_RATIO, MAX_EXTRA_BUCKETS = 0.5, 2.0
COLUMNS, ROWS, REPLICATED = 0, 1, None
"""The dim of a parameter that tp shards."""


@dataclass(frozen=True)
class Case:
    """Two layouts of the same model."""

    name: str
    producer: DeviceMesh
    consumer: DeviceMesh

    @property
    def sets(self) -> int:
        """The number of sets of consumers with different shards."""
        return self.consumer.size("tp")

    @property
    def copies(self) -> int:
        """The number of copies of the model that all consumers load together."""
        return self.consumer.size("dp")

    @property
    def plan(self) -> Plan:
        groups = (
            Group("one", "cpu", self.producer.world_size, 0),
            Group("two", "cpu", self.consumer.world_size, self.producer.world_size),
        )
        components = (
            Component("actor", "x.Actor", "one", self.producer),
            Component("sampler", "x.Sampler", "two", self.consumer),
        )
        stages = (Stage("publish", "sync", "actor", "weights", to="sampler", to_method="load_weights"),)
        route = Route("publish", "publish", "publish", kind="weights")
        return Plan("benchmark", 0, Cluster(), groups, components, stages, (route,), Run(steps=1))


CASES = (
    Case("fsdp 2 -> dp 2", DeviceMesh.from_sizes(fsdp_size=2), DeviceMesh.from_sizes(dp_size=2)),
    Case(
        "fsdp 2 x tp 2 -> tp 2",
        DeviceMesh.from_sizes(fsdp_size=2, tp_size=2),
        DeviceMesh.from_sizes(tp_size=2),
    ),
)


def model(mib: int) -> Iterator[tuple[str, tuple[int, ...], int | None]]:
    """Yields the name, the shape and the dim that tp shards of each parameter. A model below 1 GiB has fewer
    layers."""
    rows = VOCABULARY * mib // 1024
    yield "embedding", (rows, HIDDEN), COLUMNS
    for layer in range(max(1, LAYERS * mib // 1024)):
        yield f"layers.{layer}.norm", (HIDDEN,), REPLICATED
        yield from ((f"layers.{layer}.{name}", (HIDDEN, HIDDEN), COLUMNS) for name in "qkv")
        yield f"layers.{layer}.o", (HIDDEN, HIDDEN), ROWS
        yield from ((f"layers.{layer}.{name}", (INNER, HIDDEN), COLUMNS) for name in ("gate", "up"))
        yield f"layers.{layer}.down", (HIDDEN, INNER), ROWS
    yield "head", (rows, HIDDEN), COLUMNS


class Shard:
    """A shard of a parameter, with the interface of a DTensor but without a process group."""

    def __init__(self, shape: tuple[int, ...], box: Part, local: Tensor) -> None:
        self.shape, self.dtype, self.ndim = shape, local.dtype, len(shape)
        self.box, self._local = box, local
        self.offsets, self.sizes = box.start, box.size

    def __create_chunk_list__(self) -> Sequence[Shard]:
        return [self]

    def to_local(self) -> Tensor:
        return self._local


def weights(mesh: DeviceMesh, rank: int, mib: int, *, fill: bool) -> dict[str, Any]:
    """Returns the shards of a rank, split by tp and then, along dim 0, by fsdp. Without `fill` they have no
    memory. The value of an element follows from its position."""
    shards = {}
    for number, (name, shape, dim) in enumerate(model(mib)):
        ranges = [range(size) for size in shape]
        if dim is not None:
            ranges[dim] = even_split(shape[dim], mesh.size("tp"), mesh.dim_rank(rank, "tp"))
        rows = even_split(len(ranges[0]), mesh.size("fsdp"), mesh.dim_rank(rank, "fsdp"))
        ranges[0] = ranges[0][rows.start : rows.stop]
        box = Part(tuple(part.start for part in ranges), tuple(map(len, ranges)))
        shards[name] = Shard(
            shape,
            box,
            expected(number, box) if fill else torch.empty((), dtype=torch.bfloat16).expand(box.size),
        )
    return shards


def expected(number: int, box: Part) -> Tensor:
    """Returns the values of a shard of a parameter."""
    grids = [
        torch.arange(start, start + size, dtype=torch.int16)
        for start, size in zip(box.start, box.size, strict=True)
    ]
    rows = grids[0] * 7 + number
    return (rows if len(grids) == 1 else rows[:, None] + grids[1] * 3).view(torch.bfloat16)


def sync(case: Case, mib: int, loads: bool, end: End) -> Step:
    """Returns a step of a worker that sends or receives weights over a `WeightChannel`."""
    transport = Handshake(end.plan, end.job_rank, end.connect()).connect()
    own, step = (
        weights(
            end.plan.component("actor" if end.gives else "sampler").mesh,
            end.rank,
            mib,
            fill=end.gives or loads,
        ),
        0,
    )
    ends = (lambda: own, None) if end.gives else (None, lambda: own)
    channel = WeightChannel(end.context(transport), *ends)
    channel.open()

    def send() -> int:
        nonlocal step
        step, channel.bytes_sent = step + 1, 0
        channel.send(own, step)
        return channel.bytes_sent

    def receive() -> None:
        nonlocal step
        step += 1
        channel.send(None, step)
        for number, (name, tensor) in enumerate(channel.receive(step).value):
            if step == 1 and not torch.equal(
                tensor.view(torch.int16), expected(number, own[name].box).view(torch.int16)
            ):
                raise ValueError(f"`{name}` is not what was sent")
            if loads:
                own[name].to_local().copy_(tensor)
            else:
                tensor.view(-1)[0].item(), tensor.view(-1)[-1].item()
        if step == 1:
            ctypes.CDLL(None).malloc_trim(0)  # the memory of the check is not part of the sync

    return send if end.gives else receive


def pss_bytes(world: World) -> int:
    """Returns the PSS of all processes of a world, in bytes."""
    return sum(
        int(line.split()[1]) << 10
        for pid in world.pids
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        if line.startswith("Pss:")
    )


def memcpy(nbytes: int, end: End) -> Step:
    """Returns a step in which the first worker copies memory and the others do nothing."""
    if end.job_rank:
        return lambda: None
    source, target = (torch.ones(nbytes, dtype=torch.uint8) for _ in "12")

    def copy() -> None:
        target.copy_(source)

    return copy


@dataclass(frozen=True)
class Measured:
    """The measurements of a case."""

    times: Mapping[str, Sequence[float]]
    """Contender -> seconds of each round."""
    extra: Mapping[str, int]
    """Contender -> bytes of additional memory."""
    sent: int
    """Bytes that one sync sent."""
    nbytes: int
    """Bytes of the model."""


def measured(case: Case, mib: int, rounds: int) -> Measured:
    nbytes = sum(2 * Part((0,) * len(shape), shape).count for _, shape, _ in model(mib))
    begins = {
        "once": partial(sync, case, mib, False),
        "load": partial(sync, case, mib, True),
        "memcpy": partial(memcpy, nbytes),
    }
    times: dict[str, list[float]] = {name: [] for name in begins}
    sent = 0
    with ExitStack() as stack:
        worlds = {name: World(case.plan, begin) for name, begin in begins.items()}
        for world in worlds.values():
            stack.callback(world.close)
        before = {name: pss_bytes(world) for name, world in worlds.items()}
        for number in range(WARMUP_ROUNDS + rounds):
            for name, world in worlds.items():
                seconds, _, given = world.steps()
                times[name] += [seconds] * (number >= WARMUP_ROUNDS)
                if name == "once":
                    sent = sum(given[: case.producer.world_size])
        return Measured(
            times, {name: pss_bytes(world) - before[name] for name, world in worlds.items()}, sent, nbytes
        )


def compared(case: Case, found: Measured) -> list[dict[str, Any]]:
    """Prints the measurements of a case and returns them with their goals."""
    print(f"{case.name}: sent {found.sent / found.nbytes:.3f} of the model")
    cases = []
    for name, times in (("once", 1), ("load", case.copies)):
        ratios = [
            times * theirs / ours
            for ours, theirs in zip(found.times[name], found.times["memcpy"], strict=True)
        ]
        ours, theirs = (
            1000 * statistics.median(found.times[name]),
            1000 * times * statistics.median(found.times["memcpy"]),
        )
        ratio, buckets = statistics.median(ratios), found.extra[name] / MAX_BUCKET_BYTES / case.sets
        print(
            f"    {name}  {ours:7.1f} ms  memcpy {theirs:7.1f} ms  {ratio:5.2f} x  extra "
            f"{found.extra[name] / MIB:6.1f} MiB"
        )
        cases.append(
            {
                "case": f"{case.name}, {name}",
                "value": round(ratio, 3),
                "goal": MIN_MEMCPY_RATIO,
                "ms": [round(ours, 1), round(theirs, 1)],
            }
        )
        cases.append(
            {
                "case": f"{case.name}, {name}, extra buckets",
                "value": round(buckets, 3),
                "goal": MAX_EXTRA_BUCKETS,
                "most": True,
            }
        )
    return cases


def margin(case: Mapping[str, Any]) -> float:
    """Returns how far a case is within its goal; below 1 it misses it."""
    ratio: float = case["value"] / case["goal"]
    return 1 / max(ratio, 1e-9) if case.get("most") else ratio


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--mib", type=int, default=1024, help="of the model")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    print(f"driver-timed; a bucket is {MAX_BUCKET_BYTES / MIB:g} MiB")
    cases = [each for case in CASES for each in compared(case, measured(case, args.mib, args.rounds))]
    worst, *others = sorted(cases, key=margin)
    print(
        json.dumps(
            {
                "name": "weight_sync",
                **worst,
                "ok": margin(worst) >= 1,
                "load": os.getloadavg()[0],
                "others": others,
            }
        )
    )


if __name__ == "__main__":
    main()
