"""A Ray cluster on this machine, as a process that has a raylet for each of its machines and obeys lines: `add`,
`kill`, `left`."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

CPUS = 3
STORE_BYTES = 80 << 20


class RayCluster:
    def __init__(self, machines: int) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(machines)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.address = ""

    def begin(self) -> None:
        """Waits until all machines run."""
        self.address = self._answer()

    def add(self) -> None:
        """Adds a machine."""
        self._ask("add")

    def kill_machine(self) -> None:
        """Kills the raylet of the oldest machine beside the head's one."""
        self._ask("kill")

    def left(self) -> list[str]:
        """Returns the placement groups and actors that are left."""
        found: list[str] = self._ask("left")
        return found

    def close(self) -> None:
        self._process.communicate("", timeout=120)
        self._errors.close()

    def _ask(self, line: str) -> Any:
        assert self._process.stdin
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout
        for line in self._process.stdout:
            if line.startswith("> "):
                return json.loads(line[2:])
        self._errors.seek(0)
        raise AssertionError(f"the cluster has ended: {self._errors.read()}")


@contextmanager
def ray_cluster(machines: int) -> Iterator[RayCluster]:
    cluster = RayCluster(machines)
    try:
        cluster.begin()
        yield cluster
    finally:
        cluster.close()


def main(machines: int) -> None:
    import ray
    from ray._private.state import actors
    from ray.cluster_utils import Cluster
    from ray.util import placement_group_table

    settings = {"num_cpus": CPUS, "object_store_memory": STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args={**settings, "include_dashboard": False})
    nodes = [cluster.add_node(**settings) for _ in range(machines - 1)]
    ray.init(cluster.address, log_to_driver=False)
    print(">", json.dumps(cluster.address), flush=True)
    for line in sys.stdin:
        word = line.strip()
        answer: list[str] = []
        if word == "add":
            nodes.append(cluster.add_node(**settings))
        elif word == "kill":
            cluster.remove_node(nodes.pop(0), allow_graceful=False)
        elif word == "left":
            groups = [one["name"] for one in placement_group_table().values() if one["state"] != "REMOVED"]
            alive = [one["ActorClassName"] for one in actors().values() if one["State"] != "DEAD"]
            answer = [*groups, *alive]
        print(">", json.dumps(answer), flush=True)
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
