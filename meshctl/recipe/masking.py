"""Reports without secrets: texts in which secrets are hidden, and lines of files in which they are masked by
stars.

A line keeps its columns, so the marks below it still fit. In a file that is YAML, the parser says where each
scalar stands; in a file that is not, every line that may hold a secret is masked whole.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml

from meshctl.diagnostics import Diagnostic, Report, Span
from meshctl.recipe.compose.overrides import is_override
from meshctl.recipe.compose.yaml_reader import MAX_DEPTH
from meshctl.recipe.compose.yaml_tree import Path
from meshctl.recipe.secrets import Secrets
from meshctl.text.redaction import (
    MAX_LINE,
    Stretch,
    follows_option,
    is_reference,
    is_secret_at,
    is_suspect,
    is_text,
    mask,
    mask_unreadable,
    redact,
    referred_names,
    stretches,
    stretches_of,
    stretches_of_override,
)

Position = tuple[int, int]
"""(line, column), both from 1."""
NO_SECRETS = Secrets()


def redact_report(report: Report, secrets: Secrets) -> Report:
    """Returns a report without secrets. A fix whose text would show one is left out."""
    lines = dict(report.sources)
    shown = {file: mask_lines(file, lines[file], secrets) for file in lines}
    texts = (f"{found.message} {found.help}" for found in report.diagnostics)
    if shown == lines and not secrets.known and not any(map(is_suspect, texts)):
        return report
    found = [_redacted(found, secrets.known) for found in report.diagnostics]
    found = [
        replace(one, fixes=()) if any(_covers(fix.span, lines, shown) for fix in one.fixes) else one
        for one in found
    ]
    sources = tuple((file, shown[file]) for file, _ in report.sources)
    return replace(report, diagnostics=tuple(found), sources=sources)


def _redacted(found: Diagnostic, known: Iterable[str]) -> Diagnostic:
    def span(one: Span) -> Span:
        return replace(one, label=redact(one.label, known)) if one.label else one

    return replace(
        found,
        message=redact(found.message, known),
        primary=span(found.primary) if found.primary else None,
        seconds=tuple(map(span, found.seconds)),
        help=redact(found.help, known),
    )


def _covers(span: Span, lines: Mapping[str, Sequence[str]], shown: Mapping[str, Sequence[str]]) -> bool:
    """Returns whether a part of the text at a span is masked."""
    if not 0 < span.line <= len(lines.get(span.file, ())):
        return False
    part = slice(span.column - 1, span.column - 1 + span.width)
    return lines[span.file][span.line - 1][part] != shown[span.file][span.line - 1][part]


def mask_lines(file: str, lines: Sequence[str], secrets: Secrets = NO_SECRETS) -> tuple[str, ...]:
    """Returns the lines of a file, or the line of an override, with stars in place of secrets."""
    places = {(line, column) for name, line, column in secrets.places if name == file}
    if not places and not secrets.written and not is_suspect("\n".join(lines)):
        return tuple(lines)
    if is_override(file):
        by_line = [stretches_of_override(line) for line in lines]
    else:
        try:
            by_line = _File(lines).secrets(places)
        except (yaml.YAMLError, RecursionError):
            lines, by_line = mask_unreadable(lines), [[] for _ in lines]
    pairs = zip(lines, by_line, strict=True)
    return tuple(mask(line, [*found, *stretches_of(line, secrets.written)]) for line, found in pairs)


@dataclass(frozen=True)
class _File:
    lines: Sequence[str]

    def secrets(self, places: Collection[Position]) -> list[list[Stretch]]:
        """Returns the secret stretches of each line: scalars under a secret's key, after an option that is
        one, and those that begin at `places`; in other scalars and in comments, what their text shows. Raises
        yaml's errors."""
        found: list[list[Stretch]] = [[] for _ in self.lines]
        ends = [0] * len(self.lines)
        has_secret_at_end = [False] * len(self.lines)
        for event, is_secret in _scalars("\n".join(self.lines), places):
            for number, start, end in self.extent(event):
                if end >= ends[number]:
                    ends[number], has_secret_at_end[number] = end, is_secret
                found[number] += [(start, end)] if is_secret else self.within(number, start, end)
        for number, end in enumerate(ends):
            rest = self.lines[number][end:].rstrip()
            if has_secret_at_end[number] and re.match(r"\s*#", rest):  # the comment may repeat the secret
                found[number].append((end, end + len(rest)))
            else:
                found[number] += self.within(number, end, len(self.lines[number]))
        return found

    def extent(self, event: Any) -> Iterator[tuple[int, int, int]]:
        """Yields (line, first column, end) of a scalar, all from 0."""
        first, last = event.start_mark, event.end_mark
        for number in range(first.line, min(last.line + 1, len(self.lines))):
            line = self.lines[number]
            start = first.column if number == first.line else len(line) - len(line.lstrip())
            end = last.column if number == last.line else len(line.rstrip())
            yield number, min(start, end), end

    def within(self, number: int, start: int, end: int) -> list[Stretch]:
        """Returns what a text shows to be secret by its own keys and options."""
        text = self.lines[number][start:end]
        if len(text) > MAX_LINE:
            return [(start, end)] if is_suspect(text) else []
        in_flow = "{" in text or "[" in text
        return [(start + begin, start + stop) for begin, stop in stretches(text, in_flow)]


@dataclass
class _Open:
    """A mapping or a list whose end the parser has not reached."""

    path: Path
    is_secret: bool
    is_mapping: bool
    key: str | None = None
    """The key whose value comes next."""
    previous: str = ""
    """The item before the next one."""

    def at_key(self) -> bool:
        return self.is_mapping and self.key is None

    def holds_secret(self, value: str, path: Path, names: Collection[str]) -> bool:
        """Returns whether the next value, at `path`, is secret by what stands above or before it."""
        is_option = value.startswith("-") and not value.startswith("- ")
        follows = not self.is_mapping and follows_option(self.previous) and not is_option
        return self.is_secret or follows or is_secret_at(path) or any(key in names for key in path[-1:])


def _scalars(text: str, places: Collection[Position]) -> Iterator[tuple[Any, bool]]:
    """Yields the parser's event of every key and scalar, with whether it is a secret."""
    names = referred_names(text.splitlines())
    open = [_Open((), is_secret=False, is_mapping=False)]
    events: Iterator[Any] = yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    for event in events:
        if isinstance(event, yaml.CollectionEndEvent):
            open.pop()
        if not isinstance(event, yaml.NodeEvent):
            continue
        parent = open[-1]
        value = event.value if isinstance(event, yaml.ScalarEvent) else ""
        if parent.at_key():
            parent.key, path, is_secret = value, parent.path, False
        else:
            path = (*parent.path, *(() if parent.key is None else (parent.key,)))
            is_secret = parent.holds_secret(value, path, names)
            parent.key, parent.previous = None, value
        if isinstance(event, yaml.CollectionStartEvent):
            if len(open) > MAX_DEPTH:
                raise yaml.YAMLError
            open.append(_Open(path, is_secret, isinstance(event, yaml.MappingStartEvent)))
        elif isinstance(event, yaml.ScalarEvent):
            mark: Any = event.start_mark
            is_secret = is_secret or (mark.line + 1, mark.column + 1) in places
            yield event, is_secret and is_text(value) and not is_reference(value)
