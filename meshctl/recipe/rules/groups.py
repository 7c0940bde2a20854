"""MC3xx: device groups and the components or programs that run on them. `devices.py` checks their devices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.compose.folders import files, is_dir, is_file
from meshctl.recipe.model import DeviceGroup, Program
from meshctl.recipe.rules.facts import Facts
from meshctl.text.english import counted, listed, nearest

DETECTED = "`device_type` is not set: write the type of the machine that runs the recipe"
"""Help for an error that depends on the device type of this machine."""


def recipe_has_groups(facts: Facts) -> Iterator[Diagnostic]:
    if not facts.recipe.groups and facts.is_valid("groups"):
        help = "describe where it runs: groups: {train: {ranks: 2, device_type: cpu}}"
        message = "the recipe has no device groups"
        yield Diagnostic("MC300", message, facts.key("groups"), help=help, missing=True)


def cpu_ranks_are_count(facts: Facts) -> Iterator[Diagnostic]:
    for name, group in facts.recipe.groups.items():
        if group.device_type == "cpu" and isinstance(group.ranks, tuple):
            here = facts.value("groups", name, "device_type").with_word("`device_type` is cpu")
            help = f"write {len(group.ranks)}"
            if facts.is_detected(name):
                here = here.with_word("`device_type` is not set, and this machine's is cpu")
                help = DETECTED
            message = f"`ranks` of the cpu group `{name}` must be a number of processes, not a list"
            span = facts.value("groups", name, "ranks")
            yield Diagnostic("MC302", message, span, (here,), help)


def keys_fit_device_type(facts: Facts) -> Iterator[Diagnostic]:
    """Keys about accelerators are used only in groups on accelerators."""
    for name, group in facts.recipe.groups.items():
        if not facts.is_valid("groups", name, "device_type"):
            continue
        on_cpu, on_mps = group.device_type == "cpu", group.device_type == "mps"
        if on_cpu and group.gpus_per_worker > 1:
            yield _meaningless(facts, name, "gpus_per_worker", "is for devices", "cpu")
        if on_cpu and group.visible_devices:
            yield _meaningless(facts, name, "visible_devices", "is for devices", "cpu")
        if on_mps and group.visible_devices:
            help = "remove it: a machine has one mps device"
            yield _meaningless(facts, name, "visible_devices", "is for cuda and npu", "mps", help)
        if on_cpu and group.colocate:
            help = "remove it: cpu groups share the machine anyway"
            yield _meaningless(facts, name, "colocate", "shares devices", "cpu", help)


def _meaningless(
    facts: Facts, group: str, key: str, use: str, kind: str, help: str = "remove it"
) -> Diagnostic:
    message = f"`{key}` {use}, but group `{group}` is on {kind}"
    if facts.is_detected(group):
        message = f"{message}, the device type of this machine"
        help = DETECTED
    return Diagnostic("MC308", message, facts.key("groups", group, key), help=help)


def colocated_group_exists(facts: Facts) -> Iterator[Diagnostic]:
    """`colocate` names another group of the same device type, and the chain of groups is not a circle."""
    groups = facts.recipe.groups
    for name, group in groups.items():
        if not group.colocate or group.device_type == "cpu":
            continue
        span, host = facts.value("groups", name, "colocate"), groups.get(group.colocate)
        if host is None:
            continue
        if circle := _circle(name, groups):
            message, help = f"group `{name}` shares devices with itself", "remove it"
            if len(circle) > 1:
                message = f"groups {listed(sorted(circle))} share the devices of each other"
                help = "remove one `colocate`"
            if name == next(one for one in groups if one in circle):
                yield Diagnostic("MC305", message, span, help=help, missing=True)
        elif host.device_type and group.device_type and host.device_type != group.device_type:
            host_type = f"`{host.name}` is on {host.device_type}"
            seconds = (facts.value("groups", host.name, "device_type").with_word(host_type),)
            message = (
                f"group `{name}` is on {group.device_type} and cannot share the devices of `{host.name}`"
            )
            yield Diagnostic("MC305", message, span, seconds, missing=True)
        elif isinstance(group.ranks, int) and group.devices > host.devices > 0:
            has = f"`{host.name}` has {counted(host.devices, 'device')}"
            seconds = (facts.value("groups", host.name, "ranks").with_word(has),)
            shares = f"group `{name}` shares {counted(group.devices, 'device')} with `{host.name}`"
            ranks, help = facts.value("groups", name, "ranks"), f"write at most {host.devices}"
            yield Diagnostic("MC306", f"{shares}, which has {host.devices}", ranks, seconds, help)


def _circle(name: str, groups: Mapping[str, DeviceGroup]) -> list[str]:
    """Returns the groups of the circle to which a group belongs by `colocate`; empty if there is none."""
    seen: list[str] = []
    here = name
    while here in groups and here not in seen:
        seen.append(here)
        here = groups[here].colocate
    return seen if here == name else []


def group_runs_something(facts: Facts) -> Iterator[Diagnostic]:
    """A group runs a program or hosts components, and not both."""
    recipe = facts.recipe
    are_placed = _are_components_placed(facts)
    for name, group in recipe.groups.items():
        components = recipe.components_of(name)
        if group.program and components:
            component = components[0].name
            runs = f"`{component}` runs on `{name}`"
            seconds = (facts.value("components", component, "group").with_word(runs),)
            message = f"group `{name}` runs a program, so components cannot run on it"
            span = facts.key("groups", name, "program")
            yield Diagnostic("MC312", message, span, seconds, "use two groups")
        elif not group.program and not components and facts.is_valid("groups", name) and are_placed:
            message = f"nothing runs on group `{name}`"
            help = f"write `group: {name}` in a component, or `program: SCRIPT` in the group"
            yield Diagnostic("MC311", message, facts.key("groups", name), help=help, missing=True)


def _are_components_placed(facts: Facts) -> bool:
    """Returns whether every component has a known group. One that could not be read, or that a stage calls
    and the recipe lacks, may belong to any group."""
    recipe, written = facts.recipe, facts.node("components")
    names = [name for name, _ in written.items()] if written else []
    called = {name for stage in recipe.pipeline.values() for name in (stage.component, stage.to) if name}
    are_missing = any(name not in names and not nearest(name, names) for name in called)
    if are_missing or not facts.read.is_known("components"):
        return False
    return all(name in recipe.components and recipe.components[name].group in recipe.groups for name in names)


def program_exists(facts: Facts) -> Iterator[Diagnostic]:
    """The program of a group exists. A script is searched in the program's folder, the recipe's folder and
    the working directory."""
    for name, group in facts.recipe.groups.items():
        program = group.program
        if program is None:
            continue
        if program.module:
            yield from _module_exists(facts, name, group, program)
        if _is_missing_folder(facts, program):
            message, help = (
                f"folder `{program.cwd}` was not found",
                f"the path is relative to `{facts.code.own[0]}`",
            )
            yield Diagnostic("MC313", message, facts.value("groups", name, "cwd"), help=help)
        elif program.script and "{" not in program.script and not program.script.startswith("-"):
            yield from _script_exists(facts, name, program)


def _module_exists(facts: Facts, name: str, group: DeviceGroup, program: Program) -> Iterator[Diagnostic]:
    """The module of a program exists. It is not checked for another interpreter or another working
    directory."""
    if not group.python and not program.cwd and facts.code.module(program.module) is None:
        help = f"searched in {_listed(facts.code.own)} and the installed packages"
        span = facts.value("groups", name, "program", "module")
        yield Diagnostic("MC313", f"module `{program.module}` was not found", span, help=help)


def _is_missing_folder(facts: Facts, program: Program) -> bool:
    if not program.cwd or "{" in program.cwd or not facts.code.own:
        return False
    return not is_dir(Path(facts.code.own[0]) / program.cwd)


def _script_exists(facts: Facts, group: str, program: Program) -> Iterator[Diagnostic]:
    folders = [Path(folder) for folder in facts.code.own]
    if program.cwd and folders:
        folders = [folders[0] / program.cwd, *folders]

    def exists(script: str) -> bool:
        return any(is_file(folder / script) for folder in folders)

    if exists(program.script):
        return
    scripts = [path.name for folder in folders for path in files(folder, ".py")]
    help = f"searched in {_listed(folders)}"
    if near := nearest(program.script, scripts):
        help = f"did you mean `{near}`?"
    script, *arguments = program.script.split() or [""]
    if arguments and exists(script):
        help = f"its arguments go under `args`: program: {script}, args: [{', '.join(arguments)}]"
    span = facts.value("groups", group, "program")
    yield Diagnostic("MC313", f"program `{program.script}` was not found", span, help=help)


def _listed(folders: Iterable[str | Path]) -> str:
    return listed(dict.fromkeys(map(str, folders)))


RULES = (
    recipe_has_groups,
    cpu_ranks_are_count,
    keys_fit_device_type,
    colocated_group_exists,
    group_runs_something,
    program_exists,
)
