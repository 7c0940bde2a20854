"""The machines of a running Ray cluster: one placement group with a bundle for each node of the plan, and in
each an actor that runs `meshctl agent`. The supervisor is in the launcher.

    launcher    the supervisor
      driver        connects to Ray, see `ray_driver`; ends with its socket to the launcher
    machine of the cluster
      actor         MeshctlNode of `ray_actor`
        agent           its child; ends with the standard input that the actor holds
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, BinaryIO

from meshctl.engines.connection import MESSAGE_BYTES_MAX
from meshctl.engines.engine import CannotStart, Command, Exited, Handle, Job, Rendered, groups_on, nodes_of
from meshctl.engines.node.termination import GRACE_S
from meshctl.engines.remote import RemoteEngine, last_error, refusals, script_of
from meshctl.network.connection import Connection, Message
from meshctl.package import install_command, installed_version
from meshctl.plan.model import Plan
from meshctl.run.directory import NO_START, RunDir, Start, write_whole

RESOURCES = {"cuda": "GPU", "npu": "NPU"}
"""Device type -> the name of its resource in Ray."""
ANSWER_S = 60.0
"""Seconds within which the driver must have reached the cluster."""
CLOSE_S = 10.0
"""Seconds that the driver has to remove the placement group."""
POLL_S = 0.05
"""Seconds between two looks for the ends of nodes, at the end of a run."""


class RayEngine(RemoteEngine):
    def __init__(
        self,
        address: str = "auto",
        namespace: str = "meshctl",
        cpus: int | None = None,
        resources: Mapping[str, float] | None = None,
        env: Sequence[Sequence[str | None]] = (),
        placement_limit: float | None = None,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self._address, self._namespace, self._limit_s = address, namespace, placement_limit
        self._cpus, self._resources = cpus, dict(resources or {})
        self._env = [(str(name), value) for name, value in env]

    def preflight(self, plan: Plan, start: Start) -> None:
        if not installed_version("ray"):
            raise CannotStart(f"engine `ray` needs ray, which is not installed: {install_command('ray')}")
        for name, value in self._env:
            if value is None and name not in os.environ:
                raise CannotStart(f"`engine.ray.env` passes {name} through, which is not set here")
        super().preflight(plan, start)

    def bundles(self, plan: Plan) -> list[dict[str, float]]:
        """Returns what each node of the plan needs, by its number: a CPU for each worker, if the option does
        not state the CPUs of a node, its devices, and the resources of the option."""
        found = []
        for node in nodes_of(plan):
            devices, workers = dict[str, set[int]](), 0
            for group in groups_on(plan, node):
                name = RESOURCES.get(plan.group(group).device_type, "")
                for worker in plan.workers(group, node):
                    workers += 1
                    if name:
                        devices.setdefault(name, set()).update(worker.devices)
            counts = {name: float(len(found)) for name, found in devices.items()}
            cpus = float(workers if self._cpus is None else self._cpus)
            found.append({**({"CPU": cpus} if cpus else {}), **counts, **self._resources})
        return found

    def prepared(self, command: Command) -> Command:
        return Command(command.node, ("sh", "-c", script_of(self.setup, command.argv, self.ships)))

    def render(
        self, plan: Plan, run: RunDir, head: str, start: Start = NO_START, recipe: str = ""
    ) -> Rendered:
        group = {"strategy": "STRICT_SPREAD", "bundles": self.bundles(plan)}
        files = {run.submitted / "placement_group.json": json.dumps(group, indent=2) + "\n"}
        return replace(super().render(plan, run, head), files=files)

    def start(self, job: Job) -> Handle:
        rendered = self.render(job.plan, job.run, job.head)
        for path, text in rendered.files.items():
            write_whole(path, text)
        order = {
            "type": "begin",
            "address": self._address,
            "namespace": self._namespace,
            "name": f"meshctl/{job.plan.name}/{job.run.path.name}",
            "limit_s": self._limit_s,
            "bundles": self.bundles(job.plan),
            "scripts": [command.argv[-1] for command in rendered.commands],
            "token": job.token,
            "environ": {name: os.environ[name] if value is None else value for name, value in self._env},
        }
        return RayHandle(job, order, self.archive(job))


class RayHandle(Handle):
    """The driver, which is a child of this process, and through it the actors. Bundle I is that of the I-th
    node of the plan."""

    def __init__(self, job: Job, order: Message, archive: BinaryIO | None) -> None:
        self._job, self._archive = job, archive
        self._order = {**order, "archive": archive.fileno() if archive else None}
        self._nodes = nodes_of(job.plan)
        self._hosts: list[str] = []
        """The machine of each bundle, once they are placed."""
        self._starts = [0] * len(self._nodes)
        """The number of starts of each bundle. Messages about an earlier start are dropped."""
        self._open: set[int] = set()
        """The bundles whose actors have not ended."""
        self._start_driver(range(len(self._nodes)))

    def _start_driver(self, bundles: Iterable[int]) -> None:
        ours, theirs = socket.socketpair()
        log = self._job.run.ray_log
        log.parent.mkdir(parents=True, exist_ok=True)
        with theirs, log.open("ab") as output:
            self._driver = subprocess.Popen(
                [sys.executable, "-m", "meshctl.engines.ray_driver", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[theirs.fileno(), *([self._archive.fileno()] if self._archive else [])],
                start_new_session=True,
            )
        self._connection = Connection(ours)
        self._connection.message_bytes_max = MESSAGE_BYTES_MAX
        self._connection.send(self._order)
        self._until = time.monotonic() + ANSWER_S
        self._is_placed = False
        self._begin(bundles)

    def _begin(self, bundles: Iterable[int]) -> None:
        for bundle in bundles:
            self._open.add(bundle)
            self._starts[bundle] += 1
        starts = [[bundle, self._starts[bundle]] for bundle in bundles]
        self._connection.send({"type": "start", "starts": starts})

    def files(self) -> list[int]:
        return [] if self._connection.is_closed else [self._connection.fileno()]

    def poll(self) -> list[Exited]:
        exited: list[Exited] = []
        if not self._connection.is_closed:
            self._connection.flush()
            for message in self._connection.receive():
                exited += self._on_message(message)
        if self._connection.is_closed and self._open:
            self._is_placed = True
            problem = f"the driver of the run in the cluster has ended; its log is {self._job.run.ray_log}"
            exited += [self._died(bundle, problem) for bundle in sorted(self._open)]
        elif not self._is_placed and self._open and time.monotonic() > self._until:
            reason = f"the Ray cluster has not answered for {ANSWER_S:.0f} s"
            exited += [self._refused(bundle, reason) for bundle in sorted(self._open)][:1]
        return exited

    def _on_message(self, message: Message) -> list[Exited]:
        if message["type"] == "placed":
            self._hosts, self._is_placed = message["hosts"], True
            return []
        if message["type"] == "refused":
            self._is_placed = True
            refused = self._open.intersection(message["bundles"])
            found = [self._refused(bundle, message["error"]) for bundle in sorted(refused)]
            return found if self._open else found[:1]  # one report for all nodes, unless others run
        bundle, start = message["start"]
        if bundle not in self._open or start != self._starts[bundle]:
            return []
        if message["type"] == "died":
            return [self._died(bundle, message["error"])]
        return [self._exited(bundle, message["code"], message["output"])]

    def _refused(self, bundle: int, reason: str) -> Exited:
        """Returns the report of a node for which the cluster lacks something."""
        self._open.discard(bundle)
        return Exited("the Ray cluster", 1, str(self._job.run.ray_log), self._nodes[bundle], reason=reason)

    def _died(self, bundle: int, problem: str) -> Exited:
        self._open.discard(bundle)
        what = f"the Ray actor of {self._where(bundle)}"
        return Exited(what, -signal.SIGKILL, node=self._nodes[bundle], reason=f"{what} died: {problem}")

    def _exited(self, bundle: int, code: int, output: str) -> Exited:
        self._open.discard(bundle)
        log, where = self._job.run.node_log(self._nodes[bundle]), self._where(bundle)
        with suppress(OSError), log.open("a", encoding="utf-8") as file:
            file.write(output)
        reason = refusals(where, "engine.ray", last_error(log)).get(code, "")
        return Exited(f"the node process of {where}", code, str(log), self._nodes[bundle], reason=reason)

    def _where(self, bundle: int) -> str:
        host = f" on {self._hosts[bundle]}" if self._hosts else ""
        return f"node {self._nodes[bundle]}{host}"

    def kill(self) -> None:
        if not self._connection.is_closed:
            self._connection.send({"type": "kill"})

    def restart(self, nodes: Sequence[int]) -> bool:
        bundles = [self._nodes.index(node) for node in nodes]
        if self._connection.is_closed or self._driver.poll() is not None:
            self._end_driver()
            self._start_driver(bundles)
        else:
            self._begin(bundles)
        return True

    def close(self) -> None:
        end = time.monotonic() + GRACE_S
        while self._open and time.monotonic() < end:
            self.poll()
            time.sleep(POLL_S)
        self._end_driver()
        if self._archive:
            self._archive.close()

    def _end_driver(self) -> None:
        """Closes the connection, and kills a driver that does not end with it."""
        if not self._connection.is_closed:
            self._connection.close()
        try:
            self._driver.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._driver.kill()
            self._driver.wait()
