"""Parses interpolations: the `${...}` in a text, their parts, and the key path that a reference names."""

from __future__ import annotations

import re
from collections.abc import Iterator

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.compose.yaml_tree import KeyPath

MAX_NESTING = 32
"""Maximum nesting depth of interpolations."""

MAX_REFERENCES = 1_000
"""Maximum number of interpolations in one text."""


class InvalidInterpolation(Exception):
    """Ends the evaluation of one value. `interpolation.resolve` converts it to a diagnostic."""

    def __init__(
        self,
        code: str,
        message: str,
        help: str = "",
        circle: tuple[KeyPath, ...] = (),
        path: KeyPath | None = None,
        *,
        missing: bool = False,
        is_limit: bool = False,
    ) -> None:
        super().__init__(message)
        self.diagnostic = Diagnostic(code, message, help=help, missing=missing)
        self.circle = circle
        """A circle of references: each refers to the next, and the last to the first."""
        self.path = path
        """The path of the value whose text contains the invalid interpolation."""
        self.is_limit = is_limit
        """True if a limit was exceeded, which is reported only once."""


def references(text: str, path: KeyPath) -> Iterator[tuple[str, KeyPath | None]]:
    """Yields the references in the text of the value at `path`, from left to right, as (text, key path). The
    key path is None for the environment and for an invalid reference."""
    try:
        inner = [part for part, is_inner in split(text) if is_inner]
    except InvalidInterpolation:
        return
    for part in inner:
        name, colon, arguments = part.strip().partition(":")
        target = None
        if "${" in part:
            yield from references(part, path)
        elif not colon:
            target = _valid_target(name, path)
        elif name == "oc.select":
            target = _valid_target(next(iter(split_arguments(arguments)), ""), path)
        yield f"${{{part}}}", target


def _valid_target(text: str, path: KeyPath) -> KeyPath | None:
    try:
        return target_of(text, path)
    except InvalidInterpolation:
        return None


def target_of(text: str, path: KeyPath) -> KeyPath:
    """Returns the key path that a reference names. Leading dots are relative to the value at `path`."""
    dots = len(text) - len(text.lstrip("."))
    keys = tuple(key for key in re.split(r"\.|\[|\]\.?", text.lstrip(".")) if key)
    if dots >= len(path) + 1:
        raise InvalidInterpolation("MC212", f"`${{{text}}}` goes above the top of the recipe")
    if not keys:
        raise InvalidInterpolation("MC212", f"`${{{text}}}` is empty")
    return (*path[: len(path) - dots], *keys) if dots else keys


def split(text: str) -> Iterator[tuple[str, bool]]:
    """Yields (part, whether it is the inside of `${...}`) for the parts of a text, from left to right."""
    if text.count("${") > MAX_REFERENCES:
        raise InvalidInterpolation("MC218", f"one text has more than {MAX_REFERENCES:,} interpolations")
    start = position = 0
    plain = ""
    while position < len(text):
        if text.startswith("\\${", position):
            plain, position = plain + text[start:position] + "${", position + 3
            start = position
        elif text.startswith("${", position):
            if plain + text[start:position]:
                yield plain + text[start:position], False
            end = _closing_brace(text, position + 2)
            yield text[position + 2 : end], True
            plain, start, position = "", end + 1, end + 1
        else:
            position += 1
    if plain + text[start:]:
        yield plain + text[start:], False


def _closing_brace(text: str, position: int) -> int:
    depth = 1
    while position < len(text):
        depth += (text[position] == "{") - (text[position] == "}")
        if not depth:
            return position
        if depth > MAX_NESTING:
            raise InvalidInterpolation(
                "MC218", f"this interpolation is nested deeper than {MAX_NESTING} levels"
            )
        position += 1
    help = "add the `}`, or write `\\${` for the characters themselves"
    raise InvalidInterpolation("MC212", "this `${` is not closed", help)


def split_arguments(text: str) -> list[str]:
    """Splits at commas outside quotes, and removes the quotes."""
    parts = re.findall(r"\s*('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^,]*)\s*(?:,|$)", text)
    if parts and parts[-1] == "" and not text.rstrip().endswith(","):
        parts.pop()
    return [_unquoted(part.strip()) for part in parts]


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] in "'\"" and text[-1] == text[0] else text
