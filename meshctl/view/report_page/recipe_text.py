"""The composed recipe as text: the lines that overrides have set are marked, and two recipes are compared."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher

from meshctl.view.report_page.markup import Child, Markup, inner, tag

CONTEXT = 3
"""Number of equal lines around a difference that are shown."""
_KEY = re.compile(r"(?P<indent> *)(?P<key>\"[^\"]*\"|'[^']*'|[^\s#:{}\[\]][^:]*):(?:\s|$)")


def marked(recipe: str, overrides: Sequence[str]) -> Markup:
    """Returns the recipe, in which the lines that overrides have set are marked."""
    lines = recipe.rstrip("\n").splitlines()
    chosen = set(_lines_of(_paths(lines), overrides))
    return tag(
        "pre",
        [inner(tag("mark", line) if number in chosen else line, "\n") for number, line in enumerate(lines)],
        class_="recipe",
        tabindex=0,
    )


def _paths(lines: Sequence[str]) -> list[tuple[str, ...]]:
    """Returns the path of the key in each line; an empty one for a line without a key."""
    above: list[tuple[int, str]] = []
    found = list[tuple[str, ...]]()
    for line in lines:
        if key := _KEY.match(line):
            indent = len(key["indent"])
            above = [one for one in above if one[0] < indent]
            above.append((indent, key["key"].strip("\"'")))
        found.append(tuple(name for _, name in above) if key else ())
    return found


def _lines_of(paths: Sequence[tuple[str, ...]], overrides: Iterable[str]) -> Iterator[int]:
    """Yields the numbers of the lines that overrides have set: that of the key, or else of the nearest key
    above it, because a small mapping is one line."""
    numbers = {path: number for number, path in reversed(list(enumerate(paths))) if path}
    for override in overrides:
        path = tuple(override.lstrip("+~").partition("=")[0].partition("@")[0].split("."))
        while path and path not in numbers:
            path = path[:-1]
        if path:
            yield numbers[path]


def compared(before: str, after: str) -> Markup:
    """Returns the lines in which two recipes differ, with some equal lines around them."""
    one, two = before.splitlines(), after.splitlines()
    if one == two:
        return tag("p", "The two recipes are the same.", class_="note")
    shown = list[Child]()
    for group in SequenceMatcher(a=one, b=two, autojunk=False).get_grouped_opcodes(CONTEXT):
        if shown:
            shown.append(tag("span", "…\n", class_="muted"))
        for kind, begin, end, other_begin, other_end in group:
            if kind == "equal":
                shown += [f"  {line}\n" for line in one[begin:end]]
                continue
            shown += [tag("del", f"- {line}\n") for line in one[begin:end]]
            shown += [tag("ins", f"+ {line}\n") for line in two[other_begin:other_end]]
    return tag("pre", shown, class_="recipe", tabindex=0)
