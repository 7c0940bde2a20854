"""How fast a trainer's weights get to those who sample with them, in another layout, and how much memory that
takes.

    python benchmarks/weight_sync.py [--rounds 7] [--mib 1024]

A model of 1 GiB (bfloat16: 8 layers, an embedding and a head) between two groups of real processes on one
node, driven from here: a command goes out, and the time is that until all have answered. Contenders take
turns; the first rounds are dropped, and a ratio is the median of the ratios of the rounds. All memory is
warm, and everything that arrives is checked once before any time is taken.

    once    takers read both ends of each parameter, against one memcpy of the model: within a node its bytes
            must move once
    load    takers copy each parameter to one of their own, against one memcpy of all that they load

`extra` is what all processes together hold more after the rounds than before the first sync (PSS, so that
shared pages count once), in buckets for each set of takers that want the same. Memory is used again and not
given back, so that is the peak.
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
from meshctl.runtime.routes.sync_plan import MAX_BUCKET_BYTES
from meshctl.runtime.routes.sync_plan import Shard as Part
from meshctl.runtime.routes.weights import WeightChannel
from meshctl.runtime.world import connect_all
from meshctl.topology.mesh import DeviceMesh, even_split
from meshctl.topology.modes import Route

MIB = 1 << 20
HIDDEN, INNER, VOCABULARY, LAYERS = 2048, 5632, 32000, 8
DROPPED = 2
"""Rounds."""
LEAST, MOST = 0.5, 2.0
"""The goals: of memcpy, and buckets."""
COLUMNS, ROWS, REPLICATED = 0, 1, None
"""Which dim of a parameter tp cuts."""


@dataclass(frozen=True)
class Case:
    """Two layouts of the same model."""

    name: str
    giver: DeviceMesh
    taker: DeviceMesh

    @property
    def sets(self) -> int:
        """How many takers want something of their own."""
        return self.taker.size("tp")

    @property
    def copies(self) -> int:
        """How often all takers together load the model."""
        return self.taker.size("dp")

    @property
    def plan(self) -> Plan:
        groups = (
            Group("one", "cpu", self.giver.world_size, 0),
            Group("two", "cpu", self.taker.world_size, self.giver.world_size),
        )
        components = (
            Component("actor", "x.Actor", "one", self.giver),
            Component("sampler", "x.Sampler", "two", self.taker),
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
    """(name, shape, the dim that tp cuts) of each parameter; a part of the layers where that is not the whole
    GiB."""
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
    """A parameter as a DTensor holds it, without its process group."""

    def __init__(self, shape: tuple[int, ...], box: Part, local: Tensor) -> None:
        self.shape, self.dtype, self.ndim = shape, local.dtype, len(shape)
        self.box, self._local = box, local
        self.offsets, self.sizes = box.start, box.size

    def __create_chunk_list__(self) -> Sequence[Shard]:
        return [self]

    def to_local(self) -> Tensor:
        return self._local


def weights(mesh: DeviceMesh, rank: int, mib: int, *, fill: bool) -> dict[str, Any]:
    """A rank's shards: cut by tp, and then their rows by fsdp; without `fill` only their shapes. Each element
    tells where it is."""
    held = {}
    for number, (name, shape, dim) in enumerate(model(mib)):
        ranges = [range(size) for size in shape]
        if dim is not None:
            ranges[dim] = even_split(shape[dim], mesh.size("tp"), mesh.dim_rank(rank, "tp"))
        rows = even_split(len(ranges[0]), mesh.size("fsdp"), mesh.dim_rank(rank, "fsdp"))
        ranges[0] = ranges[0][rows.start : rows.stop]
        box = Part(tuple(part.start for part in ranges), tuple(map(len, ranges)))
        held[name] = Shard(
            shape,
            box,
            expected(number, box) if fill else torch.empty((), dtype=torch.bfloat16).expand(box.size),
        )
    return held


def expected(number: int, box: Part) -> Tensor:
    grids = [
        torch.arange(start, start + size, dtype=torch.int16)
        for start, size in zip(box.start, box.size, strict=True)
    ]
    rows = grids[0] * 7 + number
    return (rows if len(grids) == 1 else rows[:, None] + grids[1] * 3).view(torch.bfloat16)


def sync(case: Case, mib: int, loads: bool, end: End) -> Step:
    """A step over the product's own channel."""
    transport = connect_all(end.plan, end.place, end.connect())
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
    channel.open(0)

    def give() -> int:
        nonlocal step
        step, channel.bytes_sent = step + 1, 0
        channel.send(own, step)
        return channel.bytes_sent

    def take() -> None:
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
            ctypes.CDLL(None).malloc_trim(0)  # what the check took is not the sync's

    return give if end.gives else take


def held_by(world: World) -> int:
    """The memory that a world's processes hold: of shared pages each its share."""
    return sum(
        int(line.split()[1]) << 10
        for pid in world.pids
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        if line.startswith("Pss:")
    )


def memcpy(nbytes: int, end: End) -> Step:
    """By the first worker; the others only answer."""
    if end.place:
        return lambda: None
    source, target = (torch.ones(nbytes, dtype=torch.uint8) for _ in "12")

    def copy() -> None:
        target.copy_(source)

    return copy


@dataclass(frozen=True)
class Found:
    """What was measured of a case."""

    times: Mapping[str, Sequence[float]]
    """Contender -> seconds of each round."""
    extra: Mapping[str, int]
    """Contender -> bytes."""
    sent: int
    nbytes: int
    """Of the model."""


def measured(case: Case, mib: int, rounds: int) -> Found:
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
        before = {name: held_by(world) for name, world in worlds.items()}
        for number in range(DROPPED + rounds):
            for name, world in worlds.items():
                seconds, _, given = world.steps()
                times[name] += [seconds] * (number >= DROPPED)
                if name == "once":
                    sent = sum(given[: case.giver.world_size])
        return Found(
            times, {name: held_by(world) - before[name] for name, world in worlds.items()}, sent, nbytes
        )


def compared(case: Case, found: Found) -> list[dict[str, Any]]:
    """What is measured of a case, and whether it is as promised."""
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
                "goal": LEAST,
                "ms": [round(ours, 1), round(theirs, 1)],
            }
        )
        cases.append(
            {
                "case": f"{case.name}, {name}, extra buckets",
                "value": round(buckets, 3),
                "goal": MOST,
                "most": True,
            }
        )
    return cases


def margin(case: Mapping[str, Any]) -> float:
    """1 and more where it is as promised."""
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
