"""MC3xx: device groups, and the components or programs that run on them: their interpreters (MC322), those
that go on with fewer ranks (MC327 to MC329), and those that restart alone (MC330 to MC334). `devices.py`
checks their devices.

Notes about interpreters depend on the machine. `launch` refuses to start with one that is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.code.classes import Class
from meshctl.recipe.compose.folders import files, is_dir, is_file
from meshctl.recipe.meshes import layouts_of, replica_ranks
from meshctl.recipe.model import DeviceGroup, Program, Stage
from meshctl.recipe.rules.components import STATE_METHODS
from meshctl.recipe.rules.facts import Facts
from meshctl.run.settings import Elastic, bounding_sources
from meshctl.text.english import counted, in_words, listed, nearest

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


def interpreters_exist(facts: Facts) -> Iterator[Diagnostic]:
    """The interpreter of each group is on this machine."""
    for name, interpreter in facts.group_code.interpreters.items():
        if interpreter.problem and facts.is_valid("groups", name, "python"):
            message = f"the interpreter {interpreter.path} of group `{name}` {interpreter.problem}"
            help = ""
            if facts.recipe.components_of(name):
                help = "its components are read from the launcher's packages; `launch` needs the interpreter"
            span = facts.value("groups", name, "python")
            yield Diagnostic("MC322", message, span, help=help, severity="note")


COUNTS_MAX = 4
"""The number of counts that a note lists."""


def elastic_restarts(facts: Facts) -> Iterator[Diagnostic]:
    """A run that changes its size starts again after a failure."""
    run = facts.recipe.run
    if run.elastic and run.restarts is None and facts.is_valid("run", "restarts"):
        message = "`run.elastic` has no effect without `run.restarts`: the run ends with its first failure"
        yield Diagnostic("MC327", message, facts.key("run", "elastic"), help="add `restarts: 3` to `run`")


def group_can_shrink(facts: Facts) -> Iterator[Diagnostic]:
    """Each elastic group has a smaller count of ranks, of at least `min_ranks`, for which its components have
    a layout. A note says with how many it goes on."""
    for elastic in facts.recipe.run.elastic:
        group = facts.recipe.groups.get(elastic.group)
        if group is None or not _is_known(facts, elastic.group):
            continue
        counts = [
            one.ranks for one in layouts_of(facts.recipe, group.name, group.devices - 1, elastic.min_ranks)
        ]
        if not counts:
            yield _impossible(facts, group, elastic)
        elif facts.recipe.run.restarts:
            yield _possible(facts, group, counts)


def _is_known(facts: Facts, name: str) -> bool:
    """Returns whether the sizes of a group and of its components are right."""
    components = facts.recipe.components_of(name)
    is_sized = facts.recipe.groups[name].workers > 0 and facts.is_valid("groups", name)
    return is_sized and all(one.name in facts.meshes for one in components)


def _impossible(facts: Facts, group: DeviceGroup, elastic: Elastic) -> Diagnostic:
    ranks, step = group.devices, replica_ranks(facts.recipe, group.name)
    least = ("run", "elastic", group.name, "min_ranks")
    span = facts.value(*least) if facts.node(*least) else facts.key(*least[:-1])
    seconds = [facts.value("groups", group.name, "ranks").with_word(f"`{group.name}` has {ranks} ranks")]
    message = f"`{group.name}` cannot lose a rank and keep {elastic.min_ranks}"
    if elastic.min_ranks >= ranks:
        help = f"write a `min_ranks` below {ranks}"
    elif ranks - step > 0:
        help = f"only dp and fsdp sizes change: `min_ranks` must be {ranks - step} or less"
    else:
        help = "only dp and fsdp sizes change, and its other sizes take all ranks: leave it out of `elastic`"
    for one in facts.recipe.components_of(group.name):
        if step > 1 and facts.node("components", one.name, "parallel"):
            sizes = facts.value("components", one.name, "parallel")
            seconds.append(sizes.with_word(f"a replica takes {counted(step, 'rank')}"))
            break
    return Diagnostic("MC328", message, span, tuple(seconds), help)


def _possible(facts: Facts, group: DeviceGroup, counts: list[int]) -> Diagnostic:
    shown = in_words(list(map(str, counts[:COUNTS_MAX])), "or")
    shown += f" ... or {counts[-1]}" if len(counts) > COUNTS_MAX else ""
    lost = "without a rank that is lost for good"
    message = f"{lost}, `{group.name}` goes on with {shown} of {group.devices}"
    parts = ["`samples` stays global; rules for the learning rate and the batch size are yours"]
    if firm := [name for name in facts.recipe.groups if name not in _elastic(facts)]:
        parts.append(f"a loss of {listed(firm, 'or')} for good ends the run")
    if facts.recipe.run.checkpoint is None:
        parts.append("without `run.checkpoint` it begins again from the start, and never grows back")
    span = facts.key("run", "elastic", group.name)
    return Diagnostic("MC329", message, span, help="; ".join(parts), severity="note")


def _elastic(facts: Facts) -> set[str]:
    return {one.group for one in facts.recipe.run.elastic}


def restartable_restarts(facts: Facts) -> Iterator[Diagnostic]:
    """A restart of a single group is one of `run.restarts`."""
    for group in _restartable(facts):
        if facts.recipe.run.restarts is None and facts.is_valid("run", "restarts"):
            message = f"`{group.name}` never restarts: `restartable` has no effect without `run.restarts`"
            span = facts.value("groups", group.name, "restartable")
            seconds = (facts.key("run"),) if facts.is_named("run") else ()
            yield Diagnostic("MC330", message, span, seconds, "add `restarts: 3` to `run`")


def restartable_has_no_state(facts: Facts) -> Iterator[Diagnostic]:
    """The components of a restartable group have no state, which a restart would lose."""
    for group in _restartable(facts):
        span = facts.value("groups", group.name, "restartable")
        if group.program:
            message = f"`{group.name}` cannot restart alone: the state of its program is unknown"
            yield Diagnostic("MC331", message, span, help="remove `restartable`")
        for component in facts.recipe.components_of(group.name):
            found = facts.class_of(component.name)
            methods = [name for name in STATE_METHODS if found and name in found.methods]
            if methods and not component.frozen:
                message = f"`{group.name}` cannot restart alone: `{component.name}` has state"
                second = facts.value("components", component.name, "_target_")
                seconds = (second.with_word(f"it has `{methods[0]}`"),)
                help = "remove `restartable`, or write `frozen: true` there if nothing of its state changes"
                yield Diagnostic("MC331", message, span, seconds, help)


def restartable_sources_have_lengths(facts: Facts) -> Iterator[Diagnostic]:
    """A source that may end the run, or a block of the group, has a length: the last step is known before."""
    bounding = bounding_sources(facts.recipe.pipeline.values())
    for group in _restartable(facts):
        for stage in facts.recipe.pipeline.values():
            is_own = _group_of(facts, stage.component) == group.name
            if not stage.is_source or not (stage.name in bounding or (stage.block and is_own)):
                continue
            found = facts.class_of(stage.component)
            if isinstance(found, Class) and found.is_complete and "__len__" not in found.methods:
                code = "MC332" if is_own else "MC334"
                message = (
                    f"`{group.name}` cannot restart alone: the source `{stage.component}` has no `__len__`"
                )
                span = facts.value("groups", group.name, "restartable")
                target = facts.value("components", stage.component, "_target_")
                seconds = (target, facts.key("pipeline", stage.name).with_word("it may end the run"))
                help = "define `__len__`, the number of samples of an epoch"
                if not stage.block:
                    help += f"; if it never ends, write `ends_run: false` in `{stage.name}`"
                yield Diagnostic(code, message, span, seconds, help)


def restartable_routes_reopen(facts: Facts) -> Iterator[Diagnostic]:
    """The routes of a restartable group can be reopened."""
    for group in _restartable(facts):
        for stage, why, help in _fixed_routes(facts, group):
            message = f"`{group.name}` cannot restart alone: {why}"
            span = facts.value("groups", group.name, "restartable")
            yield Diagnostic("MC333", message, span, (facts.key("pipeline", stage.name),), help)
            break


def _fixed_routes(facts: Facts, group: DeviceGroup) -> Iterator[tuple[Stage, str, str]]:
    """Yields the stages whose routes between a group and other groups cannot be reopened, each with the
    reason and a help."""
    for stage, source, target in _routes(facts):
        ends = {_group_of(facts, source.component), _group_of(facts, target)}
        if group.name not in ends or len(ends) < 2 or "" in ends:
            continue
        [other] = ends - {group.name}
        if stage.kind == "sync" and _group_of(facts, source.component) == group.name:
            yield stage, f"`{stage.name}` sends weights of it, which are state", "remove `restartable`"
        elif stage.block and stage.block == source.block:
            why = f"`{stage.name}` exchanges several values in a step with `{other}`, in a block"
            yield stage, why, f"remove `restartable`, or move the stage out of `{stage.block}`"


def _routes(facts: Facts) -> Iterator[tuple[Stage, Stage, str]]:
    """Yields the stage of each route, the stage that produces its values, and the component that receives
    them."""
    for stage in facts.recipe.pipeline.values():
        if stage.kind == "sync":
            yield stage, stage, stage.to
        for given in stage.inputs:
            for name in given.stages:
                if source := facts.recipe.pipeline.get(name):
                    yield stage, source, stage.component


def _restartable(facts: Facts) -> list[DeviceGroup]:
    return [group for group in facts.recipe.groups.values() if group.restartable]


def _group_of(facts: Facts, component: str) -> str:
    """Returns the group of a component; empty if there is none."""
    found = facts.recipe.components.get(component)
    group = facts.group_of(found) if found else None
    return group.name if group else ""
