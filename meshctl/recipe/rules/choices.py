"""MC453: checks arguments that name something of a table, such as a loss.

A class declares `CHOICES = {"args.loss": "losses.LOSSES"}`, the table with the names. The argument is a
name, or a mapping whose keys are names. A name with dots is the dotted path of the user's own function or
class.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.code.classes import Code
from meshctl.recipe.code.names import names_in, wrong_path
from meshctl.recipe.compose.yaml_tree import KeyPath
from meshctl.recipe.fixes import renamed
from meshctl.recipe.rules.facts import Facts
from meshctl.recipe.rules.named_arguments import named_by
from meshctl.text.english import did_you_mean


def names_exist(facts: Facts) -> Iterator[Diagnostic]:
    """An argument names an entry of its table."""
    for component in facts.recipe.components:
        for path, table in facts.declares(component).choices.items():
            if facts.is_valid("components", component, *path):
                for name, span in given_names(facts, component, path):
                    yield from _checked(facts.code_of(component), ".".join(path[1:]), name, span, table)


def given_names(facts: Facts, component: str, path: KeyPath) -> Iterator[tuple[str, Span]]:
    """Yields the names in an argument, each with its place: a text, or the keys of a mapping."""
    mapping = facts.argument(component, path)
    if mapping is not None and mapping.is_mapping:
        yield from ((name, value.key or value.span) for name, value in mapping.items())
    elif node := named_by(facts, component, path):
        yield node.value, node.span


def _checked(code: Code, argument: str, name: str, span: Span, table: str) -> Iterator[Diagnostic]:
    if "." in name:
        if (last := name.removeprefix("torch.")) in names_in(code, table):
            message = f"`{argument}` is `{name}`, and takes a name without `torch`"
            yield Diagnostic("MC453", message, span, help=f"write `{last}`")
        elif wrong := wrong_path(code, name):
            message = f"`{argument}` is `{name}`, and {wrong.reason}"
            yield Diagnostic("MC453", message, span, help=did_you_mean(wrong.word, wrong.options))
        return
    names = names_in(code, table)
    if names and name not in names:
        message, help = f"`{argument}` is `{name}`, which does not exist", did_you_mean(name, names)
        yield Diagnostic("MC453", message, span, help=help, fixes=renamed(span, name, names))


RULES = (names_exist,)
