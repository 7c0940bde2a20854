"""MC3xx: device groups, and the components or programs that run on them: their interpreters (MC322), those
that go on with fewer ranks (MC327 to MC329), and those that restart alone (MC330 to MC334). `devices.py`
checks their devices.

Notes about interpreters depend on the machine. `launch` refuses to start with one that is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.compose.folders import files, is_dir, is_file
from meshctl.recipe.meshes import layouts_of, replica_ranks
from meshctl.recipe.model import DeviceGroup, Program
from meshctl.recipe.rules.components import STATE_METHODS
from meshctl.recipe.rules.facts import Facts
from meshctl.run.settings import Elastic, bounding_sources
from meshctl.text.english import counted, in_words, listed, nearest

Restartable = DeviceGroup
"""A group that restarts alone."""
DETECTED = "`device_type` is not set: write the type of the machine that runs the recipe"
"""Help for an error that depends on the device type of this machine."""


def recipe_has_groups(facts: Facts) -> Iterator[Diagnostic]:
    if not facts.recipe.groups and facts.is_valid("groups"):
        help = "describe where it runs: groups: {train: {ranks: 2, device_type: cpu}}"
        message = "the recipe has no device groups"
        yield Diagnostic("MC300", message, facts.key("groups"), help=help, missing=True)


def cpu_ranks_are_count(facts: Facts, group: DeviceGroup) -> Iterator[Diagnostic]:
    name = group.name
    if group.device_type == "cpu" and isinstance(group.ranks, tuple):
        here = facts.value("groups", name, "device_type").with_word("`device_type` is cpu")
        help = f"write {len(group.ranks)}"
        if facts.is_detected(name):
            here = here.with_word("`device_type` is not set, and this machine's is cpu")
            help = DETECTED
        message = f"`ranks` of the cpu group `{name}` must be a number of processes, not a list"
        span = facts.value("groups", name, "ranks")
        yield Diagnostic("MC302", message, span, (here,), help)


def keys_fit_device_type(facts: Facts, group: DeviceGroup) -> Iterator[Diagnostic]:
    """Keys about accelerators are used only in groups on accelerators."""
    kind = group.device_type if facts.is_valid("groups", group.name, "device_type") else ""
    one_device = "remove it: a machine has one mps device"
    shared = "remove it: cpu groups share the machine anyway"
    for on, key, is_used, use, help in (
        ("cpu", "gpus_per_worker", group.gpus_per_worker > 1, "is for devices", "remove it"),
        ("cpu", "visible_devices", group.visible_devices, "is for devices", "remove it"),
        ("mps", "visible_devices", group.visible_devices, "is for cuda and npu", one_device),
        ("cpu", "colocate", group.colocate, "shares devices", shared),
    ):
        if kind == on and is_used:
            message = f"`{key}` {use}, but group `{group.name}` is on {kind}"
            if facts.is_detected(group.name):
                message, help = f"{message}, the device type of this machine", DETECTED
            yield Diagnostic("MC308", message, facts.key("groups", group.name, key), help=help)


def colocated_group_exists(facts: Facts, group: DeviceGroup) -> Iterator[Diagnostic]:
    """`colocate` names another group of the same device type, and the chain of groups is not a circle."""
    name, groups = group.name, facts.recipe.groups
    span, host = facts.value("groups", name, "colocate"), groups.get(group.colocate)
    if host is None or group.device_type == "cpu":
        return
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
        message = f"group `{name}` is on {group.device_type} and cannot share the devices of `{host.name}`"
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


def program_exists(facts: Facts, group: DeviceGroup) -> Iterator[Diagnostic]:
    """The program of a group exists. A module is not checked for another interpreter or another working
    directory, and a script is searched in the program's folder, the recipe's folder and the working
    directory."""
    program, own, help = group.program, facts.code.own, ""
    key: tuple[str, ...] = ("program",)
    if program is None:
        return
    message = f"program `{program.script}` was not found"
    if program.module and not group.python and not program.cwd and facts.code.module(program.module) is None:
        message, key = f"module `{program.module}` was not found", ("program", "module")
        help = f"searched in {_listed(own)} and the installed packages"
    elif own and program.cwd and "{" not in program.cwd and not is_dir(Path(own[0]) / program.cwd):
        message = f"folder `{program.cwd}` was not found"
        key = ("cwd",)
        help = f"the path is relative to `{own[0]}`"
    elif program.script and "{" not in program.script and not program.script.startswith("-"):
        help = _missing_script(program, [Path(folder) for folder in own])
    if help:
        yield Diagnostic("MC313", message, facts.value("groups", group.name, *key), help=help)


def _missing_script(program: Program, folders: list[Path]) -> str:
    """Returns the help for a script that does not exist; empty if it does."""
    if program.cwd and folders:
        folders = [folders[0] / program.cwd, *folders]
    script, *arguments = program.script.split() or [""]
    exists = {name for name in (program.script, script) if any(is_file(one / name) for one in folders)}
    if program.script in exists:
        return ""
    if arguments and script in exists:
        return f"its arguments go under `args`: program: {script}, args: [{', '.join(arguments)}]"
    near = nearest(program.script, [path.name for folder in folders for path in files(folder, ".py")])
    return f"did you mean `{near}`?" if near else f"searched in {_listed(folders)}"


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


def group_can_shrink(facts: Facts, elastic: Elastic) -> Iterator[Diagnostic]:
    """Each elastic group has a smaller count of ranks, of at least `min_ranks`, for which its components have
    a layout. A note says with how many it goes on."""
    group, recipe = facts.recipe.groups.get(elastic.group), facts.recipe
    if group is None or not group.workers or not facts.is_valid("groups", group.name):
        return
    if not all(one.name in facts.meshes for one in recipe.components_of(group.name)):
        return
    counts = [one.ranks for one in layouts_of(recipe, group.name, group.devices - 1, elastic.min_ranks)]
    if not counts:
        yield _impossible(facts, group, elastic)
    elif recipe.run.restarts:
        yield _possible(facts, group, counts)


def _impossible(facts: Facts, group: DeviceGroup, elastic: Elastic) -> Diagnostic:
    ranks, step = group.devices, replica_ranks(facts.recipe, group.name)
    least = ("run", "elastic", group.name, "min_ranks")
    span = facts.value(*least) if facts.node(*least) else facts.key(*least[:-1])
    seconds = [facts.value("groups", group.name, "ranks").with_word(f"`{group.name}` has {ranks} ranks")]
    for one in facts.recipe.components_of(group.name):
        if step > 1 and facts.node("components", one.name, "parallel"):
            sizes = facts.value("components", one.name, "parallel")
            seconds.append(sizes.with_word(f"a replica takes {counted(step, 'rank')}"))
    message = f"`{group.name}` cannot lose a rank and keep {elastic.min_ranks}"
    if elastic.min_ranks >= ranks:
        help = f"write a `min_ranks` below {ranks}"
    elif ranks - step > 0:
        help = f"only dp and fsdp sizes change: `min_ranks` must be {ranks - step} or less"
    else:
        help = "only dp and fsdp sizes change, and its other sizes take all ranks: leave it out of `elastic`"
    return Diagnostic("MC328", message, span, tuple(seconds[:2]), help)


def _possible(facts: Facts, group: DeviceGroup, counts: list[int]) -> Diagnostic:
    shown = in_words(list(map(str, counts[:COUNTS_MAX])), "or")
    shown += f" ... or {counts[-1]}" if len(counts) > COUNTS_MAX else ""
    lost = "without a rank that is lost for good"
    message = f"{lost}, `{group.name}` goes on with {shown} of {group.devices}"
    parts = ["`samples` stays global; rules for the learning rate and the batch size are yours"]
    elastic = {one.group for one in facts.recipe.run.elastic}
    if firm := [name for name in facts.recipe.groups if name not in elastic]:
        parts.append(f"a loss of {listed(firm, 'or')} for good ends the run")
    if facts.recipe.run.checkpoint is None:
        parts.append("without `run.checkpoint` it begins again from the start, and never grows back")
    span = facts.key("run", "elastic", group.name)
    return Diagnostic("MC329", message, span, help="; ".join(parts), severity="note")


def restartable_restarts(facts: Facts, group: Restartable) -> Iterator[Diagnostic]:
    """A restart of a single group is one of `run.restarts`."""
    if facts.recipe.run.restarts is None and facts.is_valid("run", "restarts"):
        message = f"`{group.name}` never restarts: `restartable` has no effect without `run.restarts`"
        seconds = (facts.key("run"),) if facts.is_named("run") else ()
        yield Diagnostic("MC330", message, _restartable(facts, group), seconds, "add `restarts: 3` to `run`")


def restartable_has_no_state(facts: Facts, group: Restartable) -> Iterator[Diagnostic]:
    """The components of a restartable group have no state, which a restart would lose."""
    span = _restartable(facts, group)
    if group.program:
        message = f"`{group.name}` cannot restart alone: the state of its program is unknown"
        yield Diagnostic("MC331", message, span, help="remove `restartable`")
    for component in facts.recipe.components_of(group.name):
        found = facts.class_of(component.name)
        methods = [name for name in STATE_METHODS if found and name in found.methods]
        if methods and not component.frozen:
            message = f"`{group.name}` cannot restart alone: `{component.name}` has state"
            second = facts.value("components", component.name, "_target_")
            help = "remove `restartable`, or write `frozen: true` there if nothing of its state changes"
            yield Diagnostic("MC331", message, span, (second.with_word(f"it has `{methods[0]}`"),), help)


def restartable_sources_have_lengths(facts: Facts, group: Restartable) -> Iterator[Diagnostic]:
    """A source that may end the run, or a block of the group, has a length: the last step is known before."""
    bounding = bounding_sources(facts.recipe.pipeline.values())
    for stage in facts.recipe.pipeline.values():
        is_own = _group_of(facts, stage.component) == group.name
        is_repeated = bool(stage.block) and is_own and not facts.recipe.blocks[stage.block].take
        if not stage.is_source or not (stage.name in bounding or is_repeated):
            continue
        found = facts.class_of(stage.component)
        if found is not None and found.is_complete and "__len__" not in found.methods:
            code = "MC332" if is_own else "MC334"
            message = f"`{group.name}` cannot restart alone: the source `{stage.component}` has no `__len__`"
            target = facts.value("components", stage.component, "_target_")
            seconds = (target, facts.key("pipeline", stage.name).with_word("it may end the run"))
            help = "define `__len__`, the number of samples of an epoch"
            if not stage.block:
                help += f"; if it never ends, write `ends_run: false` in `{stage.name}`"
            yield Diagnostic(code, message, _restartable(facts, group), seconds, help)


def restartable_routes_reopen(facts: Facts, group: Restartable) -> Iterator[Diagnostic]:
    """The routes of a restartable group can be reopened. Only the first one that cannot is reported. Samples
    of passes that the group takes itself would be others in a step that it repeats."""
    pipeline, blocks = facts.recipe.pipeline, facts.recipe.blocks
    for stage in pipeline.values():
        sources = [pipeline[name] for name in stage.takes if name in pipeline]
        ends = [(stage, stage.to)] if stage.kind == "sync" else [(one, stage.component) for one in sources]
        for source, target in ends:
            groups = {_group_of(facts, source.component), _group_of(facts, target)}
            is_taken = source.block not in ("", stage.block) and blocks[source.block].take > 0
            if group.name not in groups or "" in groups or (len(groups) < 2 and not is_taken):
                continue
            if len(groups) < 2:
                why = f"`{stage.name}` takes the passes of its own group"
                help = "remove `restartable`, or move the stage to another group"
            elif stage.kind == "sync" and _group_of(facts, stage.component) == group.name:
                why, help = f"`{stage.name}` sends weights of it, which are state", "remove `restartable`"
            elif stage.block and stage.block == source.block:
                [other] = groups - {group.name}
                why = f"`{stage.name}` exchanges several values in a step with `{other}`, in a block"
                help = f"remove `restartable`, or move the stage out of `{stage.block}`"
            else:
                continue
            message = f"`{group.name}` cannot restart alone: {why}"
            seconds = (facts.key("pipeline", stage.name),)
            yield Diagnostic("MC333", message, _restartable(facts, group), seconds, help)
            return


def restartable(facts: Facts) -> Iterator[DeviceGroup]:
    return (group for group in facts.recipe.groups.values() if group.restartable)


def _restartable(facts: Facts, group: DeviceGroup) -> Span:
    return facts.value("groups", group.name, "restartable")


def _group_of(facts: Facts, component: str) -> str:
    found = facts.recipe.components.get(component)
    group = facts.group_of(found) if found else None
    return group.name if group else ""
