"""Time, CPU and memory of a head of many nodes: `launch --engine commands` with simulated nodes.

    python benchmarks/head_scale.py [--nodes 1000] [--seconds 30] [--dry-nodes 4096] [--profile FILE]

A few processes speak the nodes' side of the connections: they authenticate with the token of the run, answer
the examination, send beats and progress, receive the attempt, and write the events of a worker for each node.
Nothing else of a node is there. All nodes connect at the same moment. After that each worker ends a step
every second.

    joined      seconds from then until the last node has received the attempt
    cores       CPU time of the head per second, while events arrive
    memory      memory of the head in the last quarter of that time, against the second quarter
    dry run     CPU seconds of `launch --dry-run` for more nodes, which is its time on a quiet machine
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.overhead import cpu_seconds
from meshctl import __version__
from meshctl.engines.checks import on_node
from meshctl.engines.checks.requirements import Needs
from meshctl.network.addresses import split
from meshctl.network.connection import new_nonce, proof_of
from meshctl.plan.model import Plan
from meshctl.run.directory import RunDir
from meshctl.run.events import Journal, StepReport

GOALS = {"joined": 10.0, "cores": 1.0, "memory": 1.05, "dry run": 2.0}
"""The largest values."""
HOST = "127.0.0.1"
ENGINE = ("--engine", "commands", f"engine.commands.head={HOST}")
PROCESSES = 2
"""Processes that simulate the nodes."""
BEAT_S, STEP_S, TICK_S = 3.0, 1.0, 0.02
PROGRESS_EACH = 20
"""One of so many steps comes with a message about progress."""
LIMIT_S = 120.0
COMPONENTS = """
from meshctl import Batch, Component, endpoint


class Maker(Component):
    @endpoint
    def next(self, samples: range) -> Batch:
        return Batch({"x": [*samples]})
"""


def recipe(nodes: int) -> str:
    return f"""
name: head-scale
cluster: {{nodes: {nodes}}}
groups:
  one: {{ranks: {nodes}, device_type: cpu}}
components:
  maker: {{_target_: parts.Maker, group: one}}
pipeline:
  batch: {{call: maker.next, samples: {nodes}}}
run: {{steps: 1000000, dir: runs}}
"""


# The nodes


class Node:
    """A node process, as far as the head sees it, and its worker's events."""

    def __init__(self, number: int, run: RunDir, token: str) -> None:
        self.number, self._run, self._token = number, run, token
        self._nonce = new_nonce()
        self._received = bytearray()
        self._journal: Journal | None = None
        self._step = 0
        self.has_begun = self.has_left = False

    def connect(self, host: str, port: int) -> None:
        self.sock = socket.create_connection((host, port), LIMIT_S)
        self._send(node=self.number, version=__version__, plan="", nonce=self._nonce)
        self.sock.setblocking(False)

    def _send(self, **message: object) -> None:
        with suppress(OSError):  # the head has ended
            self.sock.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> None:
        try:
            part = self.sock.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        self.has_left = not part
        self._received += part
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            self._obey(bytes(line))

    def _obey(self, line: bytes) -> None:
        if line.startswith(b'{"type":"attempt"'):  # large, and of no use here
            self._begin()
            return
        message = json.loads(line)
        if "proof" in message:
            self._send(proof=proof_of(self._token, "node", str(self.number), self._nonce, message["nonce"]))
            self.beat()
            self._send(type="listens", address=f"{HOST}:1")
        elif message.get("type") == "examine":
            found = facts(str(self._run.plan), message["nonce"], json.dumps(message["needs"]))
            self._send(type="examined", facts=found)
        elif message.get("type") == "signal":
            self._send(type="exited", attempt=message["attempt"], group="one", code=0)
            self._send(type="ended", attempt=message["attempt"])
        elif message.get("type") == "leave":
            self.has_left = True

    def _begin(self) -> None:
        self.has_begun = True
        self._journal = Journal(self._run.journal(f"one-{self.number}"), "one", self.number)
        self._journal.write("started", pid=os.getpid())
        self._journal.write("ready", step=0, last=None, source="")

    def beat(self) -> None:
        self._send(type="beat", pid=os.getpid())

    def end_step(self) -> None:
        if self._journal:
            self._step += 1
            self._journal.write_step(StepReport(self._step, seconds=STEP_S))
            self._journal.flush()
            if self._step % PROGRESS_EACH == self.number % PROGRESS_EACH:
                self._send(type="progress", attempt=0, workers=[], moved=[["one", self.number]])


@cache
def facts(plan: str, nonce: str, needs: str) -> dict[str, Any]:
    """Returns what a node reports about itself: the same for all, which are on this machine."""
    run = RunDir.of_plan(Path(plan))
    return on_node.examine(
        Plan.read(run.plan), run, run.read_start(), 0, Needs(**json.loads(needs)), nonce, {}
    )


def simulate(numbers: Sequence[int], run: RunDir, address: str, go: socket.socket) -> None:
    """Simulates nodes until the head or the benchmark ends. Tells `go` when all of them have begun."""
    nodes = [Node(number, run, run.token.read_text().strip()) for number in numbers]
    go.send(b"r")
    go.recv(1)
    selector = selectors.DefaultSelector()
    for node in nodes:
        node.connect(*split(address))
        selector.register(node.sock, selectors.EVENT_READ, node)
    selector.register(go, selectors.EVENT_READ)
    waiting = len(nodes)
    next_beat = [time.monotonic() + BEAT_S * index / len(nodes) for index in range(len(nodes))]
    next_step = [time.monotonic() + STEP_S * index / len(nodes) for index in range(len(nodes))]
    while selector.get_map().keys() - {go.fileno()}:
        for key, _ in selector.select(TICK_S):
            if key.data is None:
                return
            node = key.data
            had_begun = node.has_begun
            node.receive()
            waiting -= node.has_begun and not had_begun
            if node.has_begun and not had_begun and not waiting:
                go.send(b"j")
            if node.has_left:
                selector.unregister(node.sock)
                node.sock.close()
        now = time.monotonic()
        for index, node in enumerate(nodes):
            if now >= next_beat[index] and node.has_begun:
                next_beat[index] = now + BEAT_S
                node.beat()
            if now >= next_step[index] and not waiting:
                next_step[index] += STEP_S
                node.end_step()


@contextmanager
def simulated(count: int, run: RunDir, address: str) -> Iterator[list[socket.socket]]:
    """Yields a connection to each of the processes that simulate nodes, which wait for a byte on it."""
    lines, pids = [], []
    for process in range(PROCESSES):
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if not pid:
            with suppress(BaseException):
                ours.close()
                simulate(range(process, count, PROCESSES), run, address, theirs)
            os._exit(0)
        theirs.close()
        ours.settimeout(LIMIT_S)
        ours.recv(1)
        lines.append(ours)
        pids.append(pid)
    try:
        yield lines
    finally:
        for line in lines:
            line.close()
        for pid in pids:
            os.waitpid(pid, 0)


# The head


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "meshctl", "launch", "recipe.yaml", *ENGINE, *words]


def measured(nodes: int, seconds: float, profile: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "parts.py").write_text(COMPONENTS)
        (folder / "recipe.yaml").write_text(recipe(nodes))
        argv = command()
        if profile:
            argv[1:1] = ["-m", "cProfile", "-o", profile]
        with open(folder / "output", "w") as output:
            head = subprocess.Popen(argv, cwd=folder, stdout=output, stderr=output, start_new_session=True)
        try:
            run = RunDir(awaited(folder, head).parent)
            address = json.loads(run.head.read_text())["address"]
            with simulated(nodes, run, address) as lines:
                return followed(head, run, lines, seconds)
        except (OSError, ValueError) as error:
            sys.exit(f"{error}; the head printed: {(folder / 'output').read_text()[-2000:]}")
        finally:
            if head.poll() is None:
                head.kill()
                head.wait()


def awaited(folder: Path, head: subprocess.Popen[bytes]) -> Path:
    """Waits for the file with the address of the head, and returns its path."""
    until = time.monotonic() + LIMIT_S
    while not (found := [*folder.glob("runs/*/*/head.json")]):
        if head.poll() is not None or time.monotonic() > until:
            raise ValueError("the head has not published its address")
        time.sleep(0.05)
    return found[0]


def followed(
    head: subprocess.Popen[bytes], run: RunDir, lines: Sequence[socket.socket], seconds: float
) -> dict[str, float]:
    """Has the nodes connect, and measures the head until it is ended."""
    before, began = cpu_seconds(head.pid), time.monotonic()
    for line in lines:
        line.send(b"g")
    for line in lines:
        if line.recv(1) != b"j":
            raise ValueError("the nodes have not joined")
    joined, join_cpu = time.monotonic() - began, cpu_seconds(head.pid) - before
    print(f"joined in {joined:.2f} s, {join_cpu:.2f} s of CPU time of the head", flush=True)
    time.sleep(seconds / 10)  # the first step is slower
    before, began, rows = cpu_seconds(head.pid), time.monotonic(), rows_of(run)
    memory: list[int] = []
    while time.monotonic() < began + seconds:
        time.sleep(0.25)
        memory.append(int(Path(f"/proc/{head.pid}/statm").read_text().split()[1]) * resource.getpagesize())
        if head.poll() is not None:
            raise ValueError(f"the head has ended with {head.returncode}")
    used, passed = cpu_seconds(head.pid) - before, time.monotonic() - began
    if (steps := rows_of(run) - rows) < passed / STEP_S / 2:
        raise ValueError(f"{steps} steps are complete after {passed:.0f} s")
    for _ in range(2):
        head.send_signal(signal.SIGTERM)
        time.sleep(1.0)
    head.wait(LIMIT_S)
    quarter = len(memory) // 4
    second, last = statistics.median(memory[quarter : 2 * quarter]), statistics.median(memory[-quarter:])
    print(
        f"{used / passed:.2f} cores, memory {second / 2**20:.0f} MiB, then {last / 2**20:.0f} MiB", flush=True
    )
    return {"joined": joined, "cores": used / passed, "memory": last / second}


def rows_of(run: RunDir) -> int:
    """Returns the number of steps of which the head has the events of all workers."""
    return run.metrics.read_bytes().count(b"\n") if run.metrics.exists() else 0


def dry_run(nodes: int) -> float:
    """Returns the CPU seconds of a dry run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "parts.py").write_text(COMPONENTS)
        (folder / "recipe.yaml").write_text(recipe(nodes))
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        done = subprocess.run(command("--dry-run"), cwd=folder, check=True, capture_output=True, text=True)
        after, passed = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - began
    if done.stdout.count("--node ") < nodes:
        sys.exit(f"the dry run has not printed {nodes} commands: {done.stdout[:500]}")
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"dry run of {nodes} nodes: {seconds:.2f} s of CPU time, {passed:.2f} s", flush=True)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--dry-nodes", type=int, default=4096)
    parser.add_argument("--profile", default="", help="a file for a profile of the head")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    found = {"dry run": dry_run(args.dry_nodes)}
    found |= measured(args.nodes, args.seconds, args.profile)
    worst, *others = sorted(
        ({"what": what, "value": round(value, 3), "goal": GOALS[what]} for what, value in found.items()),
        key=lambda case: -float(case["value"]) / float(case["goal"]),
    )
    ok = all(value <= GOALS[what] for what, value in found.items())
    print(json.dumps({"name": "head_scale", **worst, "ok": ok, "load": os.getloadavg()[0], "others": others}))


if __name__ == "__main__":
    main()
