"""MC457 and MC458: checks arguments against the ranges and the exclusions that a class declares.

A class declares `RANGES = {"args.top_p": "> 0, <= 1"}` for numbers, and in `EXCLUDES` the arguments that must
not be set together. A value that is known at the launch only, such as that of an environment variable, is
checked by the constructor.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.compose.yaml_tree import KeyPath, Node, plain
from meshctl.recipe.rules.facts import Facts
from meshctl.text.english import listed


def numbers_are_in_range(facts: Facts) -> Iterator[Diagnostic]:
    """Each number is in the range that the class declares. A value to which other arguments refer is reported
    once, in its own place if it is an argument."""
    found = [
        (component, path, range, node)
        for component in facts.recipe.components
        for path, range in facts.declares(component).ranges.items()
        if (node := _given(facts, component, path)) is not None and not range.has(plain(node))
    ]
    reported: set[Span] = set()
    for component, path, range, node in sorted(found, key=lambda one: one[-1].target is not None):
        place = node.target or node.span
        if place not in reported:
            reported.add(place)
            message = (
                f"`{'.'.join(path[1:])}` of `{component}` is {plain(node)}; it must be {range.described}"
            )
            seconds = (place.with_word("this is its value"),) if node.target else ()
            yield Diagnostic("MC457", message, node.span, seconds, _help(facts, component, path))


def _help(facts: Facts, component: str, path: KeyPath) -> str:
    """Returns the value that an argument has if it is left out."""
    found = facts.class_of(component)
    defaults = found.constructor.defaults if found and found.constructor and len(path) == 2 else {}
    if path[-1] not in defaults:
        return ""
    default = defaults[path[-1]]
    return f"leave it out for {'the default' if default is None else f'the default, {default}'}"


def arguments_do_not_exclude_each_other(facts: Facts) -> Iterator[Diagnostic]:
    """No two arguments are set that exclude each other."""
    for component in facts.recipe.components:
        for path, others in facts.declares(component).excludes.items():
            node = _given(facts, component, path)
            for other in others if node is not None and plain(node) else ():
                second = _given(facts, component, other)
                if node is not None and second is not None and plain(second):
                    names = [".".join(one[1:]) for one in (path, other)]
                    message = f"{listed(names)} of `{component}` exclude each other"
                    seconds = (second.span.with_word(f"`{names[1]}` is set"),)
                    yield Diagnostic("MC458", message, node.span, seconds, "leave one of them out")


def _given(facts: Facts, component: str, path: KeyPath) -> Node | None:
    return facts.argument(component, path) if facts.is_valid("components", component, *path) else None


RULES = (numbers_are_in_range, arguments_do_not_exclude_each_other)
