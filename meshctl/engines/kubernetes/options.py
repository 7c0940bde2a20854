"""The options of `engine.jobset`, and what follows from them for the pods of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import PurePosixPath
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.plan.model import Plan
from meshctl.plan.node_sets import NodeSet
from meshctl.run.directory import RunDir
from meshctl.text.kubernetes_names import RESOURCES, label_of

RUNS = "/meshctl/runs"
"""The folder of runs in a pod without volumes."""
MIB = 1 << 20
SHM_BYTES = 512 * MIB
"""Bytes of /dev/shm for NCCL and loaders of data, which `doctor` recommends as well."""
WORKER_SHM_BYTES = 64 * MIB
"""Bytes of /dev/shm for each worker."""
GRACE_S = 30.0
"""Seconds that the pods have in addition to `run.grace`, to end after the run has stopped."""
SECRET_KEY = re.compile(r"(?P<secret>[^/]+)/(?P<key>[^ ]+)(?: as (?P<variable>.+))?")


@dataclass(frozen=True)
class JobSetOptions:
    """See `recipe/jobset_fields.py`."""

    image: str = ""
    pull_policy: str = ""
    name: str = ""
    namespace: str = ""
    context: str = ""
    queue: str = ""
    priority: str = ""
    scheduler: str = ""
    volcano_queue: str = ""
    labels: Mapping[str, str] | None = None
    annotations: Mapping[str, str] | None = None
    volumes: Mapping[str, Mapping[str, Any]] | None = None
    run_dir: str = ""
    code: str = ""
    env_from: Sequence[str] = ()
    shm_size: int = 0
    resources: Mapping[str, str] | None = None
    device_resources: Mapping[str, str] | None = None
    service_account: str = ""
    pull_with: str = ""
    node_selector: Mapping[str, str] | None = None
    tolerations: Sequence[Mapping[str, str]] = ()
    host_network: bool = False
    port: int = 29400
    time_limit: float = 0.0
    grace: float | None = None
    max_restarts: int = 0
    setup: Sequence[str] = ()
    join_limit: float = 300.0
    lease: float = field(default=15.0)

    def job_name(self, plan: Plan, run: RunDir) -> str:
        """Returns the name of the JobSet of a run."""
        return f"{label_of(self.name or plan.name)}-{label_of(f't{run.path.name}')[1:]}"

    def folder(self, plan: Plan, run: RunDir) -> PurePosixPath:
        """Returns the run directory as the pods see it. Where a volume contains the run directory of the
        launcher, both see the same files."""
        volumes = [PurePosixPath(volume["path"]) for volume in (self.volumes or {}).values()]
        if not self.run_dir and any(run.path.is_relative_to(path) for path in volumes):
            return PurePosixPath(run.path)
        runs = self.run_dir or (volumes[0] / "runs" if volumes else RUNS)
        return PurePosixPath(runs) / plan.name / run.path.name

    def shm_bytes(self, plan: Plan, nodes: NodeSet) -> int:
        """Returns the size of /dev/shm of each pod of some nodes, in bytes."""
        if self.shm_size:
            return self.shm_size
        workers = {name: _workers_on(plan, name, nodes) for name in nodes.groups}
        return SHM_BYTES + WORKER_SHM_BYTES * sum(workers.values()) + _bytes_in_flight(plan, workers)

    def device_limits(self, nodes: NodeSet) -> dict[str, str]:
        """Returns resource -> count of the devices of each pod of some nodes."""
        names = {**RESOURCES, **(self.device_resources or {})}
        return {names[kind]: str(count) for kind, count in nodes.devices.items() if kind in names}

    def grace_s(self, plan: Plan) -> int:
        return round(plan.run.grace + GRACE_S if self.grace is None else self.grace)

    def secret_variables(self) -> list[dict[str, Any]]:
        """Returns the environment variables that have keys of Secrets as values."""
        found = [match for text in self.env_from if (match := SECRET_KEY.fullmatch(text))]
        return [
            {
                "name": one["variable"] or one["key"],
                "valueFrom": {"secretKeyRef": {"name": one["secret"], "key": one["key"]}},
            }
            for one in found
        ]


def code_folders(options: JobSetOptions, path: Sequence[str]) -> tuple[str, ...]:
    """Returns the folders of the recipe's code as the pods see them; `path` are those of the launcher."""
    return (options.code,) if options.code else tuple(path)


def _workers_on(plan: Plan, group: str, nodes: NodeSet) -> int:
    """Returns the greatest number of workers of a group on one of the nodes."""
    first, last = nodes.nodes[0][0], nodes.nodes[-1][1]
    return max(run.each for run in plan.node_runs(group) if run.first_node < last and run.last_node >= first)


def _bytes_in_flight(plan: Plan, workers: Mapping[str, int]) -> int:
    """Returns the bytes of the values that wait in the slots of routes on one node, as far as the recipe
    states them. `workers` are those of each group on the node."""
    total = 0
    for route in plan.routes:
        source = plan.stage(route.source)
        group = plan.group_of(source)
        if route.kind == "data" and group in workers:
            share = -(-source.samples * workers[group] // plan.group(group).workers)
            total += route.slots * share * source.sample_bytes
    return total
