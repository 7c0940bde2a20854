"""MC453: checks arguments that name something of a table, such as a loss.

A class declares `CHOICES = {"args.loss": "losses.LOSSES"}`, the table with the names. A name with dots is the
dotted path of the user's own function or class.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.code.classes import Code
from meshctl.recipe.code.names import names_in, wrong_path
from meshctl.recipe.compose.yaml_tree import Node
from meshctl.recipe.fixes import renamed
from meshctl.recipe.rules.facts import Facts
from meshctl.recipe.rules.named_arguments import named_by
from meshctl.text.english import did_you_mean


def names_exist(facts: Facts) -> Iterator[Diagnostic]:
    """The table of an argument has the name that the argument gives."""
    for component in facts.recipe.components:
        for path, table in facts.declares(component).choices.items():
            node = named_by(facts, component, path)
            if node is not None and facts.is_valid("components", component, *path):
                yield from _checked(facts.code_of(component), ".".join(path[1:]), node, table)


def _checked(code: Code, argument: str, node: Node, table: str) -> Iterator[Diagnostic]:
    name = node.value
    if "." in name:
        wrong, names = wrong_path(code, name)
        if wrong:
            help = did_you_mean(name.rpartition(".")[2], names)
            yield Diagnostic("MC453", f"`{argument}` is `{name}`, and {wrong}", node.span, help=help)
        return
    names = names_in(code, table)
    if names and name not in names:
        message, help = f"`{argument}` is `{name}`, which does not exist", did_you_mean(name, names)
        yield Diagnostic("MC453", message, node.span, help=help, fixes=renamed(node.span, name, names))


RULES = (names_exist,)
