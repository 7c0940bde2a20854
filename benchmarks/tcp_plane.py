"""How fast a batch gets from one node to another over TCP, beside a plain loop over sockets.

    python benchmarks/tcp_plane.py [--rounds 9] [--mib 64] [--only WORD ...]

Two network namespaces with a virtual cable are the nodes: two producers in one of them, two consumers in the
other. The ways take turns in short rounds, and a ratio is the median of the ratios of the rounds.

    plain       sends from a buffer and receives into one, and nothing else, with as many processes and
                connections as meshctl has. Each process has a buffer of the size of the whole batch, and uses
                another half of it in every step, as meshctl does with its slots
    meshctl     256 samples of one length in memory of torch, over the product's own channel
    gloo        point to point, all columns of a link in one buffer

`cpu` is the CPU time of all four processes, which depends less on other work on the machine than the time
does. Both ends share this machine's cores, so a way that takes more CPU time is slower in the same measure.
iperf3's figure stands beside them where it is installed. The benchmark needs root and `ip`; without them it
says so and measures nothing.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from benchmarks import samples
from benchmarks.data_plane import MIB, Shape, gloo
from benchmarks.worlds import Consumer, End, Step, World, even, meshctl, plan_of
from meshctl.plan.model import Cluster, Plan

CLONE_NEWNET = 0x40000000
PAIRS = 2
"""The number of producers, and of consumers; each producer sends to one consumer."""
DROPPED, STEPS, WARM = 1, 4, 8
"""Rounds that do not count, steps of a round, and steps before the first round."""
CABLE = "cable"
IPERF_S = 3
GOALS = {"plain": 0.9, "gloo": 1.5}
"""The least ratio of another way's time to that of meshctl."""


@dataclass(frozen=True)
class Cost:
    """The duration and the CPU time of a step, in seconds."""

    wall: float
    cpu: float


Take = Callable[[], Cost]
"""Does the steps of a round, and returns what one of them took."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--only", nargs="*", help="some of the ways")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["GLOO_SOCKET_IFNAME"] = CABLE
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    torch.set_num_threads(1)
    if missing := [*([] if os.geteuid() == 0 else ["root"]), *([] if shutil.which("ip") else ["ip"])]:
        print(f"two network namespaces need {' and '.join(missing)}: nothing is measured")
        print(json.dumps({"name": "tcp_plane", "value": None, "goal": GOALS["plain"], "ok": True}))
        return
    with nodes() as (hosts, names):
        rates = iperf3(hosts[1], names)
        found = measured(args.mib * MIB, args.rounds, hosts, names, args.only)
    report(found, args.mib * MIB, rates)


# The nodes


@contextmanager
def nodes() -> Iterator[tuple[Sequence[str], Sequence[str]]]:
    """Yields the addresses and names of two network namespaces with a cable between them. This process is in
    the first one meanwhile."""
    pid = os.getpid()
    names, hosts = (
        [f"mt{pid}-{number}" for number in (1, 2)],
        [f"10.79.{pid % 250}.{number}" for number in (1, 2)],
    )
    with open("/proc/self/ns/net") as own, ExitStack() as stack:
        for name in names:
            ip("netns", "add", name)
            stack.callback(ip, "netns", "del", name)
        ip("-n", names[0], "link", "add", CABLE, "type", "veth", "peer", "name", CABLE, "netns", names[1])
        for name, host in zip(names, hosts, strict=True):
            ip("-n", name, "address", "add", f"{host}/24", "dev", CABLE)
            ip("-n", name, "link", "set", CABLE, "up")
            ip("-n", name, "link", "set", "lo", "up")
        stack.callback(set_namespace, own.fileno())
        enter(names[0])
        yield hosts, names


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def enter(name: str) -> None:
    """Moves this thread, and the sockets that it opens from now on, into a network namespace."""
    with open(f"/run/netns/{name}") as file:
        set_namespace(file.fileno())


def set_namespace(file: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(file, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


# The ways


def placed(producers: int, consumers: int) -> Plan:
    """Returns a plan whose producers are on node 0 and whose consumers are on node 1. Only groups with
    accelerators are placed on nodes of their own; nothing is computed on these."""
    plan = plan_of(producers, consumers)
    devices = ((0, producers), (producers, producers + consumers))
    pairs = zip(plan.groups, devices, strict=True)
    groups = tuple(replace(group, device_type="npu", devices=(one,)) for group, one in pairs)
    return replace(plan, cluster=Cluster.of(2, npu=producers), groups=groups)


def ways(nbytes: int, host: str) -> Mapping[str, Callable[[End], Step]]:
    def ours(end: End) -> Step:
        expected = None if end.gives else samples.share(end.rank, PAIRS)
        return meshctl(end, partial(even, nbytes), Consumer(expected))

    return {
        "plain": partial(plain, nbytes, host),
        "meshctl": ours,
        "gloo": partial(gloo, Shape(PAIRS, PAIRS), nbytes),
    }


def plain(nbytes: int, host: str, end: End) -> Step:
    """One connection for each pair. Consumers listen at `host`."""
    store = end.connect()
    buffer = memoryview(bytearray(b"x") * nbytes)
    halves = [buffer[: nbytes // PAIRS], buffer[nbytes // PAIRS :][: nbytes // PAIRS]]
    if end.gives:
        port = int(store.get(f"port {end.rank}"))
        connection = socket.create_connection((host, port))
    else:
        with socket.create_server((host, 0)) as listener:
            store.set(f"port {end.rank}", str(listener.getsockname()[1]))
            connection, _ = listener.accept()
    move = socket.socket.sendall if end.gives else receive
    count = 0

    def step() -> None:
        nonlocal count
        count += 1
        move(connection, halves[count % 2])

    return step


def receive(connection: socket.socket, memory: memoryview) -> None:
    while memory:
        memory = memory[connection.recv_into(memory) :]


def counted(begin: Callable[[End], Step], name: str, end: End) -> Step:
    """Returns the step of a way. It gives the CPU seconds of its process so far."""
    if not end.gives:
        enter(name)
    step = begin(end)

    def counting() -> float:
        step()
        return time.process_time()

    return counting


def taking(stack: ExitStack, begin: Callable[[End], Step], host: str, name: str) -> Take:
    world = World(placed(PAIRS, PAIRS), partial(counted, begin, name), host)
    stack.callback(world.close)
    _, _, before = world.steps(WARM)

    def take() -> Cost:
        nonlocal before
        wall, _, after = world.steps(STEPS)
        cpu, before = sum(after) - sum(before), after
        return Cost(wall / STEPS, cpu / STEPS)

    return take


def measured(
    nbytes: int, rounds: int, hosts: Sequence[str], names: Sequence[str], only: Sequence[str] | None
) -> dict[str, list[Cost]]:
    """Returns the cost of a step of each way, round by round."""
    with ExitStack() as stack:
        takes = {
            way: taking(stack, begin, hosts[0], names[1])
            for way, begin in ways(nbytes, hosts[1]).items()
            if not only or way in only
        }
        found: dict[str, list[Cost]] = {way: [] for way in takes}
        for number in range(DROPPED + rounds):
            for way, take in takes.items():
                cost = take()
                if number >= DROPPED:
                    found[way].append(cost)
        return found


def iperf3(host: str, names: Sequence[str]) -> dict[str, float]:
    """Returns what iperf3 sends, in bytes a second, by its number of connections; empty where it is not
    installed."""
    if not (tool := shutil.which("iperf3")):
        print("iperf3 is not installed: its figure is left out")
        return {}
    rates = {}
    for streams in (1, PAIRS):
        server = subprocess.Popen(
            ["ip", "netns", "exec", names[1], tool, "-s", "-1", "-B", host], stdout=subprocess.DEVNULL
        )
        try:
            time.sleep(0.5)
            command = [tool, "-c", host, "-t", str(IPERF_S), "-P", str(streams), "-J"]
            done = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
            rates[f"iperf3, {streams} conn."] = done["end"]["sum_received"]["bits_per_second"] / 8
        finally:
            server.terminate()
            server.wait()
    return rates


# The table


def report(found: Mapping[str, Sequence[Cost]], nbytes: int, rates: Mapping[str, float]) -> None:
    print(f"{nbytes // MIB} MiB, {PAIRS} -> {PAIRS} ranks")
    print(f"{'':<20} {'ms':>8} {'cpu ms':>8} {'GB/s':>7} {'GB per cpu s':>13}")
    for way, costs in found.items():
        wall = statistics.median(cost.wall for cost in costs)
        cpu = statistics.median(cost.cpu for cost in costs)
        print(f"{way:<20} {wall * 1e3:>8.2f} {cpu * 1e3:>8.2f} {nbytes / wall / 1e9:>7.2f}", end=" ")
        print(f"{nbytes / cpu / 1e9:>13.2f}")
    for name, rate in rates.items():
        print(f"{name:<20} {'':>17} {rate / 1e9:>7.2f}")
    cases = [compared(other, found) for other in GOALS if {other, "meshctl"} <= found.keys()]
    if cases:
        worst, *others = sorted(cases, key=lambda case: case["value"] / case["goal"])
        ok = all(case["value"] >= case["goal"] for case in cases)
        summary = {"name": "tcp_plane", **worst, "ok": ok, "load": os.getloadavg()[0], "others": others}
        print(json.dumps(summary))


def compared(other: str, found: Mapping[str, Sequence[Cost]]) -> dict[str, Any]:
    """Prints and returns the ratios of another way to meshctl."""
    pairs = [*zip(found[other], found["meshctl"], strict=True)]
    value = statistics.median(theirs.wall / ours.wall for theirs, ours in pairs)
    cpu = statistics.median(theirs.cpu / ours.cpu for theirs, ours in pairs)
    print(f"  {other} / meshctl: {value:.3f} of the time, {cpu:.3f} of the CPU time (goal {GOALS[other]})")
    return {
        "what": f"{other} / meshctl",
        "value": round(value, 3),
        "goal": GOALS[other],
        "cpu": round(cpu, 3),
    }


if __name__ == "__main__":
    main()
