"""The rules of `validate` and the requirements of a system, at the lines of its own configuration.

The configuration is converted in memory, and the recipe is checked as `validate` checks it. A finding is
moved to the keys from which the value was computed, and gets the words of the system where its table has
them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from meshctl.diagnostics import Diagnostic, Report, Span
from meshctl.foreign.convert import Converted
from meshctl.foreign.formula import Formula
from meshctl.foreign.model import Given
from meshctl.foreign.write import flow, text_of
from meshctl.recipe.compose.folders import real
from meshctl.recipe.compose.yaml_tree import Node
from meshctl.recipe.load import load
from meshctl.text.english import did_you_mean

CODE = "MC800"
"""The code of what the system itself requires."""
RECIPE = "recipe.yaml"
"""The name of the recipe in memory."""
Path_ = tuple[str, ...]
Severity = Literal["error", "warning", "note"]


def findings(found: Converted, folder: Path) -> Report:
    """Returns what is wrong with a configuration. `folder` is that of its files, in which names of files and
    of the user's code are looked up."""
    text = text_of(found.recipe, found.comments)
    loaded = load(RECIPE, [], folder, held={real(folder / RECIPE): text.encode()})
    paths = dict(_places(loaded.tree, ())) if loaded.tree else {}
    moved = [_moved(one, found, paths) for one in loaded.report.diagnostics]
    own = [*_checks(found)]
    places = {one.primary for one in own}
    own += [one for one in moved if one and one.primary not in places]
    order = {file: number for number, (file, _) in enumerate(found.source.sources)}

    def place(one: Diagnostic) -> tuple[int, int, int]:
        span = one.primary
        return (order.get(span.file, -1), span.line, span.column) if span else (-1, 0, 0)

    return Report(tuple(sorted(dict.fromkeys(own), key=place)), found.source.sources)


def _places(node: Node, path: Path_) -> Iterator[tuple[tuple[int, int], Path_]]:
    """Yields (line, column) -> path of each key and value of the recipe in memory."""
    for one in (node.key, node.span):
        if one is not None and Path(one.file).name == RECIPE:
            yield (one.line, one.column), path
    items = node.items() if node.is_mapping else enumerate(node.value) if node.is_list else ()
    for key, item in items:
        yield from _places(item, (*path, str(key)))


def _moved(one: Diagnostic, found: Converted, paths: Mapping[tuple[int, int], Path_]) -> Diagnostic | None:
    """Returns a finding at the lines of the configuration; None if its code does not hold for the system, or
    if no key of the configuration is behind it."""
    codes = found.table.codes
    if one.code not in codes:
        return None
    words = codes[one.code]
    keys = [key for span in (one.primary, *one.seconds) for key in _keys_at(span, found, paths)]
    if not keys:
        return None
    primary, *others = keys
    seconds = tuple(dict.fromkeys(_span(other) for other in others if other.key != primary.key))
    path = paths.get((one.primary.line, one.primary.column), ()) if one.primary else ()
    message = said(words, found) if words else _in_its_words(one.message, found, path)
    return Diagnostic(one.code, message, _span(primary), seconds, "", one.severity)


def _keys_at(span: Span | None, found: Converted, paths: Mapping[tuple[int, int], Path_]) -> Iterator[Given]:
    """Yields the keys from which the value at a place of the recipe comes: of this path, of those below it,
    or of those beside it."""
    path = paths.get((span.line, span.column)) if span else None
    while path:
        inside = [keys for one, keys in found.origins.items() if one[: len(path)] == path and keys]
        if inside:
            yield from (key for keys in inside for key in keys)
            return
        path = path[:-1] if len(path) > 2 else ()


def _span(given: Given) -> Span:
    return given.span.with_word(f"`{given.key}`")


def _checks(found: Converted) -> Iterator[Diagnostic]:
    """Yields what the system itself requires, and the keys that it does not have."""
    for one in found.source.given:
        if found.table.row(one.key) is None:
            message = f"`{one.key}` is no key of {found.table.title} {found.table.version}"
            help = did_you_mean(one.key, found.table.keys)
            near = help if help.startswith("did you mean") else ""
            yield Diagnostic(CODE, message, one.span, help=near, severity="warning")
    keys = {one.key: one for one in found.source.given}
    for check in found.table.checks:
        if Formula(check["unless"])(found.values) is not False:
            continue
        at = [keys[key] for key in check["at"].split() if key in keys]
        message, help = said(check["say"], found), said(check.get("help", ""), found)
        spans = [_span(one) for one in at]
        first = spans[0] if spans else Span(found.source.sources[0][0], 1, 1)
        severity: Severity = "warning" if check.get("severity") == "warning" else "error"
        yield Diagnostic(check.get("code", CODE), message, first, tuple(spans[1:]), help, severity)


def said(words: str, found: Converted) -> str:
    """Returns a message in which formulas in braces are replaced by their values."""

    def value(inside: re.Match[str]) -> str:
        result = Formula(inside[1])(found.values)
        return "?" if result is None else flow(result).strip('"')

    return re.sub(r"\{([^{}]+)\}", value, words)


def _in_its_words(message: str, found: Converted, path: Path_) -> str:
    """Returns a message of `validate` without names of components, in which the last parts of paths are keys
    of the system: of those with the same last part, the one nearest to the path of the finding."""

    def near(other: Path_) -> int:
        return sum(one == another for one, another in zip(path, other, strict=False))

    origins = sorted((one for one in found.origins.items() if one[1]), key=lambda one: near(one[0]))
    names = {other[-1]: keys[0].key for other, keys in origins}
    message = re.sub(rf" of `(meshctl[\w.]*|{'|'.join(found.recipe.get('components', ()))})`", "", message)
    return re.sub(
        r"`([\w.]+)`", lambda inside: f"`{names.get(inside[1].rpartition('.')[2], inside[1])}`", message
    )
