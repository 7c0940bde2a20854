"""MC454 to MC456: compares a sampler with the models that learn from its answers, or send it their weights.

A class declares the arguments of sampling and of learning as `ROLLOUT`. Whether an advantage compares the
answers to one prompt is read from its function, which then has the parameter `group_index`.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.code.declarations import TRAINED_BY
from meshctl.recipe.code.functions import parameters_of
from meshctl.recipe.code.layouts import KeyPath
from meshctl.recipe.code.model_config import POSITIONS
from meshctl.recipe.code.modules import Sources
from meshctl.recipe.code.names import entries_in
from meshctl.recipe.compose.yaml_tree import plain
from meshctl.recipe.model import Stage
from meshctl.recipe.rules.facts import Facts
from meshctl.text.english import listed

GROUP = "group_index"
"""The input of an advantage that compares the answers to one prompt."""


def synced_models_are_equal(facts: Facts) -> Iterator[Diagnostic]:
    """Both components of a sync have models of the same architecture and sizes, as far as these are known."""
    for stage in facts.recipe.pipeline.values():
        ends = (stage.component, stage.to)
        if stage.kind != "sync" or not all(facts.declares(name).model for name in ends):
            continue
        differences = [*_architectures(facts, *ends), *_sizes(facts, *ends)]
        if differences:
            what = listed(f"{name} ({one} and {other})" for name, (one, _), (other, _) in differences)
            message = f"`{ends[0]}` and `{ends[1]}` have different models: {what.replace('`', '')}"
            _, (one, at), (other, there) = differences[0]
            seconds = (at.with_word(f"`{ends[0]}`: {one}"), there.with_word(f"`{ends[1]}`: {other}"))
            help = "a sync needs the same model on both sides: name it once, in `vars`"
            yield Diagnostic("MC454", message, facts.value("pipeline", stage.name, "to"), seconds, help)


Difference = tuple[str, tuple[object, Span], tuple[object, Span]]
"""The name of a fact that differs, and its value and place in both models."""


def _architectures(facts: Facts, one: str, other: str) -> Iterator[Difference]:
    trees = facts.config_values(one), facts.config_values(other)
    kinds = [tree.get("model_type") if tree else None for tree in trees]
    first, second = kinds
    if first and second and first.value != second.value:
        yield "model_type", (first.value, first.span), (second.value, second.span)


def _sizes(facts: Facts, one: str, other: str) -> Iterator[Difference]:
    """Yields the sizes that differ. The number of positions has no weights in most models."""
    first, second = facts.models[one], facts.models[other]
    for size, number in first.sizes.items():
        if second.get(size) not in (0, number) and size not in (POSITIONS, "sequence_length"):
            yield size, (number, first.spans[size]), (second.get(size), second.spans[size])


def groups_have_several_answers(facts: Facts) -> Iterator[Diagnostic]:
    """A sampler gives several answers to a prompt where an advantage compares them."""
    for stage, sampler in _sampled(facts):
        memory = facts.declares(stage.component).memory or {}
        size = value_of(facts, sampler, facts.declares(sampler).rollout.group_size)
        advantage = advantage_of(facts, stage.component)
        if size is None or size[0] != 1 or advantage is None:
            continue
        name, path, at = advantage
        code = facts.code_of(stage.component)
        if stage.method in memory.get(TRAINED_BY, [stage.method]) and GROUP in _inputs(code, path):
            compares = f"advantage `{name}` of `{stage.component}` compares the answers to one prompt"
            message = f"{compares}, but `group_size` of `{sampler}` is 1"
            seconds = (at.with_word(f"the advantage is `{name}`"),)
            help = "with one answer its advantage is always 0: write `group_size: 8`"
            if single := [
                one for one, path in table_of(facts, stage.component).items() if _is_single(code, path)
            ]:
                help = f"{help}, or use {listed(single, 'or')}"
            yield Diagnostic("MC455", message, size[1], seconds, help)


def temperatures_are_equal(facts: Facts) -> Iterator[Diagnostic]:
    """A model computes log-probabilities of sampled answers at the temperature of their sampler. Each model
    is reported once."""
    reported: set[str] = set()
    for stage, sampler in _sampled(facts):
        component = stage.component
        sampled = value_of(facts, sampler, facts.declares(sampler).rollout.temperature)
        own = value_of(facts, component, facts.declares(component).rollout.temperature)
        is_score = facts.head(component) == "score"
        if sampled is None or own is None or sampled[0] == own[0] or is_score or component in reported:
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
            if facts.declares(source.component).rollout.group_size:
                if not facts.declares(stage.component).rollout.group_size:
                    yield stage, source.component
            else:
                waiting += source.takes


def value_of(facts: Facts, component: str, path: KeyPath) -> tuple[object, Span] | None:
    """Returns the value of an argument, or its default, and its place; None if it is unknown."""
    if not path:
        return None
    if facts.node("components", component, *path) is not None:
        node = facts.argument(component, path)
        return (plain(node), node.span) if node else None
    found = facts.class_of(component)
    defaults = found.constructor.defaults if found and found.constructor else {}
    return (defaults[path[-1]], facts.key("components", component)) if path[-1] in defaults else None


def loss_of(facts: Facts, component: str) -> tuple[str, str, Span] | None:
    """Returns name, dotted path and place of the loss of a component; None if it is unknown."""
    declared = facts.declares(component)
    chosen, table = (
        value_of(facts, component, declared.rollout.loss),
        declared.choices.get(declared.rollout.loss, ""),
    )
    if chosen is None or not isinstance(chosen[0], str):
        return None
    entries = entries_in(facts.code_of(component), table) if table else {}
    return chosen[0], entries.get(chosen[0], chosen[0]), chosen[1]


def advantage_of(facts: Facts, component: str) -> tuple[str, str, Span] | None:
    """Returns name, dotted path and place of the advantage that a component uses; None if it is unknown."""
    declared, code = facts.declares(component).rollout, facts.code_of(component)
    chosen, loss = (value_of(facts, component, path) for path in (declared.advantage, declared.loss))
    if chosen is not None and not chosen[0] and loss is not None and declared.advantages:
        chosen = entries_in(code, declared.advantages).get(str(loss[0]), ""), loss[1]
    if chosen is None or not isinstance(chosen[0], str) or not chosen[0]:
        return None
    return chosen[0], table_of(facts, component).get(chosen[0], chosen[0]), chosen[1]


def table_of(facts: Facts, component: str) -> dict[str, str]:
    """Returns name -> dotted path of the advantages that a component can name."""
    declared = facts.declares(component)
    table = declared.choices.get(declared.rollout.advantage, "")
    return entries_in(facts.code_of(component), table) if table else {}


def _is_single(code: Sources, path: str) -> bool:
    """Returns whether an advantage needs neither other answers to the prompt nor the values of a critic."""
    inputs = _inputs(code, path)
    return bool(inputs) and not {GROUP, "values"} & {*inputs}


def _inputs(code: Sources, path: str) -> tuple[str, ...]:
    """Returns the required inputs of an advantage; none if they are unknown."""
    found = parameters_of(code, path)
    return found.required if found else ()


RULES = (synced_models_are_equal, groups_have_several_answers, temperatures_are_equal)
