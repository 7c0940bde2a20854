"""Removes secrets from reports. Secrets in messages are redacted, and secrets in lines of files are masked by
stars.

A masked line keeps its columns, so that marks below it still fit. In a readable file, the tree contains the
place of each secret. In an unreadable one, every line that may contain a secret is masked completely.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from meshctl.diagnostics import Diagnostic, Report, Span
from meshctl.recipe.compose import yaml_reader
from meshctl.recipe.compose.overrides import is_override
from meshctl.recipe.compose.yaml_reader import Text
from meshctl.recipe.compose.yaml_tree import leaves
from meshctl.recipe.secrets import Secrets, secret_leaves
from meshctl.text.redaction import (
    MAX_LINE,
    Known,
    Stretch,
    is_reference,
    is_suspect,
    mask,
    mask_unreadable,
    redact,
    shapes,
    stretches,
    stretches_of_override,
)

Position = tuple[int, int]
"""(line, column), both from 1."""
NO_SECRETS = Secrets()


def redact_report(report: Report, secrets: Secrets) -> Report:
    """Returns a report without secrets. A fix whose text contains a secret is dropped."""
    lines = dict(report.sources)
    shown = {file: mask_lines(file, lines[file], secrets) for file in lines}
    texts = (f"{found.message} {found.help}" for found in report.diagnostics)
    if shown == lines and not secrets.known and not any(map(is_suspect, texts)):
        return report
    known = Known(secrets.known)
    found = [_redacted(found, known) for found in report.diagnostics]
    found = [
        replace(one, fixes=()) if any(_covers(fix.span, lines, shown) for fix in one.fixes) else one
        for one in found
    ]
    sources = tuple((file, shown[file]) for file, _ in report.sources)
    return replace(report, diagnostics=tuple(found), sources=sources)


def _redacted(found: Diagnostic, known: Known) -> Diagnostic:
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
    """Returns the lines of a file, or the line of an override, with secrets masked by stars."""
    places = {(line, column) for name, line, column in secrets.places if name == file}
    if not places and not secrets.written and not is_suspect("\n".join(lines)):
        return tuple(lines)
    if is_override(file):
        by_line = [stretches_of_override(line) for line in lines]
    else:
        text = yaml_reader.read("\n".join(lines).encode(), file)
        if text.tree is None:
            lines, by_line = mask_unreadable(lines), [[] for _ in lines]
        else:
            by_line = _in_tree(text, lines, places)
    pairs = zip(lines, by_line, strict=True)
    known = secrets.written_anywhere
    return tuple(mask(line, [*found, *known.stretches(line), *shapes(line)]) for line, found in pairs)


def _in_tree(text: Text, lines: Sequence[str], places: Collection[Position]) -> list[list[Stretch]]:
    """Returns the secret stretches of each line of a file. Scalars with a secret path, scalars that begin at
    `places`, and text that is not in the tree are secret. Other scalars and comments are searched for secrets
    in their text."""
    assert text.tree is not None
    found: list[list[Stretch]] = [[] for _ in lines]
    ends = [(0, False)] * len(lines)
    """(end of the last scalar, whether that scalar is secret) for each line."""
    secret = {path for path, _ in secret_leaves(text.tree)}
    refused = [((), leaf) for node in text.refused for _, leaf in leaves(node)]
    for path, leaf in chain(refused, leaves(text.tree)):
        position = (leaf.span.line, leaf.span.column)
        is_secret = (path in secret or not path or position in places) and not is_reference(str(leaf.value))
        first = leaf.span.line - 1
        for number in range(first, min(first + leaf.lines, len(lines))):
            line = lines[number]
            start, end = leaf.span.column - 1, leaf.span.column - 1 + leaf.span.width
            if number > first:
                start, end = len(line) - len(line.lstrip()), len(line.rstrip())
            ends[number] = max(ends[number], (end, is_secret))
            found[number] += [(start, end)] if is_secret else _within(line, start, end)
    for number, (end, is_secret) in enumerate(ends):
        line = lines[number].rstrip()
        if is_secret and re.match(r"\s*#", line[end:]):  # the comment may repeat the secret
            found[number].append((end, len(line)))
        else:
            found[number] += _within(line, end, len(line))
    return found


def _within(line: str, start: int, end: int) -> list[Stretch]:
    """Returns the stretches of a part of a line that are secret by keys and options in the same text."""
    text = line[start:end]
    if len(text) > MAX_LINE:
        return [(start, end)] if is_suspect(text) else []
    return [(start + begin, start + stop) for begin, stop in stretches(text, "{" in text or "[" in text)]
