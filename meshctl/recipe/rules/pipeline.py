"""MC51x to MC55x: what stages call, what they take, in which order, and how many samples there are."""

from __future__ import annotations

from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.fixes import renamed
from meshctl.recipe.model import Input, Stage
from meshctl.recipe.rules.facts import Facts
from meshctl.text.english import counted, did_you_mean

OURS = ("setup", "close", "state_dict", "load_state_dict", "weights", "load_weights")


def some_pipeline(facts: Facts) -> Iterator[Diagnostic]:
    if facts.recipe.components and not facts.recipe.pipeline and facts.right("pipeline"):
        help = "say what happens in a step: pipeline: {batch: {call: COMPONENT.METHOD}}"
        yield Diagnostic(
            "MC510", "there are components, and no pipeline calls them", facts.key("components"), help=help
        )
    if (
        not facts.recipe.components
        and not facts.recipe.pipeline
        and facts.recipe.groups
        and facts.right("components")
    ):
        return
    for name, stage in facts.recipe.pipeline.items():
        if stage.is_source and not stage.samples and stage.component and facts.right("pipeline", name):
            message = f"stage `{name}` is a source (it takes nothing): it must say `samples`"
            help = "how many samples it gives a step, over all ranks: samples: 64; or `in:` the stage that it takes"
            yield Diagnostic("MC540", message, facts.key("pipeline", name), help=help)


def known_component(facts: Facts) -> Iterator[Diagnostic]:
    components = facts.recipe.components
    for name, stage in facts.recipe.pipeline.items():
        for key, component in (
            ("call" if stage.kind == "call" else "sync", stage.component),
            ("to", stage.to),
        ):
            if component and not facts.names("components", component) and facts.right("pipeline", name, key):
                help, span = did_you_mean(component, components), facts.value("pipeline", name, key)
                fixes = renamed(span, component, components, _after(facts, component, "pipeline", name, key))
                yield Diagnostic(
                    "MC512", f"there is no component `{component}`", span, help=help, fixes=fixes
                )


def _after(facts: Facts, word: str, *path: str) -> str:
    """What follows the first word of a text."""
    node = facts.written.node(*path)
    return str(node.value)[len(word) :] if node else ""


def every_component(facts: Facts) -> Iterator[Diagnostic]:
    """Somebody calls each component, else it only takes memory."""
    stages = facts.recipe.pipeline.values()
    called = {stage.component for stage in stages} | {stage.to for stage in stages}
    if not stages or any(stage.kind == "" or not stage.component for stage in stages):
        return
    for name in facts.recipe.components:
        found = facts.class_of(name)
        if name not in called and name in facts.meshes and (found is None or found.is_component):
            yield Diagnostic(
                "MC517",
                f"no stage calls component `{name}`",
                facts.key("components", name),
                severity="warning",
            )


def known_stages(facts: Facts) -> Iterator[Diagnostic]:
    """`in:` and `after:` name other stages; what is taken is a call's value."""
    pipeline = facts.recipe.pipeline
    for name, stage in pipeline.items():
        for given, path in _references(stage):
            span = facts.value("pipeline", name, *path)
            if given not in pipeline and facts.names("pipeline", given):
                continue
            if given not in pipeline:
                others = [other for other in pipeline if other != name]
                help, fixes = did_you_mean(given, others), renamed(span, given, others)
                yield Diagnostic("MC530", f"there is no stage `{given}`", span, help=help, fixes=fixes)
            elif pipeline[given].kind == "sync" and path[0] == "in":
                says = facts.key("pipeline", given).with_word("a sync gives no value")
                yield Diagnostic(
                    "MC531",
                    f"stage `{name}` takes `{given}`, which is a sync",
                    span,
                    (says,),
                    f"say `after: {given}`",
                )


def _references(stage: Stage) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(stage that is named, where below this one)."""
    for given in stage.inputs:
        for index, other in enumerate(given.stages):
            yield other, input_path(given, index)
    for index, other in enumerate(stage.after):
        yield other, ("after", str(index)) if len(stage.after) > 1 else ("after",)


def input_path(given: Input, index: int) -> tuple[str, ...]:
    path = ("in", given.parameter) if given.parameter else ("in",)
    return (*path, str(index)) if len(given.stages) > 1 else path


def no_circle(facts: Facts) -> Iterator[Diagnostic]:
    """Batch routes are acyclic; only a sync may close the circle."""
    pipeline = facts.recipe.pipeline
    said: set[str] = set()
    for name in pipeline if _has_circle(facts) else ():
        circle = _circle(facts, name)
        if not circle or said & set(circle):
            continue
        said |= set(circle)
        drawn = " -> ".join(f"`{stage}`" for stage in (*circle, circle[0]))
        span = (
            facts.value("pipeline", name, "in")
            if pipeline[name].inputs
            else facts.value("pipeline", name, "after")
        )
        help = "a stage comes after those it takes; weights travel by `sync`"
        message = (
            f"stage `{name}` waits for itself: {drawn}"
            if len(circle) > 1
            else f"stage `{name}` takes its own value"
        )
        yield Diagnostic("MC532", message, span, help=help)


def _has_circle(facts: Facts) -> bool:
    """At one look at each stage; who is in it is only asked where there is one."""
    try:
        TopologicalSorter(
            {name: [*stage.takes, *stage.after] for name, stage in facts.recipe.pipeline.items()}
        ).prepare()
    except CycleError:
        return True
    return False


def _circle(facts: Facts, start: str) -> list[str]:
    """The stages on a way from `start` back to itself, in the order of the data."""
    pipeline = facts.recipe.pipeline
    ways, seen = [[start]], set[str]()
    while ways:
        way = ways.pop()
        for before in (*pipeline[way[-1]].takes, *pipeline[way[-1]].after):
            if before == start:
                return [start, *reversed(way[1:])]
            if before in pipeline and before not in seen:
                seen.add(before)
                ways.append([*way, before])
    return []


def given_twice(facts: Facts) -> Iterator[Diagnostic]:
    for name, stage in facts.recipe.pipeline.items():
        for given in stage.inputs:
            twice = next((other for other in given.stages if given.stages.count(other) > 1), None)
            if twice is not None:
                path = input_path(given, len(given.stages) - 1 - given.stages[::-1].index(twice))
                yield Diagnostic(
                    "MC533",
                    f"stage `{name}` joins `{twice}` with itself",
                    facts.value("pipeline", name, *path),
                )


def right_sync(facts: Facts) -> Iterator[Diagnostic]:
    """A sync goes from one component that gives weights to another that loads them, no later than it may."""
    for name, stage in facts.recipe.pipeline.items():
        if stage.kind != "sync":
            continue
        if stage.component and stage.component == stage.to:
            yield Diagnostic(
                "MC550",
                f"sync `{name}` goes from `{stage.to}` to itself",
                facts.value("pipeline", name, "to"),
            )
        if stage.lag < 0 and facts.right("pipeline", name):
            says = facts.value("pipeline", name, "every").with_word(
                f"the weights are up to {counted(stage.every - 1, 'step')} old"
            )
            message = f"`max_staleness` {stage.max_staleness} is less than `every` - 1"
            help = f"write {stage.every - 1} or more, or leave it out"
            yield Diagnostic("MC551", message, facts.value("pipeline", name, "max_staleness"), (says,), help)
        target = facts.recipe.components.get(stage.to)
        if target is not None and target.frozen:
            says = facts.value("components", stage.to, "frozen").with_word(
                "`frozen`: it has no weights to load"
            )
            yield Diagnostic(
                "MC552",
                f"component `{stage.to}` is no target of a sync",
                facts.value("pipeline", name, "to"),
                (says,),
            )
        for key, component, method in (
            ("sync", stage.component, stage.method),
            ("to", stage.to, stage.to_method),
        ):
            found = facts.class_of(component)
            if key == "to" and (stage.to == stage.component or (target is not None and target.frozen)):
                continue
            if found is not None and found.whole and found.is_component and method not in found.methods:
                message = f"`{found.target}` has no method `{method}`"
                does = (
                    "gives (name, tensor) pairs"
                    if key == "sync"
                    else "takes a stream of (name, tensor) pairs"
                )
                yield Diagnostic(
                    "MC553", message, facts.value("pipeline", name, key), help=f"write one that {does}"
                )


RULES = (
    some_pipeline,
    known_component,
    every_component,
    known_stages,
    no_circle,
    given_twice,
    right_sync,
)
