"""MC51x to MC55x: what stages call, what they take, in which order, and how many samples there are."""

from __future__ import annotations

from collections.abc import Iterator

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.model import Input, Stage
from meshctl.recipe.rules.facts import Facts
from meshctl.recipe.words import counted, did_you_mean, listed
from meshctl.routes import COLLECT, DISPATCH, EXECUTE

OURS = ("setup", "close", "state_dict", "load_state_dict", "weights", "load_weights")


def some_pipeline(facts: Facts) -> Iterator[Diagnostic]:
    if facts.recipe.components and not facts.recipe.pipeline and facts.right("pipeline"):
        help = "say what happens in a step: pipeline: {batch: {call: COMPONENT.METHOD}}"
        yield Diagnostic("MC510", "there are components, and no pipeline calls them", facts.key("components"), help=help)
    if not facts.recipe.components and not facts.recipe.pipeline and facts.recipe.groups and facts.right("components"):
        return
    for name, stage in facts.recipe.pipeline.items():
        if stage.is_source and not stage.samples and stage.component and facts.right("pipeline", name):
            message = f"stage `{name}` is a source (it takes nothing): it must say `samples`"
            help = "how many samples it gives a step, over all ranks: samples: 64; or `in:` the stage that it takes"
            yield Diagnostic("MC540", message, facts.key("pipeline", name), help=help)


def known_component(facts: Facts) -> Iterator[Diagnostic]:
    components = facts.recipe.components
    for name, stage in facts.recipe.pipeline.items():
        for key, component in (("call" if stage.kind == "call" else "sync", stage.component), ("to", stage.to)):
            if component and not facts.names("components", component) and facts.right("pipeline", name, key):
                help = did_you_mean(component, components)
                yield Diagnostic("MC512", f"there is no component `{component}`", facts.value("pipeline", name, key), help=help)


def every_component(facts: Facts) -> Iterator[Diagnostic]:
    """Somebody calls each component, else it only takes memory."""
    stages = facts.recipe.pipeline.values()
    called = {stage.component for stage in stages} | {stage.to for stage in stages}
    if not stages or any(stage.kind == "" or not stage.component for stage in stages):
        return
    for name in facts.recipe.components:
        found = facts.class_of(name)
        if name not in called and name in facts.meshes and (found is None or found.is_component):
            yield Diagnostic("MC517", f"no stage calls component `{name}`", facts.key("components", name), severity="warning")


def known_endpoint(facts: Facts) -> Iterator[Diagnostic]:
    """The called method is there and is an endpoint."""
    for name, stage in facts.recipe.pipeline.items():
        found = facts.class_of(stage.component)
        if stage.kind != "call" or not stage.method or found is None or found.is_component is False or stage.method in found.endpoints:
            continue
        span = facts.value("pipeline", name, "call")
        if not found.whole:
            continue  # a name that cannot be followed may well be the decorator: the worker will know
        if stage.method in found.methods:
            message = f"`{stage.method}` of `{found.target}` is not an endpoint"
            yield Diagnostic("MC513", message, span, help="decorate it with @endpoint")
        else:
            message = f"`{found.target}` has no endpoint `{stage.method}`"
            yield Diagnostic("MC513", message, span, help=did_you_mean(stage.method, found.endpoints) or "decorate a method with @endpoint")


def readable_words(facts: Facts) -> Iterator[Diagnostic]:
    """The decorator's words are modes, and literals."""
    for name, stage in facts.recipe.pipeline.items():
        found = facts.class_of(stage.component)
        endpoint = found.endpoints.get(stage.method) if found else None
        if endpoint is None or found is None or stage.kind != "call":
            continue
        span = facts.value("pipeline", name, "call")
        if endpoint.unread:
            message = f"`{endpoint.unread}` in the decorator of `{found.target}.{stage.method}` is no literal, its default is taken"
            yield Diagnostic("MC514", message, span, severity="note")
        for key, word, modes in _modes(endpoint.dispatch, endpoint.collect, endpoint.execute):
            if word not in modes:
                message = f"`{word}` in the decorator of `{found.target}.{stage.method}` is not a {key} mode"
                yield Diagnostic("MC515", message, span, help=did_you_mean(word, modes))


def _modes(dispatch: str, collect: str, execute: str) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    yield "dispatch", dispatch, tuple(DISPATCH)
    yield "collect", collect, tuple(COLLECT)
    yield "execute", execute, EXECUTE


def known_parameters(facts: Facts) -> Iterator[Diagnostic]:
    """`in: {scores: ...}` names parameters of the method."""
    for name, stage in facts.recipe.pipeline.items():
        found = facts.class_of(stage.component)
        endpoint = found.endpoints.get(stage.method) if found else None
        if endpoint is None or stage.kind != "call" or not facts.right("pipeline", name, "in"):
            continue
        named = [given.parameter for given in stage.inputs if given.parameter]
        for parameter in named:
            if parameter not in endpoint.parameters and not endpoint.takes_any:
                help = did_you_mean(parameter, endpoint.parameters)
                span = facts.key("pipeline", name, "in", parameter)
                yield Diagnostic("MC516", f"`{stage.component}.{stage.method}` has no parameter `{parameter}`", span, help=help)
        missing = [parameter for parameter in endpoint.parameters[: endpoint.required] if parameter not in named]
        if named and missing and all(parameter in endpoint.parameters for parameter in named):
            span = facts.key("pipeline", name, "in")
            yield Diagnostic("MC516", f"`{stage.component}.{stage.method}` needs {listed(missing)} too", span)
        elif not named and len(missing) > 1:
            message = f"`{stage.component}.{stage.method}` takes {counted(len(missing), 'parameter')}, stage `{name}` gives it one"
            help = f"name them: in: {{{', '.join(f'{parameter}: STAGE' for parameter in missing)}}}"
            yield Diagnostic("MC516", message, facts.key("pipeline", name, "in"), help=help)


def known_stages(facts: Facts) -> Iterator[Diagnostic]:
    """`in:` and `after:` name other stages; what is taken is a call's value."""
    pipeline = facts.recipe.pipeline
    for name, stage in pipeline.items():
        for given, path in _references(stage):
            span = facts.value("pipeline", name, *path)
            if given not in pipeline and facts.names("pipeline", given):
                continue
            if given not in pipeline:
                help = did_you_mean(given, [other for other in pipeline if other != name])
                yield Diagnostic("MC530", f"there is no stage `{given}`", span, help=help)
            elif pipeline[given].kind == "sync" and path[0] == "in":
                says = facts.key("pipeline", given).with_word("a sync gives no value")
                yield Diagnostic("MC531", f"stage `{name}` takes `{given}`, which is a sync", span, (says,), f"say `after: {given}`")


def _references(stage: Stage) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(stage that is named, where below this one)."""
    for given in stage.inputs:
        for index, other in enumerate(given.stages):
            yield other, _input_path(given, index)
    for index, other in enumerate(stage.after):
        yield other, ("after", str(index)) if len(stage.after) > 1 else ("after",)


def _input_path(given: Input, index: int) -> tuple[str, ...]:
    path = ("in", given.parameter) if given.parameter else ("in",)
    return (*path, str(index)) if len(given.stages) > 1 else path


def no_circle(facts: Facts) -> Iterator[Diagnostic]:
    """Batch routes are acyclic; only a sync may close the circle."""
    pipeline = facts.recipe.pipeline
    said: set[str] = set()
    for name in pipeline:
        circle = _circle(facts, name)
        if not circle or said & set(circle):
            continue
        said |= set(circle)
        drawn = " -> ".join(f"`{stage}`" for stage in (*circle, circle[0]))
        span = facts.value("pipeline", name, "in") if pipeline[name].inputs else facts.value("pipeline", name, "after")
        help = "a stage comes after those it takes; weights travel by `sync`"
        message = f"stage `{name}` waits for itself: {drawn}" if len(circle) > 1 else f"stage `{name}` takes its own value"
        yield Diagnostic("MC532", message, span, help=help)


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
                path = _input_path(given, len(given.stages) - 1 - given.stages[::-1].index(twice))
                yield Diagnostic("MC533", f"stage `{name}` joins `{twice}` with itself", facts.value("pipeline", name, *path))


def enough_samples(facts: Facts) -> Iterator[Diagnostic]:
    """Where the count is known, every share gets one, or the dispatch says `allow_empty`."""
    for name, stage in facts.recipe.pipeline.items():
        mesh = facts.meshes.get(stage.component)
        if mesh is None or stage.kind != "call":
            continue
        if stage.is_source:
            if 0 < stage.samples < mesh.data_size and not stage.dispatch.allow_empty:
                yield _too_few(facts, stage, stage, mesh.data_size, facts.value("pipeline", name, "samples"))
            continue
        for given in stage.inputs:
            source = facts.recipe.pipeline.get(given.stages[0]) if given.stages else None
            words = given.dispatch or stage.dispatch
            mode = DISPATCH.get(words.with_default(facts.endpoint(stage).dispatch).mode)
            execute = stage.execute or facts.endpoint(stage).execute
            if source is None or mode is None or words.allow_empty or execute != "all":
                continue
            if 0 < source.samples < mode.shares(mesh):
                yield _too_few(facts, stage, source, mode.shares(mesh), facts.value("pipeline", name, *_input_path(given, 0)))


def _too_few(facts: Facts, stage: Stage, source: Stage, shares: int, span: object) -> Diagnostic:
    samples = facts.value("pipeline", source.name, "samples")
    mesh = facts.key("components", stage.component).with_word(f"`{stage.component}` has {counted(shares, 'share')}")
    message = f"stage `{source.name}` gives {counted(source.samples, 'sample')}, `{stage.component}` shares them among {shares}"
    return Diagnostic("MC541", message, samples, (mesh,), f"give at least {shares}, or say `dispatch: {{allow_empty: true}}`")


def known_home(facts: Facts) -> Iterator[Diagnostic]:
    """`home` names an earlier stage of the same group."""
    pipeline, components = facts.recipe.pipeline, facts.recipe.components
    for name, stage in pipeline.items():
        for home, path in _homes(stage):
            span = facts.value("pipeline", name, *path)
            if home not in pipeline and facts.names("pipeline", home):
                continue
            if home not in pipeline:
                help = did_you_mean(home, [other for other in pipeline if other != name])
                yield Diagnostic("MC534", f"there is no stage `{home}` to be home", span, help=help)
                continue
            mine, other = components.get(stage.component), components.get(pipeline[home].component)
            if mine and other and mine.group != other.group:
                says = facts.key("pipeline", home).with_word(f"`{home}` runs on `{other.group}`")
                message = f"stage `{name}` runs on `{mine.group}`, its samples have no home in `{home}`"
                yield Diagnostic("MC535", message, span, (says,), "name a stage of the same group")
            elif home not in _upstream(facts, name):
                help = "name a stage that it takes, or that those take"
                yield Diagnostic("MC535", f"the samples of stage `{name}` do not come from `{home}`", span, help=help)


def _homes(stage: Stage) -> Iterator[tuple[str, tuple[str, ...]]]:
    if stage.dispatch.home:
        yield stage.dispatch.home, ("dispatch", "home")
    for given in stage.inputs:
        if given.dispatch and given.dispatch.home:
            yield given.dispatch.home, ("in", given.parameter, "dispatch", "home")


def _upstream(facts: Facts, name: str) -> set[str]:
    """The stages whose samples reach this one."""
    seen: set[str] = set()
    open = [name]
    while open:
        stage = facts.recipe.pipeline.get(open.pop())
        for before in stage.takes if stage else ():
            if before not in seen:
                seen.add(before)
                open.append(before)
    return seen


def right_sync(facts: Facts) -> Iterator[Diagnostic]:
    """A sync goes from one component that gives weights to another that loads them, no later than it may."""
    for name, stage in facts.recipe.pipeline.items():
        if stage.kind != "sync":
            continue
        if stage.component and stage.component == stage.to:
            yield Diagnostic("MC550", f"sync `{name}` goes from `{stage.to}` to itself", facts.value("pipeline", name, "to"))
        if stage.lag < 0 and facts.right("pipeline", name):
            says = facts.value("pipeline", name, "every").with_word(f"the weights are up to {counted(stage.every - 1, 'step')} old")
            message = f"`max_staleness` {stage.max_staleness} is less than `every` - 1"
            help = f"write {stage.every - 1} or more, or leave it out"
            yield Diagnostic("MC551", message, facts.value("pipeline", name, "max_staleness"), (says,), help)
        target = facts.recipe.components.get(stage.to)
        if target is not None and target.frozen:
            says = facts.value("components", stage.to, "frozen").with_word("`frozen`: it has no weights to load")
            yield Diagnostic("MC552", f"component `{stage.to}` is no target of a sync", facts.value("pipeline", name, "to"), (says,))
        for key, component, method in (("sync", stage.component, stage.method), ("to", stage.to, stage.to_method)):
            found = facts.class_of(component)
            if key == "to" and (stage.to == stage.component or (target is not None and target.frozen)):
                continue
            if found is not None and found.whole and found.is_component and method not in found.methods:
                message = f"`{found.target}` has no method `{method}`"
                does = "gives (name, tensor) pairs" if key == "sync" else "takes a stream of (name, tensor) pairs"
                yield Diagnostic("MC553", message, facts.value("pipeline", name, key), help=f"write one that {does}")


def known_metrics(facts: Facts) -> Iterator[Diagnostic]:
    """`run.show` names metrics, which are STAGE.NAME."""
    for index, metric in enumerate(facts.recipe.run.show):
        stage = metric.partition(".")[0]
        if facts.recipe.pipeline and not facts.names("pipeline", stage):
            node = facts.written.node("run", "show")
            span = facts.value("run", "show", str(index)) if node is not None and node.is_list else facts.value("run", "show")
            help = did_you_mean(stage, facts.recipe.pipeline)
            yield Diagnostic("MC560", f"`{metric}` is no metric, there is no stage `{stage}`", span, help=help)


RULES = (
    some_pipeline,
    known_component,
    every_component,
    known_endpoint,
    readable_words,
    known_parameters,
    known_stages,
    no_circle,
    given_twice,
    enough_samples,
    known_home,
    right_sync,
    known_metrics,
)
