"""MC587, MC602, MC603, MC612, MC613 and MC630: what the engine of a recipe needs, and must not state."""

from __future__ import annotations

import re
from collections.abc import Iterator

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.compose.yaml_tree import leaves
from meshctl.recipe.rules.facts import Facts
from meshctl.recipe.slurm_fields import slurm_seconds
from meshctl.text.english import counted, in_units

CONTROL = re.compile("[\x00-\x1f\x7f\x85\u2028\u2029]")
"""Characters that end a line of a script, or that a terminal obeys."""
ELSEWHERE = {"setup", "annotations", "labels", "node_selector", "namespace", "queue", "priority"}
"""Options of engines whose texts may have several lines, and those that `jobset.py` checks."""
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


def texts_are_single_values(facts: Facts) -> Iterator[Diagnostic]:
    """No text of an engine contains a control character, and no host looks like an option of ssh. Scripts,
    command lines and manifests contain these texts."""
    node = facts.node("engine")
    for path, leaf in leaves(node) if node is not None and facts.is_valid("engine") else ():
        message, text = "", leaf.value if isinstance(leaf.value, str) else ""
        if path[1:2] == ("hosts",) and text.startswith("-"):
            message, help = f"ssh would read the host `{text}` as an option", "see `engine.ssh.ssh_options`"
        elif not ELSEWHERE & {*path} and (odd := CONTROL.search("".join((*path, text)))):
            message = (
                f"`{'.'.join(('engine', *path[:2]))}` contains the control character U+{ord(odd[0]):04X}"
            )
            help = "write it in one line, without this character"
        if message:
            yield Diagnostic("MC613", message, leaf.span, help=help)


def run_ends_within_its_job(facts: Facts) -> Iterator[Diagnostic]:
    """The scheduler does not end the job before `run.time_limit`, unless it is queued again."""
    engine, limit = facts.recipe.engine, facts.recipe.run.time_limit
    key = {"slurm": "time", "jobset": "time_limit"}.get(engine.name, "")
    if not key or not limit or not facts.is_valid("engine") or not facts.is_valid("run", "time_limit"):
        return
    stated, span = engine.options[key], facts.value("engine", engine.name, key)
    of_job = slurm_seconds(stated) if isinstance(stated, str) else stated
    if 0 < of_job < limit and not engine.options.get("requeue"):
        seconds = (facts.value("run", "time_limit").with_word(f"the run may last {in_units(limit)}"),)
        message = f"the job ends after {in_units(of_job)}, before `run.time_limit`"
        help = f"give the job more than {in_units(limit)}, or lower `run.time_limit`"
        yield Diagnostic("MC587", message, span, seconds, help, "warning")


RULES = (
    *(hosts_are_given, hosts_fit_the_nodes, resources_follow_from_the_groups, gres_fits_the_groups),
    *(texts_are_single_values, run_ends_within_its_job),
)
