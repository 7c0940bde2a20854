"""MC446 to MC449: checks the data that arguments of components name: their files, and the columns of the
first row.

A class declares `DATA = {"path": "args.path", ...}` and `COLUMNS`.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.code.data_files import FirstRow, Found, files_nearby, find, first_row
from meshctl.recipe.compose.yaml_tree import Node
from meshctl.recipe.rules.facts import Facts
from meshctl.recipe.rules.named_arguments import named_by, once, texts_listed_by
from meshctl.text.english import listed, nearest


def data_are_usable(facts: Facts) -> Iterator[Diagnostic]:
    """The data of each source exist, and their first row has the columns that it reads. Each path is reported
    once."""
    return once(one for name in facts.recipe.components if (one := _of_component(facts, name)))


def _of_component(facts: Facts, component: str) -> Diagnostic | None:
    declared = facts.declares(component).data
    node = named_by(facts, component, declared.path)
    if node is None:
        return None
    found = find(node.value, facts.code.path, declared.suffixes, _split(facts, component))
    near = nearest(node.value, files_nearby(node.value, facts.code.path, declared.suffixes))
    return _of_path(facts, node, found, near) or _of_row(facts, component, node, found)


def _split(facts: Facts, component: str) -> str:
    """Returns the split that a source reads; empty if it is unknown or if the class declares none."""
    path = facts.declares(component).data.split
    if path and facts.node("components", component, *path) is None:
        return "train"
    node = named_by(facts, component, path)
    return str(node.value) if node is not None else ""


def _of_path(facts: Facts, node: Node, found: Found, near: str) -> Diagnostic | None:
    """Returns a diagnostic if the path of a source leads to no data on this machine. `near` is the path of a
    file with a similar name; empty if there is none."""
    meant = f"did you mean `{near}`?" if near else ""
    if found.is_remote:
        message = f"{found.wrong}, so its columns are not checked"
        return Diagnostic(
            "MC449", message, node.span, help=meant or "it must be a dataset of the hub", severity="note"
        )
    if found.wrong:
        help = f"searched in {listed(facts.code.own)} and the installed packages"
        return Diagnostic("MC446", found.wrong, node.span, help=found.help or meant or help)
    return None


def _of_row(facts: Facts, component: str, node: Node, found: Found) -> Diagnostic | None:
    """Returns a diagnostic about the first row of the first file that is not empty."""
    rows = (first_row(file) for file in found.files)
    row = next((row for row in rows if not row.is_empty), FirstRow(is_empty=bool(found.files)))
    if row.is_empty:
        return Diagnostic("MC447", f"`{node.value}` has no rows", node.span)
    if row.wrong:
        return Diagnostic("MC447", row.wrong, node.span, help="a row is a line with one JSON object")
    missing = [column for column in _columns(facts, component) if column not in (row.columns or ())]
    if row.columns is None or not missing:
        return None
    message = f"the first row of `{node.value}` has no {listed(missing, 'or')}"
    help = f"its columns are {listed(row.columns)}" if row.columns else "the row is empty"
    if renamed := facts.declares(component).data.renamed:
        help += f"; for another one: {renamed[-1]}: {{{missing[0]}: COLUMN}}"
    return Diagnostic("MC448", message, node.span, help=help)


def _columns(facts: Facts, component: str) -> Iterator[str]:
    """Yields the names that the columns of a component have in its data."""
    declares = facts.declares(component)
    names = facts.argument(component, declares.data.renamed)
    renamed = {key: one.value for key, one in names.items()} if names is not None and names.is_mapping else {}
    for column in declares.columns:
        if not column.startswith("args."):
            yield str(renamed.get(column, column))
            continue
        yield from texts_listed_by(facts, component, tuple(column.split("."))) or ()


RULES = (data_are_usable,)
