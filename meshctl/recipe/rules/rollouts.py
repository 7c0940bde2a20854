"""MC454 to MC456, MC461, MC465, MC508, MC588 and MC589: what samplers give, and what agents, losses,
advantages and rewards need.

    loss `ppo`, whose function has the parameter `advantages`
      --advantage `gae`, whose function has the parameter `values`--> the update needs a column `values`

A class declares in `RETURNS` the columns of its endpoints. If the columns of one stage before the update are
unknown, nothing is reported. The options of a function are its keyword-only parameters. An advantage compares
the answers to one prompt if it has the parameter `group_index`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import permutations
from typing import Any

from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.code.declarations import KeyPath
from meshctl.recipe.code.model_config import POSITIONS
from meshctl.recipe.code.signatures import Signature
from meshctl.recipe.code.tables import entries_in, literal_in, names_in, parameters_of
from meshctl.recipe.compose.yaml_tree import plain
from meshctl.recipe.fixes import renamed
from meshctl.recipe.model import Component, Stage
from meshctl.recipe.rules.arguments import given_names, wrong_type
from meshctl.recipe.rules.facts import ALL_LINEAR, Facts, texts_listed_by
from meshctl.text.english import did_you_mean, listed

MODEL = ("args", "model")
READY_MADE = ("", "weights", "adapter")
"""The parts that the models and samplers of meshctl send. A class may have methods for other parts."""
ADAPTER_DEFAULTS = {"r": 8, "alpha": 16, "target": ALL_LINEAR}
"""The options of an adapter that determine its weights, with their defaults."""
GROUP = "group_index"
"""The input of an advantage that compares the answers to one prompt."""


def synced_models_are_equal(facts: Facts, stage: Stage) -> Iterator[Diagnostic]:
    """Both components of a sync have models of the same architecture and sizes, as far as these are known.
    The number of positions has no weights in most models."""
    ends = (stage.component, stage.to)
    if stage.kind != "sync" or not all(facts.declares(name).model for name in ends):
        return
    is_adapter = stage.method == "adapter"
    is_ready_made = stage.method in READY_MADE and stage.to_method.removeprefix("load_") in READY_MADE
    loads_adapter = stage.to_method == "load_adapter"
    if is_ready_made and is_adapter != loads_adapter and facts.declares(stage.to).shipped.choices.get("lora"):
        sent = "an adapter" if is_adapter else "whole weights"
        message = f"`{stage.name}` sends {sent} to `{stage.to}.{stage.to_method}`"
        help = f"an adapter goes from `{ends[0]}.adapter` to `{ends[1]}.load_adapter`"
        yield Diagnostic("MC454", message, facts.value("pipeline", stage.name, "to"), help=help)
        return
    sides: list[dict[str, tuple[object, Span]]] = []
    for name in ends:
        tree, model = facts.config_values(name), facts.models[name]
        kind = tree.get("model_type") if tree else None
        known = {size: (number, model.spans[size]) for size, number in model.sizes.items() if number}
        adapter = _adapter(facts, name) if is_adapter else ()
        sides.append({**({"model_type": (kind.value, kind.span)} if kind else {}), **known, **dict(adapter)})
    one, other = sides
    shared = [name for name in one if name in other and name not in (POSITIONS, "sequence_length")]
    if differing := [name for name in shared if one[name][0] != other[name][0]]:
        what = listed(f"{name} ({one[name][0]} and {other[name][0]})" for name in differing)
        message = f"`{ends[0]}` and `{ends[1]}` have different models: {what.replace('`', '')}"
        first = zip((one[differing[0]], other[differing[0]]), ends, strict=True)
        seconds = tuple(span.with_word(f"`{name}`: {value}") for (value, span), name in first)
        help = "a sync needs the same model on both sides: name it once, in `vars`"
        yield Diagnostic("MC454", message, facts.value("pipeline", stage.name, "to"), seconds, help)


def _adapter(facts: Facts, component: str) -> Iterator[tuple[str, tuple[object, Span]]]:
    """Yields the options of a component's adapter that must be equal in both components of a sync, each as
    (name, (value, place))."""
    node, model = facts.node("components", component, "args", "lora"), facts.argument(component, MODEL)
    lora = facts.argument(component, ("args", "lora"))
    if model is not None and isinstance(model.value, str):
        yield "model", (model.value.rstrip("/").rpartition("/")[2], model.span)
    if lora is not None and lora.is_mapping and list(lora.items()):
        yield "lora", ("given", lora.span)
        defaults = {} if lora.get("from") else ADAPTER_DEFAULTS
        for key in ADAPTER_DEFAULTS:
            if (one := lora.get(key)) is not None or key in defaults:
                yield f"lora.{key}", (plain(one), one.span) if one is not None else (defaults[key], lora.span)
    elif facts.declares(component).shipped.choices.get("lora") and (node is None or lora is not None):
        yield "lora", ("none", node.span if node else facts.value("components", component))


def groups_have_several_answers(facts: Facts) -> Iterator[Diagnostic]:
    """A sampler gives several answers to a prompt where an advantage compares them."""
    for stage, sampler in _sampled(facts):
        size, advantage = value_of(facts, sampler, "group_size"), advantage_of(facts, stage.component)
        if size is None or size[0] != 1 or advantage is None:
            continue
        name, path, at = advantage
        function = parameters_of(facts.code_of(stage.component), path)
        is_trained = stage.method in facts.trained_by(stage.component)
        if is_trained and function and GROUP in function.inputs:
            compares = f"advantage `{name}` of `{stage.component}` compares the answers to one prompt"
            message = f"{compares}, but `group_size` of `{sampler}` is 1"
            seconds = (at.with_word(f"the advantage is `{name}`"),)
            help = "with one answer its advantage is always 0: write `group_size: 8`"
            yield Diagnostic("MC455", message, size[1], seconds, help)


def temperatures_are_equal(facts: Facts) -> Iterator[Diagnostic]:
    """A model computes log-probabilities of sampled answers at the temperature of their sampler. Each model
    is reported once."""
    reported: set[str] = set()
    for stage, sampler in _sampled(facts):
        component = stage.component
        sampler = facts.samplers.get(sampler, sampler)
        sampled = value_of(facts, sampler, "temperature")
        learns = facts.declares(component).shipped.learns
        own = value_of(facts, component, "temperature") if learns else None
        is_lm = facts.head(component) == "lm"
        if sampled is None or own is None or sampled[0] == own[0] or not is_lm or component in reported:
            continue
        reported.add(component)
        message = f"`temperature` of `{component}` is {own[0]}, but `{sampler}` samples at {sampled[0]}"
        seconds = (sampled[1].with_word(f"`{sampler}` samples at {sampled[0]}"),)
        help = f"write `temperature: ${{components.{sampler}.args.temperature}}` for `{component}`"
        yield Diagnostic("MC456", message, own[1], seconds, help, "warning")


def _sampled(facts: Facts) -> Iterator[tuple[Stage, str]]:
    """Yields (stage, sampler) for each stage that receives answers, directly or through other stages, and the
    component that generates them."""
    pipeline = facts.recipe.pipeline
    for stage in pipeline.values():
        seen, waiting = {stage.name}, [*stage.takes]
        while waiting:
            source = pipeline.get(waiting.pop())
            if source is None or source.name in seen:
                continue
            seen.add(source.name)
            if facts.declares(source.component).shipped.samples:
                if not facts.declares(stage.component).shipped.samples:
                    yield stage, source.component
            else:
                waiting += source.takes


def value_of(facts: Facts, component: str, argument: str) -> tuple[object, Span] | None:
    """Returns the value of an argument, or its default, and its place; None if it is unknown."""
    if facts.node("components", component, "args", argument) is not None:
        node = facts.argument(component, ("args", argument))
        return (plain(node), node.span) if node else None
    found = facts.class_of(component)
    defaults = found.constructor.defaults if found and found.constructor else {}
    return (defaults[argument], facts.key("components", component)) if argument in defaults else None


def loss_of(facts: Facts, component: str) -> tuple[str, str, Span] | None:
    """Returns name, dotted path and place of the loss of a component; None if it is unknown."""
    shipped = facts.declares(component).shipped
    chosen = value_of(facts, component, "loss") if shipped.learns else None
    if chosen is None or not isinstance(chosen[0], str):
        return None
    entries = entries_in(facts.code_of(component), shipped.choices["loss"])
    return chosen[0], entries.get(chosen[0], chosen[0]), chosen[1]


def advantage_of(facts: Facts, component: str) -> tuple[str, str, Span] | None:
    """Returns name, dotted path and place of the advantage that a component uses; None if it is unknown."""
    shipped = facts.declares(component).shipped
    if not shipped.learns:
        return None
    chosen, loss = (value_of(facts, component, argument) for argument in ("advantage", "loss"))
    if chosen is not None and not chosen[0] and loss is not None:
        chosen = entries_in(facts.code_of(component), DEFAULTS).get(str(loss[0]), ""), loss[1]
    if chosen is None or not isinstance(chosen[0], str) or not chosen[0]:
        return None
    entries = entries_in(facts.code_of(component), shipped.choices.get("advantage", ""))
    return chosen[0], entries.get(chosen[0], chosen[0]), chosen[1]


DEFAULTS = "meshctl.losses.advantages.DEFAULTS"
"""The table from a loss to its advantage, where none is given."""
SWITCHES, PROVIDERS = "meshctl.losses.loss.SWITCHES", "meshctl.losses.loss.PROVIDERS"
"""The tables of the optional inputs that options require, and of what provides an input."""
COMPUTED = tuple(f"meshctl.hf.outputs.{table}" for table in ("INPUTS", "OWN_INPUTS", "AT_IDS"))
"""The tables with the inputs of losses that a model computes."""
HEAD_OF = "meshctl.hf.outputs.HEAD_OF"
"""The table from an input of a loss to the head that computes it."""
ESTIMATES = ("advantages", "returns")
"""The inputs of a loss that the advantage computes."""
REWARDS = "meshctl.rewards.functions.FUNCTIONS"
"""The table of functions whose parameters are columns of the samples."""
RENAMED = ("args", "columns")
"""The argument with the columns of parameters whose names differ."""
ANSWERS = ("completion", "completions", "responses")
"""Names of the column `response` in other tools."""
SIDES = ("chosen_", "rejected_")
REFERENCE = "ref_"
"""The beginning of the names of inputs that a reference model computes."""
ANSWER_HELP = "the answer is `response`, one text, for which the function returns one number"


def inputs_are_given(facts: Facts, stage: Stage) -> Iterator[Diagnostic]:
    """The stages before an update return the columns that its loss needs."""
    component, found = stage.component, facts.class_of(stage.component)
    is_trained = stage.kind == "call" and stage.method in facts.trained_by(component)
    is_known = facts.declares(component).shipped.learns and found and not found.overrides_shipped
    if not is_trained or not is_known:
        return
    columns = columns_given_to(facts, stage)
    yield from _reference_is_base(facts, stage, columns or frozenset())
    for function, inputs, span in _needed(facts, component, columns) if columns is not None else ():
        message = f"`{stage.name}` does not receive {listed(inputs)}, which {function} of `{component}` needs"
        seconds = (span.with_word(function.replace("`", "")),)
        help = "; ".join(filter(None, dict.fromkeys(_help(facts, stage, name) for name in inputs)))
        yield Diagnostic("MC461", message, facts.value("pipeline", stage.name, "in"), seconds, help)


def rewards_are_computable(facts: Facts, stage: Stage) -> Iterator[Diagnostic]:
    """The stages before a reward return the columns that its functions need."""
    component, found = stage.component, facts.class_of(stage.component)
    choices = facts.declares(component).shipped.choices.items()
    paths = [("args", argument) for argument, table in choices if table == REWARDS]
    own = [("args", argument) for argument in facts.declares(component).shipped.dotted]
    is_called = stage.method == ("run" if own else "score")
    if not (paths or own) or not is_called or found is None or found.overrides_returns:
        return
    columns, code = columns_given_to(facts, stage), facts.code_of(component)
    given = facts.node("components", component, *RENAMED)
    renamed = {} if given is None else facts.argument(component, RENAMED) and plain(given)
    for name, span in (one for path in [*paths, *own] for one in given_names(facts, component, path)):
        parameters = parameters_of(code, entries_in(code, REWARDS).get(name, name))
        if parameters is None or columns is None or not isinstance(renamed, dict):
            continue
        needed = [renamed.get(one, one) for one in parameters.inputs[len(own) :]]  # without the episode
        if missing := [one for one in needed if one not in columns]:
            what = f"`{stage.name}` does not receive {listed(missing)}, which `{name}`"
            kept = f"a source keeps columns of its rows: keep: [{', '.join(missing)}]"
            help = ANSWER_HELP if missing[0] in ANSWERS else kept
            yield Diagnostic("MC461", f"{what} of `{component}` needs", span, help=help)


def samplers_are_beside(facts: Facts, component: Component) -> Iterator[Diagnostic]:
    """An agent names a sampler of its group, which works alone on each rank."""
    argument, name = facts.declares(component.name).shipped.sampler, facts.samplers.get(component.name)
    node = facts.argument(component.name, ("args", argument)) if argument else None
    if name is None or node is None:
        return
    other, mesh = facts.recipe.components.get(name), facts.meshes.get(name)
    known = {one: facts.declares(one).shipped for one in facts.recipe.components}
    samplers = [one for one, shipped in known.items() if shipped.samples and not shipped.sampler]
    help = f"write {listed(samplers, 'or')}" if samplers else "add a `meshctl.hf.Sampler` to the group"
    if other is None:
        what, help = "which does not exist", did_you_mean(name, samplers) or help
    elif name not in samplers and facts.class_of(name) is not None:
        what = "which is not a sampler"
    elif other.group != component.group:
        what = f"which is on group `{other.group}`"
        help = f"write `group: {other.group}` for `{component.name}`: requests are answered on their rank"
    elif mesh is not None and mesh.size("dp") != mesh.world_size:
        what, help = "whose model is split over ranks", f"leave out `parallel` of `{name}`"
    else:
        return
    message = f"`{argument}` of `{component.name}` is `{name}`, {what}"
    yield Diagnostic("MC589", message, node.span, help=help)


def _reference_is_base(facts: Facts, stage: Stage, columns: frozenset[str]) -> Iterator[Diagnostic]:
    """A loss that compares with a reference model gets it from a stage, if an adapter is continued: without
    its adapter, the model is the base, and not the model with which training begins."""
    node, chosen = facts.argument(stage.component, ("args", "lora", "from")), loss_of(facts, stage.component)
    found = parameters_of(facts.code_of(stage.component), chosen[1]) if node and chosen else None
    if node is None or found is None:
        return
    needed = (*found.inputs, *_switched_on(facts, stage.component, found, "loss_options"))
    if missing := [name for name in needed if name.startswith(REFERENCE) and name not in columns]:
        message = f"{listed(missing)} of `{stage.component}` are those of the base model, without `lora.from`"
        help = "to compare with the adapted one, export it, and call `ref_logprobs` of a frozen component"
        yield Diagnostic("MC461", message, node.span, help=help, severity="warning")


def _help(facts: Facts, stage: Stage, column: str) -> str:
    """Returns where a column comes from: a stage of the recipe, or what `providers` of the class names."""
    stages = [one for one in facts.recipe.pipeline.values() if one.block in ("", stage.block)]
    producers = [one.name for one in stages if one is not stage and column in (own_columns(facts, one) or ())]
    provider = entries_in(facts.code_of(stage.component), PROVIDERS).get(column, "")
    head = _head_of(facts, stage.component, column)
    if head != facts.head(stage.component) and head is not None:
        return f"a model with `head: {head}` computes `{column}`: change its `head`, or its loss"
    if producers:
        return f"take `{producers[0]}` too"
    return f"`{column}` comes from {provider}" if provider else ""


# Columns


def columns_given_to(facts: Facts, stage: Stage, seen: frozenset[str] = frozenset()) -> frozenset[str] | None:
    """Returns the columns that a stage receives; None if some may be unknown. `seen` are the stages that take
    it, directly or not."""
    found: frozenset[str] = frozenset()
    for name in stage.takes:
        source = facts.recipe.pipeline.get(name)
        own = own_columns(facts, source) if source is not None and name not in seen else None
        if own is None or source is None:
            return None
        kept: frozenset[str] | None = frozenset()
        if facts.declares(source.component).returns[source.method].keeps_inputs:
            kept = columns_given_to(facts, source, seen | {stage.name})
        if kept is None:
            return None
        found |= own | kept
    return found if stage.takes else None


def own_columns(facts: Facts, stage: Stage) -> frozenset[str] | None:
    """Returns the columns that a stage makes; None if some may be unknown."""
    component, found = stage.component, facts.class_of(stage.component)
    returned = facts.declares(component).returns.get(stage.method) if stage.kind == "call" else None
    is_valid = facts.is_valid("pipeline", stage.name) and facts.is_valid("components", component, "args")
    if returned is None or found is None or found.overrides_returns or not is_valid:
        return None
    names = [*returned.names]
    for path in returned.listed_by:
        listed_names = texts_listed_by(facts, component, path)
        if listed_names is None:
            return None
        names += listed_names
    for path, columns in returned.added_by.items():
        if _is_given(facts, component, path) is not False:
            names += columns
    return frozenset(names)


def _is_given(facts: Facts, component: str, path: KeyPath) -> bool | None:
    """Returns whether an argument has another value than 0 or null; None if it is unknown."""
    if facts.node("components", component, *path) is None:
        return False
    node = facts.argument(component, path)
    return bool(plain(node)) if node is not None else None


# Inputs


def _needed(
    facts: Facts, component: str, columns: frozenset[str]
) -> Iterator[tuple[str, tuple[str, ...], Span]]:
    """Yields (function, inputs, place) for the loss of a component and its advantage, if they need inputs
    that they do not get from `columns`; nothing for a loss that is unknown. A function is named as in
    messages, "loss `grpo`"."""
    chosen = loss_of(facts, component)
    if chosen is None:
        return
    loss, path, span = chosen
    missing = _missing(facts, component, path, "loss_options", columns)
    estimated = tuple(name for name in missing if name in ESTIMATES)
    if others := tuple(name for name in missing if name not in estimated):
        yield f"loss `{loss}`", others, span
    advantage = advantage_of(facts, component) if estimated else None
    if advantage is not None:
        name, path, at = advantage
        if missing := _missing(facts, component, path, "advantage_options", columns):
            yield f"advantage `{name}`", missing, at
    elif estimated and value_of(facts, component, "advantage") is not None:
        yield f"loss `{loss}`", estimated, span


def _missing(
    facts: Facts, component: str, function: str, options: str, columns: frozenset[str]
) -> tuple[str, ...]:
    """Returns the inputs that a function needs, and that are neither columns nor computed by the model."""
    parameters = parameters_of(facts.code_of(component), function)
    if parameters is None:
        return ()
    required = (*parameters.inputs, *_switched_on(facts, component, parameters, options))
    return tuple(
        name for name in required if name not in columns and not _is_computed(facts, component, name, columns)
    )


def _switched_on(facts: Facts, component: str, parameters: Signature, options: str) -> Iterator[str]:
    """Yields the optional inputs that options require: those with an option of certain values, or where none
    are stated, of another number than 0."""
    given: dict[str, Any] = {}
    if facts.node("components", component, "args", options) is not None:
        node = facts.argument(component, ("args", options))
        if node is None or not node.is_mapping:
            return
        given = plain(node)
    switches = literal_in(facts.code_of(component), SWITCHES)
    chosen = {**parameters.defaults, **given}
    for name in parameters.optional:
        needs = switches.get(name, {}) if isinstance(switches, Mapping) else {}
        for option, values in needs.items():
            value = chosen.get(option)
            if value in values if values else isinstance(value, (int, float)) and value != 0:
                yield name
                break


def _head_of(facts: Facts, component: str, name: str) -> object:
    """Returns the head that computes an input of a loss; None if every head does."""
    heads = literal_in(facts.code_of(component), HEAD_OF)
    return heads.get(name) if isinstance(heads, Mapping) and facts.head(component) else None


def _is_computed(facts: Facts, component: str, name: str, columns: frozenset[str]) -> bool:
    tables = [names_in(facts.code_of(component), table) for table in COMPUTED]
    if not all(tables):
        return True
    computed = {one for table in tables for one in table}
    is_of_pair = name.removeprefix(REFERENCE).startswith(SIDES)
    tokens = ("chosen_input_ids", "input_ids") if is_of_pair else ("input_ids", "chosen_input_ids")
    if tokens[0] not in columns and tokens[1] in columns:
        return False  # the model has pairs in place of single texts, or the other way round
    if name in computed:
        return (_head_of(facts, component, name) or facts.head(component)) == facts.head(component)
    has_reference = _is_given(facts, component, ("args", "lora")) is not False
    return has_reference and name.startswith(REFERENCE) and name.removeprefix(REFERENCE) in computed


def columns_come_once(facts: Facts, stage: Stage) -> Iterator[Diagnostic]:
    """No stage of a list has all columns of another one, because its class declares that it keeps them."""
    lists = [given.stages for given in stage.inputs if len(given.stages) > 1]
    for one, other in (pair for names in lists for pair in permutations(names, 2)):
        source = facts.recipe.pipeline.get(other)
        returned = facts.declares(source.component).returns.get(source.method) if source else None
        if source and returned and returned.keeps_inputs and one in source.takes:
            message = f"`{stage.name}` receives the columns of `{one}` twice: `{other}` returns them, too"
            span = facts.value("pipeline", stage.name, "in")
            yield Diagnostic("MC588", message, span, help=f"take `{other}` without `{one}`")


def options_exist(facts: Facts, component: Component) -> Iterator[Diagnostic]:
    """The functions of the loss and of its advantage have the options that the recipe sets."""
    for kind, function in (("loss", loss_of), ("advantage", advantage_of)):
        chosen = function(facts, component.name)
        given = facts.argument(component.name, ("args", f"{kind}_options"))
        parameters = parameters_of(facts.code_of(component.name), chosen[1]) if chosen else None
        if chosen is None or given is None or not given.is_mapping or parameters is None:
            continue
        known, what = parameters.options, f"{kind} `{chosen[0]}`"
        for option, value in given.items():
            if option not in known:
                message = f"{what} of `{component.name}` has no option `{option}`"
                help = did_you_mean(option, known) if known else "it has no options"
                span = value.key or value.span
                yield Diagnostic("MC465", message, span, help=help, fixes=renamed(span, option, known))
            elif (hint := parameters.hints.get(option)) and not value.from_environment:
                yield from wrong_type(value, hint, f"`{option}` of {what}")
