"""How fast a batch gets from the ranks that made it to those that need it.

    python benchmarks/data_plane.py [--rounds 7] [--sizes 64] [--peers [PYTHON]]

Each contender is a set of real processes, driven from here: a command goes out, and the time is that until
all have answered. They take turns; the first rounds are dropped, and a ratio is the median of the ratios of
the rounds. All buffers are warm, the numbers that arrive are checked once before any time is taken, and
consumers then read both ends of each column.

    memcpy      the same bytes, by one thread of one process
    even        meshctl, 256 samples of one length
    in place    the same, made in memory of `alloc`: nothing is copied, also where several give to one column
    ragged      meshctl, 256 samples of log-normal lengths, evened out by tokens
    gloo        point to point, all columns of a link in one buffer

With `--peers`, systems with a driver too (`benchmarks/peers`), by an interpreter that has them: `pip install
ray twinkle-kit`.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Protocol, cast

import torch
from torch.distributed import PrefixStore, ProcessGroupGloo

from benchmarks import samples
from benchmarks.peers import PEERS, Peer, PeerError
from benchmarks.worlds import Consumer, End, Step, World, even, meshctl, plan_of, ragged
from meshctl.topology.modes import Dispatch

MIB = 1 << 20
STEPS = {64 * MIB: 5, 512 * MIB: 2}
"""How many steps of a round, by size."""
DROPPED = 2
"""Rounds."""
WARM = 12
"""Steps before the rounds: a contender that makes memory as it needs it, and then keeps it, has made all of
it."""
Take = Callable[[int], list[float]]
"""Does so many steps, and says the seconds of each."""
Contender = tuple[str, Callable[[End], Step], Dispatch]


class Work(Protocol):
    def wait(self) -> bool: ...


class PointToPoint(Protocol):
    """The part of torch's `ProcessGroupGloo` that is used here; torch's stubs leave it out."""

    def send(self, tensors: list[torch.Tensor], rank: int, tag: int, /) -> Work: ...
    def recv(self, tensors: list[torch.Tensor], rank: int, tag: int, /) -> Work: ...


@dataclass(frozen=True)
class Shape:
    """How many data ranks give, how many take, and how many replicas each of those has."""

    producers: int
    consumers: int
    replicas: int = 1

    def __str__(self) -> str:
        return f"{self.producers}->{self.consumers}" + (f"x{self.replicas}" if self.replicas > 1 else "")


@dataclass(frozen=True)
class Goal:
    """A ratio of two contenders' times, the first of which is the faster."""

    what: str
    ours: str
    theirs: tuple[str, ...]
    """Of several, the best one."""
    least: float


GOALS = (
    Goal("even / memcpy", "even", ("memcpy",), 0.85),
    Goal("ragged / memcpy", "ragged", ("memcpy",), 0.5),
    Goal("gloo / in place", "in place", ("gloo",), 3.5),
    Goal("Ray, best ObjectRefs / in place", "in place", ("Ray refs torch", "Ray refs numpy"), 3),
    Goal("Ray, best driver hop / in place", "in place", ("Ray hop torch", "Ray hop numpy"), 8),
    Goal("Ray, usual driver hop / in place", "in place", ("Ray hop usual",), 50),
    Goal("Twinkle, driver hop / in place", "in place", ("Twinkle hop",), 50),
)
"""The promised ratios. Peers are compared with batches made in place, and copied batches with memcpy only."""
REPLICAS_GOALS = (Goal("gloo, four replicas / in place", "in place", ("gloo",), 10),)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sizes", type=float, nargs="*", help="in MiB, instead of all")
    parser.add_argument(
        "--peers", nargs="?", const=sys.executable, help="an interpreter that has ray and twinkle-kit"
    )
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    sizes = [int(size * MIB) for size in args.sizes or []] or [*STEPS]
    print("driver-timed, milliseconds; a ratio is the other's time by ours")
    cases: list[dict[str, Any]] = []
    for shape in (Shape(2, 2), Shape(4, 2), Shape(4, 2, 4)):
        for nbytes in sizes:
            found = measured(shape, nbytes, args.rounds, args.peers)
            cases += compared(shape, nbytes, found, REPLICAS_GOALS if shape.replicas > 1 else GOALS)
    print(json.dumps(summary(cases)))


def summary(cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The case that is nearest to its goal, or farthest below it, and all others."""
    ranked = sorted(cases, key=lambda case: case["value"] / case["goal"])
    worst, *others = ranked
    return {
        "name": "data_plane",
        **worst,
        "ok": all(case["value"] >= case["goal"] for case in cases),
        "load": os.getloadavg()[0],
        "others": others,
    }


# Contenders


def measured(shape: Shape, nbytes: int, rounds: int, python: str | None) -> dict[str, list[list[float]]]:
    """Seconds of each step, round by round, of each contender."""
    with ExitStack() as stack:
        takes = {
            name: taking(stack, shape, begin, dispatch) for name, begin, dispatch in contenders(shape, nbytes)
        }
        if python and shape.replicas == 1:
            for name in PEERS:
                takes |= peer(stack, name, python, shape, nbytes)
        count = STEPS.get(nbytes, 5)
        found: dict[str, list[list[float]]] = {name: [] for name in takes}
        for number in range(DROPPED + rounds):
            for name, take in takes.items():
                seconds = take(count)
                if number >= DROPPED:
                    found[name].append(seconds)
        return found


def contenders(shape: Shape, nbytes: int) -> Sequence[Contender]:
    def expected(end: End) -> range | None:
        return None if end.gives else samples.share(end.rank // shape.replicas, shape.consumers)

    def evenly(end: End) -> Step:
        return meshctl(end, partial(even, nbytes), Consumer(expected(end)))

    def by_tokens(end: End) -> Step:
        return meshctl(end, partial(ragged, nbytes), Consumer())

    def in_place(end: End) -> Step:
        return meshctl(end, partial(even, nbytes), Consumer(expected(end)), in_place=True)

    found: list[Contender] = [
        ("memcpy", partial(memcpy, nbytes), Dispatch()),
        ("even", evenly, Dispatch()),
        ("in place", in_place, Dispatch()),
        ("gloo", partial(gloo, shape, nbytes), Dispatch()),
    ]
    return found if shape.replicas > 1 else [*found, ("ragged", by_tokens, Dispatch(balance="tokens"))]


def taking(stack: ExitStack, shape: Shape, begin: Callable[[End], Step], dispatch: Dispatch) -> Take:
    world = World(plan_of(shape.producers, shape.consumers, shape.replicas, dispatch), begin)
    stack.callback(world.close)
    _, _, given = world.steps()
    if dispatch.balance:
        check_balance(given[shape.producers :])
    for _ in range(WARM):
        world.steps()
    return lambda count: [world.steps()[0] for _ in range(count)]


def check_balance(tokens: Sequence[int]) -> None:
    """Ends the benchmark if the consumers received uneven numbers of tokens, which could not be compared."""
    if max(tokens) * len(tokens) > 1.05 * sum(tokens) + len(tokens) * samples.SAMPLES:
        raise SystemExit(f"tokens are not balanced: {tokens}")


def memcpy(nbytes: int, end: End) -> Step:
    """libc's, by the first worker; the others only answer."""
    if end.job_rank:
        return lambda: None
    source = samples.flat(nbytes, 0, 1)
    target = torch.zeros_like(source)

    def copy() -> None:
        ctypes.memmove(target.data_ptr(), source.data_ptr(), nbytes)

    return copy


def gloo(shape: Shape, nbytes: int, end: End) -> Step:
    """The best form by hand: no headers are sent, all buffers are warm, and the segments of a consumer stay
    where they came."""
    job_ranks = range(end.plan.job_size)
    group = cast(
        PointToPoint,
        ProcessGroupGloo(
            PrefixStore("gloo", end.connect()), end.job_rank, len(job_ranks), timedelta(seconds=60)
        ),
    )
    fan_in = shape.producers // shape.consumers
    if end.gives:
        memory, first = (
            samples.flat(nbytes, end.rank, shape.producers),
            shape.producers + end.rank // fan_in * shape.replicas,
        )

        def give() -> None:
            for work in [group.send([memory], first + replica, 0) for replica in range(shape.replicas)]:
                work.wait()

        return give
    sources = [end.rank // shape.replicas * fan_in + number for number in range(fan_in)]
    buffers = {
        producer: torch.zeros_like(samples.flat(nbytes, producer, shape.producers)) for producer in sources
    }
    checked = False

    def take() -> None:
        nonlocal checked
        for work in [group.recv([buffer], producer, 0) for producer, buffer in buffers.items()]:
            work.wait()
        for producer, buffer in buffers.items():
            mine = samples.share(producer, shape.producers)
            columns = samples.fields_of(buffer, len(mine))
            if not checked:
                samples.check(columns, torch.arange(mine.start, mine.stop))
            for column in columns.values():
                samples.touch(column)
        checked = True

    return take


def peer(stack: ExitStack, name: str, python: str, shape: Shape, nbytes: int) -> Mapping[str, Take]:
    """All forms of one peer; none where it cannot be had, which is told."""
    try:
        made = stack.enter_context(Peer(name, python))
        made.open(shape.producers, shape.consumers, nbytes)
    except PeerError as error:
        print(f"{name} is left out: {error}", flush=True)
        return {}

    def steps(form: str, count: int) -> list[float]:
        return made.steps(form, 1 + count // 4)  # some take a hundred times as long as ours

    return {f"{name} {form}": partial(steps, form) for form in made.forms}


# The table


def compared(
    shape: Shape, nbytes: int, found: Mapping[str, list[list[float]]], goals: Sequence[Goal]
) -> list[dict[str, Any]]:
    """Prints one shape and size, and gives its ratios."""
    where = f"{shape} {named(nbytes)}"
    print(f"\n{where:<24} {'p50':>10} {'p95':>10} {'GB/s':>7} {'times even':>11}")
    medians = {name: [statistics.median(steps) for steps in rounds] for name, rounds in found.items()}
    for name, rounds in found.items():
        every = sorted(seconds for steps in rounds for seconds in steps)
        p50, p95 = statistics.median(every), every[min(len(every) - 1, int(len(every) * 0.95))]
        times = ratio(medians[name], medians["even"])
        print(
            f"{name:<24} {p50 * 1e3:>10.3f} {p95 * 1e3:>10.3f} {nbytes / p50 / 1e9:>7.1f} {times:>11.2f}",
            flush=True,
        )
    cases: list[dict[str, Any]] = []
    for goal in goals:
        theirs = [medians[name] for name in goal.theirs if name in medians]
        if theirs and goal.ours in medians:
            best = min(theirs, key=statistics.median)
            cases.append(
                {
                    "what": f"{goal.what}, {where}",
                    "value": round(ratio(best, medians[goal.ours]), 3),
                    "goal": goal.least,
                }
            )
    for case in cases:
        sign = ">=" if case["value"] >= case["goal"] else "<"
        print(f"  {case['what']:<40} {case['value']:>8} {sign:>3} {case['goal']}", flush=True)
    return cases


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> float:
    return statistics.median(one / other for one, other in zip(theirs, ours, strict=True))


def named(nbytes: int) -> str:
    return f"{nbytes // MIB} MiB" if nbytes >= MIB else f"{nbytes / 1024:g} KiB"


if __name__ == "__main__":
    main()
