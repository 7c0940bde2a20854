"""MC51x to MC55x: the components and stages to which a pipeline refers, and the order of its stages."""

from __future__ import annotations

from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.code.classes import Endpoint
from meshctl.recipe.rules.facts import Facts, input_path
from meshctl.recipe.rules.names import named_stages
from meshctl.text.english import counted


def components_have_pipeline(facts: Facts) -> Iterator[Diagnostic]:
    recipe = facts.recipe
    if recipe.components and not recipe.pipeline and facts.is_valid("pipeline"):
        message = "the recipe has components, but no pipeline that calls them"
        help = "describe a step: pipeline: {batch: {call: COMPONENT.METHOD}}"
        yield Diagnostic("MC510", message, facts.key("components"), help=help, missing=True)


def sources_state_samples(facts: Facts) -> Iterator[Diagnostic]:
    for name, stage in facts.recipe.pipeline.items():
        if stage.is_source and not stage.samples and stage.component and facts.is_valid("pipeline", name):
            message = f"stage `{name}` is a source (it has no `in`) and needs `samples`"
            help = "write `samples: 64`, the number of samples in a step over all ranks, or `in: STAGE`"
            yield Diagnostic("MC540", message, facts.key("pipeline", name), help=help, missing=True)


def components_are_used(facts: Facts) -> Iterator[Diagnostic]:
    """Every component is called or synced by a stage. A component that is not only uses memory."""
    stages = facts.recipe.pipeline.values()
    used = {stage.component for stage in stages} | {stage.to for stage in stages}
    if not stages or any(stage.kind == "" or not stage.component for stage in stages):
        return
    for name in facts.recipe.components:
        found = facts.class_of(name)
        if name not in used and name in facts.meshes and (found is None or found.is_component):
            message = f"component `{name}` is not called by any stage"
            yield Diagnostic("MC517", message, facts.key("components", name), severity="warning")


def inputs_are_calls(facts: Facts) -> Iterator[Diagnostic]:
    """A stage that is an input of another stage is not a sync."""
    pipeline = facts.recipe.pipeline
    for name, stage in pipeline.items():
        for other, path in named_stages(stage):
            if other in pipeline and pipeline[other].kind == "sync" and path[0] == "in":
                message = f"stage `{name}` takes `{other}`, which is a sync"
                span, sync = facts.value("pipeline", name, *path), facts.key("pipeline", other)
                seconds = (sync.with_word("a sync has no value"),)
                yield Diagnostic("MC531", message, span, seconds, f"write `after: {other}`")


def stages_are_acyclic(facts: Facts) -> Iterator[Diagnostic]:
    """No stage waits for itself. Only a sync may close a circle."""
    pipeline = facts.recipe.pipeline
    reported: set[str] = set()
    for name in pipeline if _has_circle(facts) else ():
        circle = _circle(facts, name)
        if not circle or reported & set(circle):
            continue
        reported |= set(circle)
        message = f"stage `{name}` takes its own value"
        if len(circle) > 1:
            path = " -> ".join(f"`{stage}`" for stage in (*circle, circle[0]))
            message = f"stage `{name}` waits for itself: {path}"
        span = facts.value("pipeline", name, "in" if pipeline[name].inputs else "after")
        help = "a stage runs after those that it takes; move weights with `sync`"
        yield Diagnostic("MC532", message, span, help=help)


def _has_circle(facts: Facts) -> bool:
    """Returns whether the pipeline has a circle. Visits each stage once."""
    graph = {name: facts.recipe.before(stage) for name, stage in facts.recipe.pipeline.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError:
        return True
    return False


def _circle(facts: Facts, start: str) -> list[str]:
    """Returns the stages on a path from `start` back to itself, in the direction of the data; empty if there
    is none."""
    pipeline = facts.recipe.pipeline
    paths, seen = [[start]], set[str]()
    while paths:
        path = paths.pop()
        for before in facts.recipe.before(pipeline[path[-1]]):
            if before == start:
                return [start, *reversed(path[1:])]
            if before in pipeline and before not in seen:
                seen.add(before)
                paths.append([*path, before])
    return []


def joined_stages_differ(facts: Facts) -> Iterator[Diagnostic]:
    for name, stage in facts.recipe.pipeline.items():
        for given in stage.inputs:
            repeated = next((other for other in given.stages if given.stages.count(other) > 1), None)
            if repeated is None:
                continue
            last = len(given.stages) - 1 - given.stages[::-1].index(repeated)
            span = facts.value("pipeline", name, *input_path(given, last))
            yield Diagnostic(
                "MC533", f"stage `{name}` joins `{repeated}` with itself", span, help="remove one of them"
            )


def sync_has_two_ends(facts: Facts) -> Iterator[Diagnostic]:
    """A sync connects two different components, the target loads weights, and `max_staleness` fits
    `every`."""
    for name, stage in facts.recipe.pipeline.items():
        if stage.kind != "sync":
            continue
        target, to = facts.recipe.components.get(stage.to), facts.value("pipeline", name, "to")
        if stage.component and stage.component == stage.to:
            yield Diagnostic(
                "MC550",
                f"sync `{name}` goes from `{stage.to}` to itself",
                to,
                help="write the component that receives the weights",
            )
        if stage.lag < 0 and facts.is_valid("pipeline", name):
            age = f"the weights are up to {counted(stage.every - 1, 'step')} old"
            every = facts.value("pipeline", name, "every").with_word(age)
            message = f"`max_staleness` {stage.max_staleness} is less than `every` - 1"
            help = f"write {stage.every - 1} or more, or remove it"
            yield Diagnostic("MC551", message, facts.value("pipeline", name, "max_staleness"), (every,), help)
        if target is not None and target.frozen:
            frozen = facts.value("components", stage.to, "frozen")
            seconds = (frozen.with_word("`frozen`: it has no weights to load"),)
            yield Diagnostic("MC552", f"component `{stage.to}` cannot be the target of a sync", to, seconds)


def sync_methods_exist(facts: Facts) -> Iterator[Diagnostic]:
    for name, stage in facts.recipe.pipeline.items():
        if stage.kind != "sync":
            continue
        does = "yields (name, tensor) pairs"
        yield from _method_exists(facts, name, "sync", stage.component, stage.method, does)
        target = facts.recipe.components.get(stage.to)
        if stage.to != stage.component and not (target is not None and target.frozen):
            does = "takes a stream of (name, tensor) pairs"
            yield from _method_exists(facts, name, "to", stage.to, stage.to_method, does)


def _method_exists(
    facts: Facts, stage: str, key: str, component: str, method: str, does: str
) -> Iterator[Diagnostic]:
    found = facts.class_of(component)
    if found is None or not found.is_complete or not found.is_component:
        return
    if method not in found.methods:
        message = f"`{found.target}` has no method `{method}`"
    elif _is_for_batches(method, found.endpoints.get(method), key):
        message = f"`{found.target}.{method}` is an endpoint, which a sync does not call"
    else:
        return
    one, help = facts.recipe.pipeline[stage], f"define a method that {does}"
    ends = [facts.class_of(name) for name in (one.to, one.component)]
    if all(end and name in end.methods for end, name in zip(ends, ("weights", "load_weights"), strict=True)):
        help = f"turn it round: {{sync: {one.to}, to: {one.component}}}"
    yield Diagnostic("MC553", message, facts.value("pipeline", stage, key), help=help)


def _is_for_batches(method: str, endpoint: Endpoint | None, key: str) -> bool:
    """Returns whether a method is an endpoint that a sync cannot call. A sync passes no argument to the
    method that yields weights, and a stream to the one that loads them."""
    if endpoint is None:
        return False
    return bool(endpoint.signature.required) if key == "sync" else not method.startswith("load_")


RULES = (
    components_have_pipeline,
    sources_state_samples,
    components_are_used,
    inputs_are_calls,
    stages_are_acyclic,
    joined_stages_differ,
    sync_has_two_ends,
    sync_methods_exist,
)
