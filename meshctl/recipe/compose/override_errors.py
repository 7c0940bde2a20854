"""Explains overrides that Hydra's grammar refuses, and finds the spans of the parts of a value that it
accepts.

The grammar reports only the position at which its lexer stopped. `explain` examines the text at that
position.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.diagnostics import Diagnostic, Fix, Span
from meshctl.recipe.compose.yaml_tree import Node

FORM = "write KEY=VALUE to change a value, +KEY=VALUE to add a key, ~KEY to delete one"
QUOTE = "quote a value with special characters: key='a value'"
CLOSING = {"(": ")", "[": "]", "{": "}"}
CASTS = "`int`, `float`, `bool`, `str` and `json_str`"


@dataclass(frozen=True)
class _Cause:
    start: int
    """Index of the first wrong character, from 0."""
    width: int
    reason: str
    help: str


def explain(text: str, file: str, error: BaseException | None = None) -> Diagnostic:
    """Returns the diagnostic for a text that is not a valid override. `file` is its name in diagnostics."""
    cause = next(_causes(text, error))
    span = Span(file, 1, cause.start + 1, max(1, cause.width))
    message = (
        f"this is not a valid override: {cause.reason}" if cause.reason else "this is not a valid override"
    )
    return Diagnostic("MC206", message, span, help=cause.help, fixes=tuple(_fixes(text, file)))


def _causes(text: str, error: BaseException | None) -> Iterator[_Cause]:
    """Yields possible causes, the most specific first. The last one applies to every text."""
    key, equals, _ = text.partition("=")
    yield from _in_whole(text)
    if slash := re.match(r"[+~]*(/)[\w./-]*$", key) if equals else None:
        written = f"{key.replace('/', '.').lstrip('.')}={text[len(key) + 1 :]}"
        yield _Cause(slash.start(1), 1, "a key does not begin with `/`", f"write {written}")
    if "*" in key:
        help = "write an override for each name: components.actor.frozen=true"
        yield _Cause(key.index("*"), 1, "`*` is not a key", help)
    if not equals and (words := re.fullmatch(r"([\w.@/-]+) +(\S+)", text)):
        help = f"write {words[1]}={words[2]}"
        yield _Cause(words.end(1), words.start(2) - words.end(1), "it has no `=`", help)
    if not equals:
        yield from _in_key(key)
        yield _Cause(0, len(text), "it has no `=`", FORM)
    if sign := re.match(r"[+~]*[\w.@/-]+?\s*(:=|!=|==|\+=|-=|\*=)", text):
        written = f"{text[: sign.start(1)].rstrip()}={text[sign.end() :]}"
        yield _Cause(sign.start(1), 2, f"overrides have no operator `{sign[1]}`", f"write {written}")
    if "[" in key:
        yield _Cause(key.index("["), 1, "", "write the index of a list item after a dot: key.0=value")
    bare = key.lstrip("+~ ")
    if gap := re.search(r"\s+", bare.rstrip("\n")):
        start = len(key) - len(bare) + gap.start()
        help = f"write {''.join(key.split())}={text[len(key) + 1 :].lstrip()}"
        yield _Cause(start, len(gap[0]), "there must be no spaces in the key or before the `=`", help)
    yield from _in_key(key)
    yield from _in_value(text, len(key) + 1, error)
    column = _lexer_stop(text, error)
    if column is not None:
        yield _Cause(column, 1, f"`{text[column]}` is not allowed here", QUOTE)
    yield _Cause(0, len(text), "", QUOTE)


def _in_whole(text: str) -> Iterator[_Cause]:
    if not text.strip():
        yield _Cause(0, len(text), "it is empty", FORM)
    if text[:1] in "'\"" and text[-1:] == text[:1] and "=" in text:
        key, _, value = text[1:-1].partition("=")
        written = f"{key}={value}" if re.fullmatch(r"[\w./:-]+", value) else f"{key}='{value}'"
        yield _Cause(0, 1, "the quotes enclose the whole override", f"quote the value alone: {written}")
    if dashes := re.match(r"-+", text):
        rest = re.sub(r"^([\w.@/-]+) +(?=\S)", r"\1=", text[dashes.end() :])
        yield _Cause(0, dashes.end(), "", f"overrides are written without dashes: {rest}")
    if "=" not in text and (colon := re.match(r"[\w.@/-]+ *(: *)\S", text)):
        written = f"{text[: colon.start(1)].rstrip()}={text[colon.end(1) :]}"
        yield _Cause(colon.start(1), 1, "an override has `=` in place of `:`", f"write {written}")


def _in_key(key: str) -> Iterator[_Cause]:
    bare = key.lstrip("+~ ")
    if not bare.strip():
        yield _Cause(0, max(1, len(key)), "it has no key", FORM)
    elif dot := re.search(r"^\.|\.(?=\.)|\.$", bare.rstrip()):
        start = len(key) - len(bare) + dot.start()
        yield _Cause(start, 1, "a part of the key is empty", "write one dot between two parts: run.steps=3")


def _in_value(text: str, start: int, error: BaseException | None) -> Iterator[_Cause]:
    if (shell := text.find("$(", start)) >= 0:
        help = 'use double quotes, "key=$((...))", or ${key} for another value of the recipe'
        yield _Cause(shell, 2, "it contains `$(`, which the shell did not expand", help)
    if function := re.search(r"Unknown function '(\w+)'", str(error)):
        column = max(start, text.find(f"{function[1]}(", start))
        reason, help = f"function `{function[1]}` does not exist", f"available: {CASTS}; {QUOTE}"
        yield _Cause(column, len(function[1]), reason, help)
    if quoted := re.search(r"[{,]\s*([\"'])[^\"'{}]*\1\s*:", text[start:]):
        help = f"write {text[:start]}{{KEY: VALUE}}"
        yield _Cause(start + quoted.start(1), 1, "the keys of a mapping have no quotes", help)
    open, position = list[int](), start
    while position < len(text):
        character, here = text[position], position
        position = _past(text, position)
        if character in "'\"" and not _is_closed(text, here, position):
            help = "close it, or write a quote that is part of the value as \\'"
            yield _Cause(here, 1, f"this {character} is not closed", help)
        elif character in CLOSING:
            open.append(here)
        elif character in CLOSING.values() and (not open or CLOSING[text[open.pop()]] != character):
            yield _Cause(here, 1, f"this `{character}` has no opening bracket", QUOTE)
            return
    if open:
        help = "close it, or quote the value: key='a value'"
        yield _Cause(open[-1], 1, f"this `{text[open[-1]]}` is not closed", help)


def _lexer_stop(text: str, error: BaseException | None) -> int | None:
    """Returns the position at which Hydra's grammar stopped; None if it reports none."""
    cause = getattr(error, "__cause__", None)
    token = getattr(cause, "offendingToken", None)
    column = token.column if token is not None else getattr(cause, "startIndex", None)
    return column if isinstance(column, int) and 0 <= column < len(text) else None


def _fixes(text: str, file: str) -> Iterator[Fix]:
    """Yields the edit that corrects `--key=value` or `key[0]=value`, which have only one possible meaning."""
    key = text.partition("=")[0]
    if dashes := re.match(r"--+(?=[A-Za-z_][\w.@/-]*=)", text):
        yield Fix(Span(file, 1, 1, dashes.end()), dashes[0], "")
    elif re.fullmatch(r"[\w.]+(\[\d+\])+(\.\w+|\[\d+\])*", key):
        for item in re.finditer(r"\[(\d+)\]", key):
            yield Fix(Span(file, 1, item.start() + 1, len(item[0])), item[0], f".{item[1]}")


# The parts of a value


def locate_value(value: Any, text: str, start: int, file: str) -> Node | None:
    """Returns a mapping or list as a tree whose nodes have spans in `text`. The value begins at `start`.

    Returns None if the text does not spell out the value, e.g. for a function such as `sort([3, 1])`.
    """
    try:
        return _Locator(text, file, start).node(value)
    except _NotWritten:
        return None


class _NotWritten(Exception):
    pass


@dataclass
class _Locator:
    """Walks through a value and the text that spells it out, to find the span of each part."""

    text: str
    file: str
    position: int

    def node(self, value: Any) -> Node:
        self.skip_space()
        start = self.position
        if isinstance(value, dict):
            items = self.items("{", value, "}")
            return Node(items, self.span(start, self.position))
        if isinstance(value, list):
            items = self.items("[", dict(enumerate(value)), "]")
            return Node(list(items.values()), self.span(start, self.position))
        self.position = self.scalar_end(",]}")
        return Node(value, self.span(start, self.position), written=self.text[start : self.position])

    def items(self, opening: str, values: dict[Any, Any], closing: str) -> dict[str, Node]:
        items: dict[str, Node] = {}
        self.expect(opening)
        for key, value in values.items():
            span = self.key(str(key)) if opening == "{" else None
            node = self.node(value)
            items[str(key)] = Node(node.value, node.span, span, node.written)
            self.skip_space()
            self.position += self.text.startswith(",", self.position)
        self.expect(closing)
        return items

    def key(self, key: str) -> Span:
        self.skip_space()
        start, self.position = self.position, self.scalar_end(",]}:")
        if self.text[start : self.position].strip("'\"") != key:
            raise _NotWritten
        span = self.span(start, self.position)
        self.expect(":")
        return span

    def span(self, start: int, stop: int) -> Span:
        return Span(self.file, 1, start + 1, max(1, stop - start))

    def skip_space(self) -> None:
        while self.text[self.position : self.position + 1].isspace():
            self.position += 1

    def expect(self, character: str) -> None:
        self.skip_space()
        if not self.text.startswith(character, self.position):
            raise _NotWritten
        self.position += 1

    def scalar_end(self, ends: str) -> int:
        """Returns the end of a scalar, without trailing space. Brackets inside it belong to function
        calls."""
        position, depth = self.position, 0
        while position < len(self.text) and (depth or self.text[position] not in ends):
            depth += self.text[position] in CLOSING
            depth -= self.text[position] in CLOSING.values()
            position = _past(self.text, position)
        return self.position + len(self.text[self.position : position].rstrip())


def _past(text: str, start: int) -> int:
    """Returns the position after the character, the escaped character or the quoted text at `start`."""
    if text[start] == "\\":
        return start + 2
    if text[start] not in "'\"":
        return start + 1
    position = start + 1
    while position < len(text) and text[position] != text[start]:
        position += 2 if text[position] == "\\" else 1
    return position + 1


def _is_closed(text: str, start: int, stop: int) -> bool:
    return stop - start > 1 and stop <= len(text) and text[stop - 1] == text[start]
