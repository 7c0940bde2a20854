"""The nodes that Slurm has allocated, as the environment of a job describes them, and their use by a plan."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

from meshctl.dataclass import dataclass
from meshctl.engines.engine import CannotStart
from meshctl.engines.slurm.job import call
from meshctl.plan.model import Plan
from meshctl.plan.node_sets import node_sets
from meshctl.text.english import counted


@dataclass(frozen=True)
class Share:
    """The hosts of one set of the plan's nodes."""

    hosts: tuple[str, ...]
    """By the place of the node in its set."""
    component: int | None = None
    """The component of a heterogeneous job; None in another job."""


@dataclass(frozen=True)
class Allocation:
    components: tuple[tuple[str, ...], ...]
    """The hosts of each component."""
    is_heterogeneous: bool

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Allocation:
        """Returns the allocation of a job. Raises `CannotStart` if its hosts are unknown."""
        size = int(environ.get("SLURM_HET_SIZE", "0") or 0)
        names = [f"SLURM_JOB_NODELIST_HET_GROUP_{index}" for index in range(size)]
        lists = [environ.get(name, "") for name in names or ["SLURM_JOB_NODELIST"]]
        return cls(tuple(hosts_of(text) for text in lists), bool(size))

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(host for component in self.components for host in component)

    def shares(self, plan: Plan) -> tuple[Share, ...]:
        """Returns the hosts of each set of the plan's nodes. The sets are the components of a heterogeneous
        job, or else neighbouring hosts of the only one. Raises `CannotStart` if there are too few hosts."""
        sets, found, begin = node_sets(plan), list[Share](), 0
        if self.is_heterogeneous and len(self.components) < len(sets):
            raise CannotStart(
                f"the plan has {counted(len(sets), 'set')} of equal nodes, and the allocation "
                f"{counted(len(self.components), 'component')}"
            )
        for index, alike in enumerate(sets):
            hosts = self.components[index if self.is_heterogeneous else 0]
            if not self.is_heterogeneous:
                hosts, begin = hosts[begin:], begin + alike.count
            if len(hosts) < alike.count:
                raise CannotStart(
                    f"the plan has {counted(plan.cluster.nodes, 'node')}, and the allocation is too small: "
                    f"{counted(len(self.hosts), 'node')}"
                )
            found.append(Share(hosts[: alike.count], index if self.is_heterogeneous else None))
        return tuple(found)

    def address_of(self, host: str) -> str:
        """Returns the address of a host, as Slurm knows it."""
        try:
            shown = call("scontrol", "--oneliner", "show", "node", host).stdout.split()
        except (OSError, subprocess.SubprocessError):
            return host
        return next((word[9:] for word in shown if word.startswith("NodeAddr=")), host)


def hosts_of(text: str) -> tuple[str, ...]:
    """Returns the hosts of a list such as n[1-3,7]. Raises `CannotStart`."""
    if not any(letter in text for letter in "[,"):
        return (text,) if text else ()
    try:
        done = call("scontrol", "show", "hostnames", text)
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotStart(f"scontrol cannot be started: {error}") from error
    if done.returncode:
        raise CannotStart(f"scontrol does not know the hosts {text}: {done.stderr.strip()}")
    return tuple(done.stdout.split())
