"""MC602, MC603, MC612 and MC630: what the engine of a recipe needs, and what it must not state."""

from __future__ import annotations

from collections.abc import Iterator

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.rules.facts import Facts
from meshctl.text.english import counted

OWN_RESOURCES = ("CPU", "GPU", "NPU")
"""The resources of Ray that the plan needs by itself."""


def hosts_are_given(facts: Facts) -> Iterator[Diagnostic]:
    """The engine `ssh` has a list of hosts, or a file with them."""
    engine = facts.recipe.engine
    if engine.name != "ssh" or not facts.is_valid("engine") or engine.options["hosts"]:
        return
    if not engine.options["hosts_file"]:
        message = "engine `ssh` needs `engine.ssh.hosts`, or `engine.ssh.hosts_file`"
        help = "write `engine: {ssh: {hosts: [a, b]}}`, or engine.ssh.hosts=[a,b] on the command line"
        span = facts.key("engine", "ssh") if facts.node("engine", "ssh") else facts.value("engine")
        yield Diagnostic("MC602", message, span, help=help, missing=True)


def hosts_fit_the_nodes(facts: Facts) -> Iterator[Diagnostic]:
    """There is a host for each node of the cluster, and no host is listed twice."""
    engine = facts.recipe.engine
    hosts = engine.options.get("hosts", ()) if facts.is_valid("engine") else ()
    if not hosts:
        return
    for index, host in enumerate(hosts):
        if host in hosts[:index]:
            message, span = (
                f"host `{host}` is listed twice",
                facts.item("engine", "ssh", "hosts", index=index),
            )
            yield Diagnostic("MC603", message, span, help="list each host once: it is one node")
            return
    if facts.allocation and len(hosts) < facts.allocation.cluster.nodes:
        nodes, span = counted(facts.allocation.cluster.nodes, "node"), facts.value("engine", "ssh", "hosts")
        message = f"the recipe has {nodes}, and `engine.ssh.hosts` lists {counted(len(hosts), 'host')}"
        yield Diagnostic("MC603", message, span, help="list a host for each node, in the order of the nodes")


def resources_follow_from_the_groups(facts: Facts) -> Iterator[Diagnostic]:
    """`engine.ray.resources` does not contain those that follow from the groups."""
    engine = facts.recipe.engine
    if engine.name != "ray" or not facts.is_valid("engine"):
        return
    for name in engine.options["resources"] or {}:
        if name in OWN_RESOURCES:
            help = "remove it: GPUs and NPUs are the devices of the groups, and `engine.ray.cpus` the CPUs"
            message = f"`engine.ray.resources` contains `{name}`, which follows from the recipe"
            yield Diagnostic("MC630", message, facts.key("engine", "ray", "resources", name), help=help)


def gres_fits_the_groups(facts: Facts) -> Iterator[Diagnostic]:
    """The groups need no more devices on a node than `engine.slurm.gres` states."""
    gres = facts.recipe.engine.options.get("gres", "") if facts.is_valid("engine") else ""
    count, allocation = str(gres).rpartition(":")[2], facts.allocation
    if not count.isdigit() or allocation is None:
        return
    cluster = allocation.cluster
    for name, ranges in allocation.devices.items():
        kind = facts.recipe.groups[name].device_type
        pieces = [piece for start, stop in ranges for piece in cluster.pieces(kind, start, stop)]
        needed = max((piece.number + piece.each for piece in pieces), default=0)
        if needed > int(count):
            message = (
                f"`engine.slurm.gres` gives {counted(int(count), 'device')}, and `{name}` needs {needed}"
            )
            help = f"write {gres.rpartition(':')[0]} without a number, which adds the number that is needed"
            span = facts.value("engine", "slurm", "gres")
            yield Diagnostic("MC612", message, span, help=help)
            return


RULES = (hosts_are_given, hosts_fit_the_nodes, resources_follow_from_the_groups, gres_fits_the_groups)
