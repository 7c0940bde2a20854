"""MC587 and MC6xx: what the engine of a recipe needs, and must not state; what follows from the engine
`jobset` (MC62x), and from `ship`, where the nodes share no file system (MC640 and MC641)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.compose.yaml_tree import leaves
from meshctl.recipe.rules.facts import Facts
from meshctl.recipe.slurm_fields import slurm_seconds
from meshctl.run.directory import SHIP_TO
from meshctl.text.english import counted, in_units
from meshctl.text.kubernetes_names import MAX_LENGTH, RESOURCES, RUN_TIME, label_of, too_long

JobSet = Mapping[str, Any]
"""The options of the engine `jobset`."""
CONTROL = re.compile("[\x00-\x1f\x7f\x85\u2028\u2029]")
"""Characters that end a line of a script, or that a terminal obeys."""
ELSEWHERE = {"setup", "annotations", "labels", "node_selector", "namespace", "queue", "priority"}
"""Options of engines whose texts may have several lines, and those that `jobset_fields.py` checks."""
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
    engine, allocation = facts.recipe.engine, facts.allocation
    hosts = engine.options.get("hosts", ()) if facts.is_valid("engine") else ()
    twice = [index for index, host in enumerate(hosts) if host in hosts[:index]]
    if twice:
        message, help = f"host `{hosts[twice[0]]}` is listed twice", "list each host once: it is one node"
        span = facts.item("engine", "ssh", "hosts", index=twice[0])
        yield Diagnostic("MC603", message, span, help=help)
    elif hosts and allocation and len(hosts) < allocation.cluster.nodes:
        nodes, span = counted(allocation.cluster.nodes, "node"), facts.value("engine", "ssh", "hosts")
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
    for name, ranges in allocation.devices.items():
        kind = facts.recipe.groups[name].device_type
        pieces = [piece for run in ranges for piece in allocation.cluster.pieces(kind, *run)]
        needed = max((piece.number + piece.each for piece in pieces), default=0)
        if needed > int(count):
            gives = f"`engine.slurm.gres` gives {counted(int(count), 'device')}"
            help = f"write {gres.rpartition(':')[0]} without a number, which adds the number that is needed"
            span = facts.value("engine", "slurm", "gres")
            yield Diagnostic("MC612", f"{gives}, and `{name}` needs {needed}", span, help=help)
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


_DOMAIN, _WORD = r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?", r"[A-Za-z0-9](?:[\w.-]{0,61}[A-Za-z0-9])?"
OBJECT_NAME = re.compile(_DOMAIN)
LABEL_KEY = re.compile(f"(?:{_DOMAIN}/)?{_WORD}", re.ASCII)
QUANTITY = re.compile(r"(\d+\.?\d*|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?", re.ASCII)
BYTES = ("memory", "ephemeral-storage")
LABEL_VALUE = re.compile(f"(?:{_WORD})?", re.ASCII)


def image_is_given(facts: Facts, options: JobSet) -> Iterator[Diagnostic]:
    """The engine `jobset` has an image for its pods."""
    if not options["image"]:
        message = "engine `jobset` needs `engine.jobset.image`"
        help = "name a container image that has meshctl"
        yield Diagnostic("MC620", message, _span(facts), help=help, missing=True)


def names_fit_kubernetes(facts: Facts, options: JobSet) -> Iterator[Diagnostic]:
    """The names that follow from the name of a run are short enough."""
    given, nodes = options["name"], facts.allocation.cluster.nodes if facts.allocation else 0
    found = too_long(f"{label_of(given or facts.recipe.name)}-{RUN_TIME}", nodes) if nodes else ""
    if found:
        what, more = "engine.jobset.name" if given else "name", counted(len(found) - MAX_LENGTH, "character")
        length = f"{len(found)} characters, and {MAX_LENGTH} are allowed"
        message = f"`{what}` is too long: `{found}` would have {length}"
        help = f"make it shorter by {more}"
        if not given:
            help = f"write an `engine.jobset.name` that is shorter by {more}"
        span = facts.value(*what.split(".")) if facts.node(*what.split(".")) else _span(facts)
        yield Diagnostic("MC621", message, span, help=help)


def run_directory_is_shared(facts: Facts, options: JobSet) -> Iterator[Diagnostic]:
    """The pods of several nodes see the same run directory."""
    if not facts.allocation or facts.allocation.cluster.nodes == 1:
        return
    paths = [PurePosixPath(one["path"]) for one in (options["volumes"] or {}).values()]
    run_dir, nodes = options["run_dir"], counted(facts.allocation.cluster.nodes, "node")
    if not paths:
        message = f"a recipe of {nodes} needs `engine.jobset.volumes`: all pods write to the run directory"
        help = (
            "write `volumes: {runs: {claim: CLAIM, path: /runs}}` with a claim that many machines can mount"
        )
        yield Diagnostic("MC622", message, _span(facts), help=help)
    elif run_dir and not any(PurePosixPath(run_dir).is_relative_to(path) for path in paths):
        message = (
            f"`{run_dir}` is on none of the volumes, and the pods of {nodes} write to the same run directory"
        )
        span = facts.value("engine", "jobset", "run_dir")
        yield Diagnostic("MC622", message, span, help=f"name a folder below `{paths[0]}`")


def names_are_those_of_kubernetes(facts: Facts, options: JobSet) -> Iterator[Diagnostic]:
    """Names of objects and labels have the form that Kubernetes requires."""
    keys = ("namespace", "queue", "priority", "service_account", "pull_with")
    objects: list[tuple[str, ...]] = [(options[key], key) for key in keys if options[key]]
    volumes = (options["volumes"] or {}).items()
    objects += [(one["claim"], "volumes", name, "claim") for name, one in volumes if one["claim"]]
    wrong: list[tuple[str, ...]] = [
        ("the name of an object", *one) for one in objects if not OBJECT_NAME.fullmatch(one[0])
    ]
    for key in ("labels", "annotations", "node_selector"):
        for label, value in (options[key] or {}).items():
            if not LABEL_KEY.fullmatch(label):
                wrong.append(("the key of a label", label, key, label))
            elif key != "annotations" and not LABEL_VALUE.fullmatch(value):
                wrong.append(("the value of a label", value, key, label))
    for what, text, *path in wrong:
        help = "use lower-case letters, digits, `-` and `.`"
        if "label" in what:
            help = (
                f"use at most {MAX_LENGTH} letters, digits, `-`, `_` and `.`; a key may have a prefix DOMAIN/"
            )
        span = facts.value("engine", "jobset", *path)
        yield Diagnostic("MC623", f"`{text}` cannot be {what}", span, help=help)


def resources_are_quantities(facts: Facts, options: JobSet) -> Iterator[Diagnostic]:
    """Resources are quantities of Kubernetes, and do not contain the devices that follow from the groups."""
    names = {**RESOURCES, **(options["device_resources"] or {})}
    used = {names.get(group.device_type) for group in facts.recipe.groups.values()}
    for name, amount in (options["resources"] or {}).items():
        path = ("engine", "jobset", "resources", name)
        if name in used:
            message = f"`engine.jobset.resources` contains `{name}`, which follows from the groups"
            help = "remove it: a pod asks for the devices of its node that groups use"
            yield Diagnostic("MC630", message, facts.key(*path), help=help)
        elif not QUANTITY.fullmatch(amount) or (name in BYTES and not amount.rstrip("num.0123456789")):
            number = re.match(r"(\d+(?:\.\d+)?) ?([KMGTP]?)", amount)
            help = f"write {number[1]}{number[2] or 'G'}i" if number and name in BYTES else "write 32 or 500m"
            message = f"`{amount}` is not a quantity of `{name}` in Kubernetes"
            yield Diagnostic("MC614", message, facts.value(*path), help=help)


def job_set(facts: Facts) -> list[JobSet]:
    """Returns the options of the engine `jobset`, if it is that of the recipe."""
    engine = facts.recipe.engine
    return [engine.options] if engine.name == "jobset" and facts.is_valid("engine") else []


def _span(facts: Facts) -> Span:
    return facts.key("engine", "jobset") if facts.node("engine", "jobset") else facts.value("engine")


def checkpoints_stay_on_the_nodes(facts: Facts) -> Iterator[Diagnostic]:
    """A note: each node has the files of its own workers only, so the run is not continued where it is."""
    engine, run = facts.recipe.engine, facts.recipe.run
    if not facts.is_valid("engine") or not engine.options.get("ship") or run.checkpoint is None:
        return
    span = facts.key("engine", engine.name, "ship")
    if run.restarts is not None:
        message = "`run.restarts` continues from checkpoints, whose files `ship` leaves on the nodes"
        help = "leave out `run.restarts`, or `run.checkpoint`: then each attempt starts from the beginning"
        restarts = facts.key("run", "restarts")
        yield Diagnostic("MC641", message, restarts, (span.with_word("`ship` is here"),), help=help)
    else:
        message = (
            f"each node keeps its files of a checkpoint, below {engine.options.get('ship_to') or SHIP_TO}"
        )
        help = "to continue the run, copy them into one folder: `docs/engines.md`"
        yield Diagnostic("MC640", message, span, severity="note", help=help)
