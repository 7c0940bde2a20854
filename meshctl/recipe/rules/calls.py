"""MC513 to MC519, MC524 and MC527: checks the calls of stages against the source of the called class: its
endpoints, their decorators and their parameters.

The types of parameters and of the returned value are known if the annotations are simple, such as `Batch`,
numbers, and the `range` of a source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from meshctl.dataclass import dataclass
from meshctl.diagnostics import Diagnostic, Fix, Span
from meshctl.recipe.code.classes import WORDS, Class, Endpoint
from meshctl.recipe.code.signatures import SCALARS, Hint, Signature
from meshctl.recipe.code.tables import EXAMPLES, mode_problem
from meshctl.recipe.fixes import renamed
from meshctl.recipe.mistakes import odd_letter
from meshctl.recipe.model import Input, Stage
from meshctl.recipe.rules.facts import Facts
from meshctl.text.english import counted, did_you_mean, listed
from meshctl.topology.modes import COLLECT, DISPATCH, EXECUTE, CollectMode

USER_MODE = re.compile(r"\w+(\.\w+)*:\w+")
"""The name of a user-defined mode: `module:NAME`."""
MODES: dict[str, Mapping[str, object]] = {"dispatch": DISPATCH, "collect": COLLECT, "execute": EXECUTE}
"""Parameter of the decorator -> its built-in modes."""


@dataclass(frozen=True)
class Call:
    """A stage and the endpoint that it calls, whose source was read."""

    stage: Stage
    kind: Class
    endpoint: Endpoint
    span: Span
    """The span of `call`."""

    @property
    def signature(self) -> Signature:
        return self.endpoint.signature

    @property
    def name(self) -> str:
        return f"`{self.stage.component}.{self.stage.method}`"

    @property
    def decorator(self) -> str:
        return f"the decorator of `{self.kind.target}.{self.stage.method}`"


def calls_of(facts: Facts) -> Iterator[Call]:
    """Yields the calls of stages whose endpoints are known."""
    for name, stage in facts.recipe.pipeline.items():
        kind, endpoint = facts.class_of(stage.component), facts.known_endpoint(stage)
        if kind and endpoint:
            yield Call(stage, kind, endpoint, facts.value("pipeline", name, "call"))


def call_names_method(facts: Facts, stage: Stage) -> Iterator[Diagnostic]:
    """`call` has the form COMPONENT.METHOD. A stage with `call` and `sync` has been reported."""
    node = facts.node("pipeline", stage.name, "call")
    if node is None or not isinstance(node.value, str) or not node.value:
        return
    text = node.value
    if (stage.method and text not in facts.targets) or facts.is_named("pipeline", stage.name, "sync"):
        return
    meant = list(_meant_calls(facts, text))
    fixes = (Fix(node.span, text, meant[0]),) if len(meant) == 1 else ()
    help = f"write {listed(meant, 'or')}" if meant else "write a component and its method: actor.update"
    message = f"`{text}` does not have the form COMPONENT.METHOD"
    yield Diagnostic("MC511", message, node.span, help=odd_letter(text) or help, fixes=fixes)


def _meant_calls(facts: Facts, text: str) -> Iterator[str]:
    """Yields the calls that may be meant by a text of another form."""
    parts = [part for part in re.split(r"[^\w-]+|->", text) if part]
    for component, endpoints in facts.endpoints().items():
        of_class = re.split(r"\W+", facts.recipe.components[component].target)
        for method in endpoints:
            if parts in ([component, method], [*of_class, method], of_class, [component], [method]):
                yield f"{component}.{method}"


def endpoint_exists(facts: Facts, stage: Stage) -> Iterator[Diagnostic]:
    """The called method exists and is an endpoint. A method whose source cannot be read is not reported here,
    but by the worker."""
    found, method = facts.class_of(stage.component), stage.method
    if stage.kind != "call" or not method or found is None or found.is_component is False:
        return
    if method in found.endpoints or method in found.assigned_members or not found.is_complete:
        return
    span, fixes = facts.value("pipeline", stage.name, "call"), tuple[Fix, ...]()
    if method in found.methods:
        message, help = f"`{method}` of `{found.target}` is not an endpoint", "decorate it with @endpoint"
    else:
        message = f"`{found.target}` has no endpoint `{method}`"
        help = did_you_mean(method, found.endpoints) or "decorate a method with @endpoint"
        fixes = renamed(span, method, found.endpoints)
    yield Diagnostic("MC513", message, span, help=help, fixes=fixes)


def decorator_is_readable(facts: Facts) -> Iterator[Diagnostic]:
    """The arguments of a decorator are literals that name modes. Each decorator is checked once."""
    for call in {call.endpoint.place: call for call in reversed([*calls_of(facts)])}.values():
        unread = call.endpoint.unread_parameter
        if unread:
            message = f"`{unread}` in {call.decorator} is not a literal; the default is assumed"
            yield Diagnostic("MC514", message, call.span, severity="note")
        for parameter in call.endpoint.unknown_arguments:
            message, help = f"{call.decorator} has no argument `{parameter}`", did_you_mean(parameter, WORDS)
            if not parameter:
                message = f"{call.decorator} has an argument without a name"
                help = 'write dispatch="...", or collect="..."'
            yield Diagnostic("MC518", message, call.span, help=help)
        yield from _modes_exist(facts, call)


def _modes_exist(facts: Facts, call: Call) -> Iterator[Diagnostic]:
    """Each mode of a decorator is built in or user-defined. The behaviour of a user-defined mode is unknown
    before the run."""
    for key, modes in MODES.items():
        mode = str(getattr(call.endpoint, key))
        named = f"`{mode}` in {call.decorator}"
        if USER_MODE.fullmatch(mode):
            if problem := mode_problem(facts.code_of(call.stage.component), mode):
                message = f"{named} is not a {key} mode: {problem}"
                yield Diagnostic("MC515", message, call.span, help=f"write {EXAMPLES[key]}")
            else:
                message = f"{named} is a mode of your own for `{key}`: counts of its samples are not checked"
                yield Diagnostic("MC527", message, call.span, severity="note")
        elif mode not in modes:
            help = f"write {EXAMPLES[key]}, and give its name"
            if mode.isidentifier():
                help = did_you_mean(mode, modes)
            yield Diagnostic("MC515", f"{named} is not a {key} mode", call.span, help=help)


def inputs_fit_parameters(facts: Facts, call: Call) -> Iterator[Diagnostic]:
    """The inputs of a stage match the parameters of the method: several by name, a single one by position.
    A stage without data calls an endpoint that needs no arguments."""
    stage = call.stage
    if not facts.is_valid("pipeline", stage.name, "in"):
        return
    named = [given.parameter for given in stage.inputs if given.parameter]
    if not stage.is_without_data:
        yield from _named_inputs_fit(facts, call, named) if named else _single_input_fits(facts, call)
    elif needed := call.signature.required:
        message = f"{call.name} needs {listed(needed)}, and stage `{stage.name}` has `in: []` (no data)"
        help = "list the stages that it takes, or remove `in` for a source"
        yield Diagnostic("MC516", message, facts.key("pipeline", stage.name, "in"), help=help)


def _named_inputs_fit(facts: Facts, call: Call, named: list[str]) -> Iterator[Diagnostic]:
    signature, name = call.signature, call.stage.name
    free = [parameter for parameter in signature.keywords if parameter not in named]
    unknown = [one for one in named if one not in signature.keywords and not signature.has_kwargs]
    missing = [parameter for parameter in signature.required if parameter not in named]
    for parameter in unknown:
        span, help = facts.key("pipeline", name, "in", parameter), did_you_mean(parameter, signature.keywords)
        message, fixes = f"{call.name} has no parameter `{parameter}`", renamed(span, parameter, free)
        yield Diagnostic("MC516", message, span, help=help, fixes=fixes)
    if missing and not unknown:
        message = f"{call.name} needs {listed(missing)} too"
        yield Diagnostic("MC516", message, facts.key("pipeline", name, "in"))


def _single_input_fits(facts: Facts, call: Call) -> Iterator[Diagnostic]:
    """A single value, which is the input or a source's range of sample numbers, is passed by position."""
    signature, stage = call.signature, call.stage
    value = "the range of its sample numbers" if stage.is_source else "one"
    if not signature.first and not stage.is_source:
        value = "its input without a name"
    gives = f"but stage `{stage.name}` passes {value}"
    span = facts.key("pipeline", stage.name, "in") if stage.inputs else call.span
    if not signature.first and not signature.has_varargs:
        takes, help = "has no parameters", "add one, or write `in: []` for a stage without data"
        if keywords := signature.keywords:
            takes, help = "has keyword-only parameters", f"write it by name: in: {{{keywords[0]}: STAGE}}"
        if stage.is_source:
            help = "a source is called with the range of its sample numbers"
        yield Diagnostic("MC516", f"{call.name} {takes}, {gives}", span, help=help)
        return
    missing = [parameter for parameter in signature.required if parameter != signature.first]
    if missing:
        every = [signature.first, *missing]
        message = f"{call.name} takes {counted(len(every), 'parameter')}, {gives}"
        help = f"write them by name: in: {{{', '.join(f'{parameter}: STAGE' for parameter in every)}}}"
        if stage.is_source:
            help = f"a source is called with this range only: give {listed(missing)} a default"
        yield Diagnostic("MC516", message, span, help=help)


def inputs_fit_types(facts: Facts, call: Call) -> Iterator[Diagnostic]:
    """A parameter annotated as `Batch` receives a batch, and a parameter annotated as a number does not."""
    stage, hints = call.stage, call.signature.hints
    if not facts.is_valid("pipeline", stage.name, "in"):
        return
    first = hints.get(call.signature.first)
    if stage.is_source and stage.samples and first is not None and first.is_batch:
        message = f"{call.name} expects a Batch, but stage `{stage.name}` has no `in`"
        help = "write `in: STAGE`; a source is called with the range of its sample numbers"
        yield Diagnostic("MC519", message, call.span, help=help)
    for given in stage.inputs if stage.name not in stage.takes else ():
        if hint := hints.get(given.parameter or call.signature.first):
            yield from _input_fits_type(facts, call, given, hint)


def _input_fits_type(facts: Facts, call: Call, given: Input, hint: Hint) -> Iterator[Diagnostic]:
    parameter = f"`{given.parameter or call.signature.first}` of {call.name}"
    source = facts.recipe.pipeline.get(given.stages[0]) if len(given.stages) == 1 else None
    collect, seconds = COLLECT["flatten"], tuple[Span, ...]()
    if source is not None and hint.kinds != {"range"}:
        known = _collect_mode(facts, source)
        if known is None or _reduces_batches(facts, source):
            return
        word = f"`collect` is {facts.modes[source.name].collect}"
        collect, seconds = known, (facts.key("pipeline", source.name).with_word(word),)
    if hint.kinds == {"range"}:
        message = f"{parameter} is the range of a source's sample numbers"
        help = "remove `in`, and write `samples`"
    elif hint.is_batch and (collect.is_reduced or collect.is_list):
        gives = "numbers" if collect.is_reduced else "a list of its workers' values"
        message = f"{parameter} is a Batch, but stage `{given.stages[0]}` produces {gives}"
        help = "take a stage that produces a batch, or change its `collect`"
    elif hint.is_scalar and collect.is_batch:
        message = f"{parameter} is {hint.described}, but stage `{given.stages[0]}` produces a batch"
        help = "arguments of the constructor go under the component's `args`"
    else:
        return
    path = ("in", given.parameter) if given.parameter else ("in",)
    yield Diagnostic("MC519", message, facts.value("pipeline", call.stage.name, *path), seconds, help)


def _collect_mode(facts: Facts, stage: Stage) -> CollectMode | None:
    if stage.kind != "call" or not facts.is_valid("pipeline", stage.name, "collect"):
        return None
    endpoint = facts.known_endpoint(stage)
    if not stage.collect and (endpoint is None or endpoint.unread_parameter == "collect"):
        return None
    return COLLECT.get(facts.modes[stage.name].collect)


def _reduces_batches(facts: Facts, stage: Stage) -> bool:
    """Returns whether a stage's collect mode works on numbers although its endpoint returns batches."""
    endpoint, collect = facts.known_endpoint(stage), _collect_mode(facts, stage)
    returned = endpoint.signature.returns if endpoint else None
    return returned is not None and returned.is_batch and collect is not None and collect.is_reduced


def results_can_be_collected(facts: Facts, call: Call) -> Iterator[Diagnostic]:
    """The collect mode fits the returned type: batches are not averaged, and numbers are not concatenated."""
    stage, returned, collect = call.stage, call.signature.returns, _collect_mode(facts, call.stage)
    if returned is None or collect is None or not facts.is_valid("pipeline", stage.name):
        return
    span = facts.value("pipeline", stage.name, "collect") if stage.collect else call.span
    is_needed = stage.is_source or stage.name in facts.taken
    may_return, needs = False, "a source must return batches"
    if returned.kinds == {"nothing"}:
        if not (stage.is_source or (is_needed and (collect.is_batch or collect.is_reduced))):
            return
        if not stage.is_source:
            needs = f"another stage takes the value of stage `{stage.name}`"
        message, span = f"{call.name} returns nothing, but {needs}", call.span
        help = "its `return` may be missing"
    elif stage.is_without_data and returned.is_batch:
        may_return = "nothing" in returned.kinds
        returns = "may return" if may_return else "returns"
        message = f"{call.name} {returns} a Batch, but stage `{stage.name}` has `in: []` (no data)"
        help = "its samples would have no ids: remove `in` for a source, or return numbers"
    elif _reduces_batches(facts, stage):
        mode = facts.modes[stage.name].collect
        message = f"{call.name} returns a Batch, but `collect: {mode}` is for numbers"
        help = "write `collect: flatten`"
    elif collect.is_batch and returned.kinds and returned.kinds <= {"mapping", *SCALARS} and is_needed:
        help = "return a Batch"
        if not stage.is_source:
            needs, help = "`collect: flatten` joins batches", "write `collect: mean`"
        message = f"{call.name} returns {returned.described}, but {needs}"
    else:
        return
    yield Diagnostic("MC524", message, span, help=help, severity="warning" if may_return else "error")
