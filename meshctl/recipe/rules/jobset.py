"""MC614, MC620 to MC623 and MC630: what the engine `jobset` needs, and what Kubernetes would refuse."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.rules.facts import Facts
from meshctl.text.english import counted
from meshctl.text.kubernetes_names import MAX_LENGTH, RESOURCES, RUN_TIME, label_of, too_long

_DOMAIN, _WORD = r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?", r"[A-Za-z0-9](?:[\w.-]{0,61}[A-Za-z0-9])?"
OBJECT_NAME = re.compile(_DOMAIN)
LABEL_KEY = re.compile(f"(?:{_DOMAIN}/)?{_WORD}", re.ASCII)
QUANTITY = re.compile(r"(\d+\.?\d*|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?", re.ASCII)
BYTES = ("memory", "ephemeral-storage")
LABEL_VALUE = re.compile(f"(?:{_WORD})?", re.ASCII)


def image_is_given(facts: Facts) -> Iterator[Diagnostic]:
    """The engine `jobset` has an image for its pods."""
    if _is_job_set(facts) and not facts.recipe.engine.options["image"]:
        message, help = (
            "engine `jobset` needs `engine.jobset.image`",
            "name a container image that has meshctl",
        )
        yield Diagnostic("MC620", message, _span(facts), help=help, missing=True)


def names_fit_kubernetes(facts: Facts) -> Iterator[Diagnostic]:
    """The names that follow from the name of a run are short enough."""
    if not _is_job_set(facts) or not facts.allocation:
        return
    given, name = facts.recipe.engine.options["name"], facts.recipe.name
    found = too_long(f"{label_of(given or name)}-{RUN_TIME}", facts.allocation.cluster.nodes)
    if found:
        what = "engine.jobset.name" if given else "name"
        more = len(found) - MAX_LENGTH
        length = f"{len(found)} characters, and {MAX_LENGTH} are allowed"
        message = f"`{what}` is too long: `{found}` would have {length}"
        help = f"make it shorter by {counted(more, 'character')}"
        if not given:
            help = f"write an `engine.jobset.name` that is shorter by {counted(more, 'character')}"
        span = facts.value(*what.split(".")) if facts.node(*what.split(".")) else _span(facts)
        yield Diagnostic("MC621", message, span, help=help)


def run_directory_is_shared(facts: Facts) -> Iterator[Diagnostic]:
    """The pods of several nodes see the same run directory."""
    if not _is_job_set(facts) or not facts.allocation or facts.allocation.cluster.nodes == 1:
        return
    options = facts.recipe.engine.options
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


def names_are_those_of_kubernetes(facts: Facts) -> Iterator[Diagnostic]:
    """Names of objects and labels have the form that Kubernetes requires."""
    if not _is_job_set(facts):
        return
    options = facts.recipe.engine.options
    for key in ("namespace", "queue", "priority", "service_account", "pull_with"):
        if options[key] and not OBJECT_NAME.fullmatch(options[key]):
            yield _not_a_name(facts, options[key], "the name of an object", key)
    for name, volume in (options["volumes"] or {}).items():
        if volume["claim"] and not OBJECT_NAME.fullmatch(volume["claim"]):
            yield _not_a_name(facts, volume["claim"], "the name of an object", "volumes", name, "claim")
    for key in ("labels", "annotations", "node_selector"):
        for label, value in (options[key] or {}).items():
            if not LABEL_KEY.fullmatch(label):
                yield _not_a_name(facts, label, "the key of a label", key, label)
            elif key != "annotations" and not LABEL_VALUE.fullmatch(value):
                yield _not_a_name(facts, value, "the value of a label", key, label)


def resources_are_quantities(facts: Facts) -> Iterator[Diagnostic]:
    """Resources are quantities of Kubernetes, and do not contain the devices that follow from the groups."""
    if not _is_job_set(facts):
        return
    options = facts.recipe.engine.options
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


def _not_a_name(facts: Facts, text: str, what: str, *path: str) -> Diagnostic:
    help = "use lower-case letters, digits, `-` and `.`"
    if "label" in what:
        help = f"use at most {MAX_LENGTH} letters, digits, `-`, `_` and `.`; a key may have a prefix DOMAIN/"
    span = facts.value("engine", "jobset", *path)
    return Diagnostic("MC623", f"`{text}` cannot be {what}", span, help=help)


def _is_job_set(facts: Facts) -> bool:
    return facts.recipe.engine.name == "jobset" and facts.is_valid("engine")


def _span(facts: Facts) -> Span:
    return facts.key("engine", "jobset") if facts.node("engine", "jobset") else facts.value("engine")


RULES = (
    *(image_is_given, names_fit_kubernetes, run_directory_is_shared, names_are_those_of_kubernetes),
    resources_are_quantities,
)
