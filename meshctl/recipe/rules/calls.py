"""MC513 to MC519 and MC524: what stages call, against the source of the called class: endpoints, their
decorators and parameters.

What an endpoint takes and gives is known as far as its annotations say it simply: `Batch`, numbers, the
`range` of a source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.code.classes import WORDS, Class, Endpoint
from meshctl.recipe.code.modes import EXAMPLES, mode_problem
from meshctl.recipe.code.signatures import Hint, Signature
from meshctl.recipe.fixes import renamed
from meshctl.recipe.model import Input, Stage
from meshctl.recipe.rules.facts import REDUCED, Facts
from meshctl.text.english import counted, did_you_mean, listed
from meshctl.topology.modes import COLLECT, DISPATCH, EXECUTE

USER_MODE = re.compile(r"\w+(\.\w+)*:\w+")
"""The name of a mode that is an object of the user's code: `module:NAME`."""
SCALARS = {"int", "float", "text", "bool"}


@dataclass(frozen=True)
class Call:
    """A stage that calls an endpoint whose source was read."""

    stage: Stage
    kind: Class
    endpoint: Endpoint
    span: Span
    """Of `call`."""

    @property
    def takes(self) -> Signature:
        return self.endpoint.signature

    @property
    def shown(self) -> str:
        return f"`{self.stage.component}.{self.stage.method}`"


def calls(facts: Facts) -> Iterator[Call]:
    for name, stage in facts.recipe.pipeline.items():
        found = facts.class_of(stage.component)
        endpoint = found.endpoints.get(stage.method) if found else None
        if found and endpoint and stage.kind == "call":
            yield Call(stage, found, endpoint, facts.value("pipeline", name, "call"))


def known_endpoint(facts: Facts) -> Iterator[Diagnostic]:
    """The called method is there and is an endpoint."""
    for name, stage in facts.recipe.pipeline.items():
        found = facts.class_of(stage.component)
        if (
            stage.kind != "call"
            or not stage.method
            or found is None
            or found.is_component is False
            or stage.method in found.endpoints
        ):
            continue
        span = facts.value("pipeline", name, "call")
        if not found.whole or stage.method in found.made:
            continue  # what cannot be followed may well be an endpoint: the worker will know
        if stage.method in found.awaited:
            message = f"`{stage.method}` of `{found.target}` is async, and nobody awaits it"
            yield Diagnostic("MC513", message, span, help="write it with `def`")
        elif stage.method in found.methods:
            message = f"`{stage.method}` of `{found.target}` is not an endpoint"
            yield Diagnostic("MC513", message, span, help="decorate it with @endpoint")
        else:
            message = f"`{found.target}` has no endpoint `{stage.method}`"
            help = did_you_mean(stage.method, found.endpoints) or "decorate a method with @endpoint"
            yield Diagnostic(
                "MC513", message, span, help=help, fixes=renamed(span, stage.method, found.endpoints)
            )


def readable_words(facts: Facts) -> Iterator[Diagnostic]:
    """The decorator's words are modes, and literals; each decorator is looked at once."""
    seen: set[tuple[str, int, int]] = set()
    for call in calls(facts):
        if call.endpoint.place in seen:
            continue
        seen.add(call.endpoint.place)
        what = f"the decorator of `{call.kind.target}.{call.stage.method}`"
        if call.endpoint.unread:
            yield Diagnostic(
                "MC514",
                f"`{call.endpoint.unread}` in {what} is no literal, its default is taken",
                call.span,
                severity="note",
            )
        for strange in call.endpoint.strange:
            if strange:
                yield Diagnostic(
                    "MC518", f"{what} has no `{strange}`", call.span, help=did_you_mean(strange, WORDS)
                )
            else:
                yield Diagnostic(
                    "MC518",
                    f"{what} takes no value without a name",
                    call.span,
                    help='write dispatch="...", or collect="..."',
                )
        for key, word, modes in _modes(call.endpoint):
            if USER_MODE.fullmatch(word):
                yield _user_mode(facts, call, what, key, word)
            elif word not in modes:
                is_word = word.isidentifier()
                yield Diagnostic(
                    "MC515",
                    f"`{word}` in {what} is not a {key} mode",
                    call.span,
                    help=did_you_mean(word, modes) if is_word else f"write {EXAMPLES[key]}, and say its name",
                )


def _user_mode(facts: Facts, call: Call, what: str, key: str, word: str) -> Diagnostic:
    """A mode of the user's exists as an object; what it does is not known before the run."""
    if problem := mode_problem(facts.code, word, key):
        message = f"`{word}` in {what} is not a {key} mode: {problem}"
        return Diagnostic("MC515", message, call.span, help=f"write {EXAMPLES[key]}")
    message = f"`{word}` in {what} is a mode of your own for `{key}`: counts of its samples are not checked"
    return Diagnostic("MC527", message, call.span, severity="note")


def _modes(endpoint: Endpoint) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    yield "dispatch", endpoint.dispatch, tuple(DISPATCH)
    yield "collect", endpoint.collect, tuple(COLLECT)
    yield "execute", endpoint.execute, tuple(EXECUTE)


def known_parameters(facts: Facts) -> Iterator[Diagnostic]:
    """What a stage takes fits the method's parameters: named ones by name, the only one by position."""
    for call in calls(facts):
        if facts.is_valid("pipeline", call.stage.name, "in"):
            named = [given.parameter for given in call.stage.inputs if given.parameter]
            yield from _named(facts, call, named) if named else _only(facts, call)


def _named(facts: Facts, call: Call, named: list[str]) -> Iterator[Diagnostic]:
    takes, name = call.takes, call.stage.name
    unknown = [parameter for parameter in named if parameter not in takes.by_name and not takes.any_name]
    for parameter in unknown:
        span = facts.key("pipeline", name, "in", parameter)
        help = did_you_mean(parameter, takes.by_name)
        if parameter in takes.by_position:
            help = "it stands before a `/`: give it without a name"
        fixes = renamed(span, parameter, [other for other in takes.by_name if other not in named])
        yield Diagnostic(
            "MC516", f"{call.shown} has no parameter `{parameter}`", span, help=help, fixes=fixes
        )
    missing = [parameter for parameter in takes.required if parameter not in named]
    if missing and not unknown:
        yield Diagnostic(
            "MC516", f"{call.shown} needs {listed(missing)} too", facts.key("pipeline", name, "in")
        )


def _only(facts: Facts, call: Call) -> Iterator[Diagnostic]:
    """One value by position: an input, or the numbers of a source."""
    takes, stage = call.takes, call.stage
    gives = "the numbers of its samples" if stage.is_source else "one"
    span = facts.key("pipeline", stage.name, "in") if stage.inputs else call.span
    if not takes.first and not takes.more:
        help = (
            f"name it: in: {{{takes.by_name[0]}: {listed_stages(stage.inputs)}}}"
            if takes.by_name and stage.inputs
            else ""
        )
        if not takes.by_name:
            help = (
                "a source takes the range of its sample numbers"
                if stage.is_source
                else "give it a parameter, or let the stage take nothing"
            )
        what = "takes parameters by name only" if takes.by_name else "takes nothing"
        yield Diagnostic(
            "MC516", f"{call.shown} {what}, stage `{stage.name}` gives it {gives}", span, help=help
        )
        return
    missing = [parameter for parameter in takes.required if parameter != takes.first]
    if missing:
        every = [takes.first, *missing]
        message = (
            f"{call.shown} takes {counted(len(every), 'parameter')}, stage `{stage.name}` gives it {gives}"
        )
        help = f"name them: in: {{{', '.join(f'{parameter}: STAGE' for parameter in every)}}}"
        if stage.is_source:
            help = f"a source is called with these alone: give {listed(missing)} a default"
        yield Diagnostic("MC516", message, span, help=help)


def listed_stages(inputs: tuple[Input, ...]) -> str:
    stages = inputs[0].stages if inputs else ()
    return stages[0] if len(stages) == 1 else f"[{', '.join(stages)}]"


def right_values(facts: Facts) -> Iterator[Diagnostic]:
    """A parameter that is a `Batch` gets one, and one that is a number does not."""
    for call in calls(facts):
        if not facts.is_valid("pipeline", call.stage.name, "in"):
            continue
        if call.stage.is_source:
            yield from _source(facts, call)
        for given in call.stage.inputs:
            hint = call.takes.hints.get(given.parameter or call.takes.first)
            if hint is not None:
                yield from _given(facts, call, given, hint)


def _source(facts: Facts, call: Call) -> Iterator[Diagnostic]:
    hint = call.takes.hints.get(call.takes.first)
    if (
        call.stage.samples
        and hint is not None
        and hint.kinds <= {"batch", "nothing"}
        and "batch" in hint.kinds
    ):
        message = f"{call.shown} takes a Batch, and stage `{call.stage.name}` takes from no stage"
        yield Diagnostic(
            "MC519",
            message,
            call.span,
            help="say `in:` which stage gives it; a source takes the range of its sample numbers",
        )


def _given(facts: Facts, call: Call, given: Input, hint: Hint) -> Iterator[Diagnostic]:
    path = ("in", given.parameter) if given.parameter else ("in",)
    span = facts.value("pipeline", call.stage.name, *path)
    parameter = given.parameter or call.takes.first
    if hint.kinds == {"range"}:
        message = f"`{parameter}` of {call.shown} is the range of a source's sample numbers"
        yield Diagnostic("MC519", message, span, help="leave `in` out, and say `samples`")
        return
    source = facts.recipe.pipeline.get(given.stages[0]) if len(given.stages) == 1 else None
    collect = collected(facts, source) if source is not None else "flatten"
    if source is not None and _averages_batches(facts, source):
        return
    says = (
        (facts.key("pipeline", source.name).with_word(f"`collect` is {collect}"),)
        if source is not None
        else ()
    )
    if (
        "batch" in hint.kinds
        and hint.kinds <= {"batch", "nothing"}
        and collect in (*REDUCED, "none", "last_pp")
    ):
        gives = "numbers" if collect in REDUCED else "a list of its workers' values"
        message = f"`{parameter}` of {call.shown} is a Batch, and `{given.stages[0]}` gives {gives}"
        yield Diagnostic(
            "MC519", message, span, says, "take a stage that gives a batch, or change `collect` there"
        )
    elif hint.kinds and hint.kinds <= SCALARS and not hint.words and collect == "flatten":
        message = f"`{parameter}` of {call.shown} is {hint.described}, and `{given.stages[0]}` gives a batch"
        yield Diagnostic(
            "MC519", message, span, says, "what a constructor is told belongs into the component's `args`"
        )


def collected(facts: Facts, stage: Stage) -> str:
    """A stage's `collect`, or nothing where it is not known."""
    if stage.kind != "call" or not facts.is_valid("pipeline", stage.name, "collect"):
        return ""
    if stage.collect:
        return stage.collect
    found = facts.class_of(stage.component)
    endpoint = found.endpoints.get(stage.method) if found else None
    return (
        endpoint.collect if endpoint and endpoint.unread != "collect" and endpoint.collect in COLLECT else ""
    )


def _averages_batches(facts: Facts, stage: Stage) -> bool:
    """Whether a stage's `collect` is for numbers, and it gives batches."""
    found = facts.class_of(stage.component)
    endpoint = found.endpoints.get(stage.method) if found else None
    gives = endpoint.signature.gives if endpoint else None
    return (
        gives is not None
        and "batch" in gives.kinds
        and gives.kinds <= {"batch", "nothing"}
        and collected(facts, stage) in REDUCED
    )


def right_results(facts: Facts) -> Iterator[Diagnostic]:
    """`collect` can join what the endpoint gives: batches are not averaged, numbers are not laid end to end."""
    taken = {name for stage in facts.recipe.pipeline.values() for name in stage.takes}
    for call in calls(facts):
        collect, gives, name = collected(facts, call.stage), call.takes.gives, call.stage.name
        if gives is None or not collect or not facts.is_valid("pipeline", name):
            continue
        span = facts.value("pipeline", name, "collect") if call.stage.collect else call.span
        if _averages_batches(facts, call.stage):
            message = f"{call.shown} gives a Batch, and `collect: {collect}` is for numbers"
            yield Diagnostic("MC524", message, span, help="say `collect: flatten`")
        elif (
            collect == "flatten"
            and gives.kinds
            and gives.kinds <= {"mapping", *SCALARS}
            and (name in taken or call.stage.is_source)
        ):
            what = "a source gives batches" if call.stage.is_source else "`collect: flatten` joins batches"
            help = "give a Batch" if call.stage.is_source else "say `collect: mean`"
            yield Diagnostic("MC524", f"{call.shown} gives {gives.described}, and {what}", span, help=help)


RULES = (known_endpoint, readable_words, known_parameters, right_values, right_results)
