"""The driver of a run in a Ray cluster: a process beside the launcher, so that no thread, signal handler or
message of Ray is in the launcher, and a lost cluster ends this process only.

    python -m meshctl.engines.ray_driver DESCRIPTOR      a socket to the launcher (`ray.py`)

    launcher -> driver    {"type": "begin", "address": ADDRESS, "namespace": NAME, "name": NAME,
                           "limit_s": seconds or null, "bundles": [{"CPU": n, ...}, ...],
                           "scripts": [SCRIPT, ...], "token": TOKEN, "environ": {...},
                           "archive": DESCRIPTOR or null}
                          {"type": "start", "starts": [[BUNDLE, NUMBER], ...]}, {"type": "kill"}
    driver -> launcher    {"type": "placed", "hosts": [NAME, ...]}      the machine of each bundle
                          {"type": "refused", "error": why, "bundles": [BUNDLE, ...]}
                          {"type": "exited", "start": [BUNDLE, NUMBER], "code": n, "output": TEXT}
                          {"type": "died", "start": [BUNDLE, NUMBER], "error": why}

It makes one placement group with a bundle for each node, each on another machine (STRICT_SPREAD), and starts
an actor in each bundle. NUMBER counts the starts of a bundle. When the launcher closes its end of the socket,
or dies, the driver kills the actors and removes the placement group. When it is killed itself, Ray does so.
"""

from __future__ import annotations

import logging
import math
import os
import select
import socket
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.engines import ray_actor
from meshctl.engines.connection import MESSAGE_BYTES_MAX
from meshctl.network.addresses import split
from meshctl.network.connection import Connection, Message
from meshctl.text.english import counted

POLL_S = 0.2
"""Seconds between two looks at the actors."""
BUSY_S = 5.0
"""Seconds for which a bundle waits for resources that are in use, if no limit is given."""
REACH_S = 5.0
"""Time limit to connect to the address of the cluster."""
STARTS_MAX = 3
"""The number of starts of an actor whose machine dies before the actor runs. Ray may place one on a machine
whose death it has not noticed."""
HIDDEN = ("memory", "object_store_memory", "node:", "accelerator_type:", "bundle_group")
"""Beginnings of the names of resources that a message leaves out, unless a node needs them."""
SHAPES_MAX = 6
"""The number of kinds of nodes that a message describes."""


@dataclass(frozen=True)
class _Node:
    actor: Any
    result: Any
    """The reference to what `MeshctlNode.run` returns."""
    number: int
    begun: Any
    """The reference to what `MeshctlNode.begin` returns."""


@dataclass(frozen=True)
class Machine:
    """A node of the Ray cluster."""

    name: str
    total: Mapping[str, float]
    free: Mapping[str, float]


class Driver:
    def __init__(self, connection: Connection) -> None:
        import ray

        self._ray, self._connection = ray, connection
        self._order: Message = {}
        """The first message of the launcher."""
        self._actor_class: Any = ray.remote(ray_actor.MeshctlNode)
        self._archive: Any = None
        """The archive of the recipe's folder in Ray's store, if it is shipped."""
        self._is_connected = False
        self._group: Any = None
        self._nodes: dict[int, _Node] = {}
        """Bundle -> its actor."""
        self._waiting: dict[int, int] = {}
        """Bundle -> the number of its start, until the placement group has its machines."""
        self._tries: dict[int, int] = {}
        """Bundle -> how often its present start was tried on a machine that died."""
        self._deadline = math.inf

    def run(self) -> None:
        """Runs until the launcher closes the connection."""
        while not self._connection.is_closed:
            writing = [self._connection] if self._connection.has_unsent else []
            if select.select([self._connection], writing, [], POLL_S)[1]:
                self._connection.flush()
            for message in self._connection.receive():
                self._obey(message)
            if self._waiting:
                self._place()
            self._report()

    def close(self) -> None:
        """Kills the actors, and removes the placement group."""
        with suppress(Exception):  # the cluster may be gone
            self._kill()
        with suppress(Exception):
            if self._group:
                self._ray.util.remove_placement_group(self._group)
        with suppress(Exception):
            self._ray.shutdown()

    @property
    def _bundles(self) -> list[dict[str, float]]:
        bundles: list[dict[str, float]] = self._order["bundles"]
        return bundles

    def _connect(self) -> None:
        """Connects to the cluster. Reports why it cannot be reached."""
        address, namespace = self._order["address"], self._order["namespace"]
        try:
            with suppress(ValueError):  # other forms of an address are Ray's
                target = split(address.removeprefix("ray://"))  # which Ray would try for minutes
                socket.create_connection(target, timeout=REACH_S).close()
            self._ray.init(address, namespace=namespace, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # Ray raises what its sockets, versions and configuration cause
            why = f"there is no Ray cluster at `{address}`: {first_line(error)}"
            self._send("refused", error=why, bundles=[*range(len(self._bundles))])
            return
        self._is_connected = True
        if (file := self._order["archive"]) is not None:
            self._archive = self._ray.put(os.pread(file, os.fstat(file).st_size, 0))

    def _obey(self, message: Message) -> None:
        if message["type"] == "begin":
            self._order = message
            self._connect()
        elif message["type"] == "kill":
            self._kill()
        elif self._is_connected:
            for bundle, _ in message["starts"]:
                self._tries.pop(bundle, None)
                if old := self._nodes.pop(bundle, None):
                    self._ray.kill(old.actor)
            self._wait_for(dict(message["starts"]))

    def _kill(self) -> None:
        self._waiting, self._tries = {}, dict.fromkeys(self._nodes, STARTS_MAX)
        for node in self._nodes.values():
            self._ray.kill(node.actor)

    # Placing

    def _wait_for(self, starts: dict[int, int]) -> None:
        self._waiting = starts
        limit_s: float | None = self._order["limit_s"]
        self._deadline = time.monotonic() + (BUSY_S if limit_s is None else limit_s)
        if self._group is None:
            self._group = self._ray.util.placement_group(
                self._bundles, strategy="STRICT_SPREAD", name=self._order["name"]
            )

    def _place(self) -> None:
        """Starts the waiting actors if each bundle has a machine; gives up at the deadline."""
        table = self._ray.util.placement_group_table(self._group)
        if table["state"] == "CREATED":
            places = table["bundles_to_node_id"]
            names = {node["NodeID"]: name_of(node) for node in self._ray.nodes()}
            self._send("placed", hosts=[names.get(places[index], "") for index in range(len(self._bundles))])
            waiting, self._waiting = self._waiting, {}
            for bundle, number in waiting.items():
                self._nodes[bundle] = self._started(bundle, number)
        elif time.monotonic() > self._deadline:
            bundles, self._waiting = sorted(self._waiting), {}
            from ray._private.state import available_resources_per_node  # the public API has sums only

            free, nodes = available_resources_per_node(), self._ray.nodes()
            machines = [
                Machine(name_of(node), node["Resources"], free.get(node["NodeID"], {}))
                for node in nodes
                if node["Alive"]
            ]
            self._send("refused", error=why_not(self._bundles, machines), bundles=bundles)

    def _started(self, bundle: int, number: int) -> _Node:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        needs, order = dict(self._bundles[bundle]), self._order
        options = {
            "num_cpus": needs.pop("CPU", 0),
            "num_gpus": needs.pop("GPU", 0),
            "resources": needs,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self._group, bundle),
        }
        actor = self._actor_class.options(**options).remote()
        begun = actor.begin.remote()
        result = actor.run.remote(order["scripts"][bundle], order["token"], order["environ"], self._archive)
        return _Node(actor, result, number, begun)

    def _is_tried_again(self, bundle: int, node: _Node) -> bool:
        """Starts an actor again that died before it ran."""
        try:
            self._ray.get(node.begun, timeout=0)
        except Exception:  # it did not run
            self._tries[bundle] = self._tries.get(bundle, 1) + 1
            if self._tries[bundle] <= STARTS_MAX:
                self._wait_for({**self._waiting, bundle: node.number})
                return True
        return False

    # Reporting

    def _report(self) -> None:
        """Sends the ends of actors to the launcher."""
        for bundle, node in list(self._nodes.items()):
            if not self._ray.wait([node.result], timeout=0)[0]:
                continue
            del self._nodes[bundle]
            start = [bundle, node.number]
            try:
                code, output = self._ray.get(node.result)
            except Exception as error:  # the actor or its machine died
                if not self._is_tried_again(bundle, node):
                    self._send("died", start=start, error=why_dead(error))
            else:
                self._send("exited", start=start, code=code, output=output)
                self._ray.kill(node.actor)

    def _send(self, kind: str, **values: Any) -> None:
        self._connection.send({"type": kind, **values})


def name_of(node: Mapping[str, Any]) -> str:
    """Returns the name of a node of the cluster in messages."""
    host, address = node["NodeManagerHostname"], node["NodeManagerAddress"]
    return host if host == address else f"{host} ({address})"


def first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def why_dead(error: Exception) -> str:
    """Returns the reason in an error of Ray about an actor, which is one of several lines."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = next((line for line in lines if "because" in line), first_line(error))
    return reason.partition("because ")[2].partition(". ")[0].rstrip(".") or reason


def why_not(bundles: Sequence[Mapping[str, float]], machines: Sequence[Machine]) -> str:
    """Returns why a cluster does not hold the bundles, and what it has."""

    def has_machine(bundle: Mapping[str, float]) -> bool:
        totals = [machine.total for machine in machines]
        return any(all(has.get(name, 0.0) >= count for name, count in bundle.items()) for has in totals)

    names = sorted({name for bundle in bundles for name in bundle})
    if len(bundles) > len(machines):
        problem = f"the plan has {counted(len(bundles), 'node')}, each on a machine of its own"
    elif alone := [node for node, one in enumerate(bundles) if not has_machine(one)]:
        more = f", as do {counted(len(alone) - 1, 'other node')}" if len(alone) > 1 else ""
        problem = f"node {alone[0]} needs {amounts(bundles[alone[0]])}{more}, which no machine has"
    else:
        problem = f"the nodes need {shapes([amounts(one) for one in bundles])}"
    kinds = shapes([_machine(one, names) for one in machines])
    has = f"the cluster has {counted(len(machines), 'machine')}: {kinds}"
    return f"the Ray cluster cannot hold the plan: {problem}; {has}"


def _machine(machine: Machine, names: Sequence[str]) -> str:
    """Returns what a machine has of these resources and of others, and what of it is free."""
    shown = {
        name: amount for name, amount in machine.total.items() if name in names or not name.startswith(HIDDEN)
    }
    free = {name: machine.free.get(name, 0.0) for name in shown}
    is_free = all(free[name] == amount for name, amount in shown.items())
    return amounts(shown) + ("" if is_free else f" (free: {amounts(free)})")


def amounts(resources: Mapping[str, float]) -> str:
    """Returns `4 CPU, 8 GPU`."""
    return ", ".join(f"{amount:g} {name}" for name, amount in sorted(resources.items())) or "nothing"


def shapes(texts: Sequence[str]) -> str:
    """Returns equal texts once, with their number: `2 x 16 CPU; 1 x 8 CPU`."""
    found = Counter(texts).most_common()
    more = f" and {len(found) - SHAPES_MAX} other kinds" if len(found) > SHAPES_MAX else ""
    return "; ".join(f"{count} x {text}" for text, count in found[:SHAPES_MAX]) + more


def main(descriptor: int) -> int:
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(ray_actor)
    connection = Connection(socket.socket(fileno=descriptor))
    connection.message_bytes_max = MESSAGE_BYTES_MAX
    driver = Driver(connection)
    try:
        driver.run()
    finally:
        driver.close()
    return 0


if __name__ == "__main__":
    code = main(int(sys.argv[1]))
    sys.stdout.flush()
    os._exit(code)  # the destructors of Ray's threads may wait for a cluster that is gone
