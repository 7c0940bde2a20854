"""MC465 and MC508: the options of a loss, and of its advantage, are keyword-only parameters of the function,
and fit their annotations."""

from __future__ import annotations

from collections.abc import Iterator

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.code.functions import parameters_of
from meshctl.recipe.code.layouts import KeyPath
from meshctl.recipe.fixes import renamed
from meshctl.recipe.rules.arguments import wrong_type
from meshctl.recipe.rules.facts import Facts
from meshctl.recipe.rules.rollouts import advantage_of, loss_of
from meshctl.text.english import did_you_mean


def options_exist(facts: Facts) -> Iterator[Diagnostic]:
    """The functions of the loss and of its advantage have the options that the recipe sets."""
    for component in facts.recipe.components:
        declared = facts.declares(component).rollout
        if loss := loss_of(facts, component):
            yield from _checked(facts, component, "loss", loss[:2], declared.loss_options)
        if advantage := advantage_of(facts, component):
            yield from _checked(facts, component, "advantage", advantage[:2], declared.advantage_options)


def _checked(
    facts: Facts, component: str, kind: str, function: tuple[str, str], options: KeyPath
) -> Iterator[Diagnostic]:
    """Checks the options of a function, given as (its name, its dotted path)."""
    name, path = function
    given = facts.argument(component, options) if options else None
    parameters = parameters_of(facts.code_of(component), path)
    if given is None or not given.is_mapping or parameters is None:
        return
    known = parameters.keywords
    for option, value in given.items():
        if option not in known:
            message = f"{kind} `{name}` of `{component}` has no option `{option}`"
            help = did_you_mean(option, known) if known else "it has no options"
            span = value.key or value.span
            yield Diagnostic("MC465", message, span, help=help, fixes=renamed(span, option, known))
        elif (hint := parameters.hints.get(option)) and not value.from_environment:
            yield from wrong_type(value, hint, f"`{option}` of {kind} `{name}`")


RULES = (options_exist,)
