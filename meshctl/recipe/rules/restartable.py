"""MC330 to MC334: the groups that restart alone after a failure."""

from __future__ import annotations

from collections.abc import Iterator

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.code.classes import Class
from meshctl.recipe.model import DeviceGroup, Stage
from meshctl.recipe.rules.components import STATE_METHODS
from meshctl.recipe.rules.facts import Facts
from meshctl.run.bounds import bounding_sources


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


RULES = (
    restartable_restarts,
    restartable_has_no_state,
    restartable_sources_have_lengths,
    restartable_routes_reopen,
)
