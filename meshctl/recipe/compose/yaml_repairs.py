"""Finds the line with a YAML syntax error, by trying edits of lines near the position at which the parser
stopped.

    device_type cuda          a `:` is missing             every:100       a space is missing after the `:`
    dir = runs                a `=` instead of a `:`    "cuda           a quote is not closed
       every: 2               the indentation differs from that of the neighbouring keys

The parser often stops some lines below the mistake. If an edit of a single line makes the text valid, the
mistake is on that line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import yaml

from meshctl.dataclass import dataclass
from meshctl.diagnostics import Diagnostic, Fix, Span
from meshctl.recipe.fields import RECIPE
from meshctl.recipe.section_types import Named, Nested, Section

MAX_TEXT_LENGTH = 1 << 15
"""Maximum length, in characters, of a text for which edits are tried."""
LINES_ABOVE = 3
"""Number of lines above the parser's error that are searched for a mistake."""
MAX_QUOTED_LINES = 40
"""Number of lines above the parser's error that are searched for an open quote."""
MAX_LINES_AROUND = 12
"""Number of lines above a line whose indentations are tried for it."""
KEY = r"[A-Za-z_][\w@./-]*"
SPACES = "\u00a0\u2000-\u200b\u202f\u205f\u3000"
CONFLICT = re.compile(r"(<{7}|={7}|>{7})( |$)")
ASCII = str.maketrans("\u201c\u201d\u201e\u2018\u2019\uff1a\uff0c\uff5b\uff5d\uff3b\uff3d", '"""\'\':,{}[]')
"""Typographic quotes and full-width punctuation -> the characters that YAML reads."""
FOREIGN = (
    (re.compile(r"\s*//"), "`//` does not begin a comment in YAML", "write `#`"),
    (re.compile(r"\s*```"), "this is a fence of Markdown, not of YAML", "remove it"),
)
"""(beginning of a line, message, help): lines of other languages, without which a text may be valid."""


@dataclass(frozen=True)
class _Edit:
    """One edit of a line."""

    line: int
    """Line number, from 1."""
    start: int
    """Index of the first replaced character, from 0."""
    was: str
    text: str
    message: str
    help: str
    mark: tuple[int, int]
    """(index of the first character, width) of the marked text."""

    def apply(self, lines: Sequence[str]) -> str:
        changed = list(lines)
        line = changed[self.line - 1]
        changed[self.line - 1] = line[: self.start] + self.text + line[self.start + len(self.was) :]
        return "\n".join(changed)

    def diagnostic(self, name: str, *, is_certain: bool) -> Diagnostic:
        """Returns the diagnostic of the edit. It quotes no value, because values may be secrets."""
        start, width = self.mark
        is_certain = is_certain and not re.search(r"\w", self.was)
        fix = Fix(Span(name, self.line, self.start + 1, len(self.was)), self.was, self.text)
        span = Span(name, self.line, start + 1, max(1, width))
        return Diagnostic("MC003", self.message, span, help=self.help, fixes=(fix,) if is_certain else ())


def find_repair(name: str, text: str, error_line: int) -> Iterator[Diagnostic]:
    """Yields the diagnostic for the line whose edit makes a text valid. `error_line` is the line at which the
    parser stopped."""
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if CONFLICT.match(line):
            message, help = (
                "this is a marker of a merge conflict",
                "resolve the conflict, and remove its markers",
            )
            yield Diagnostic("MC003", message, Span(name, number, 1, len(line)), help=help)
            return
    if len(text) > MAX_TEXT_LENGTH:
        return
    for form, message, help in FOREIGN:
        others = ["" if form.match(line) else line for line in lines]
        if others != lines and _is_readable("\n".join(others)):
            number = next(at for at, line in enumerate(lines, 1) if form.match(line))
            yield Diagnostic("MC003", message, Span(name, number, 1, len(lines[number - 1])), help=help)
            return
    if any(line.startswith(("---", "...")) for line in lines[1:]):
        return
    near = _lines_above(lines, error_line, LINES_ABOVE)
    for kind in (_space_edits, _quote_edits, _colon_edits, _bracket_edits):
        is_rare = kind in (_space_edits, _quote_edits)
        numbers = _lines_above(lines, error_line, MAX_QUOTED_LINES) if is_rare else near
        working = [
            edit for number in numbers for edit in kind(lines, number) if _is_readable(edit.apply(lines))
        ]
        if working:
            yield working[0].diagnostic(name, is_certain=len(working) == 1)
            return
    edits = [edit for number in near for edit in _indent_edits(lines, number)]
    working = [edit for edit in edits if _is_readable(edit.apply(lines))]
    if working:
        best = max(working, key=lambda edit: _plausibility(edit, lines))
        yield best.diagnostic(name, is_certain=len(working) == 1)


def _plausibility(edit: _Edit, lines: Sequence[str]) -> tuple[int, bool, int, int, int]:
    """Returns a sort key for the plausibility of another indentation of a line. It considers how many keys
    would be in a section that does not have them, whether the indentation fits the step of the text, how many
    lines would be indented by more than a step, how small the change is, and how many neighbours have that
    indentation."""
    width, at, step = len(edit.text), edit.line - 1, _step(lines)
    text = edit.apply(lines)
    around = [line for line in (_next(reversed(lines[:at])), _next(lines[at + 1 :])) if line]
    equal = sum(_indent(line) == width for line in around)
    leaps = _leaps(text.split("\n"), step)
    return -_misplaced_keys(text), width % step == 0, -leaps, -abs(width - len(edit.was)), equal


def _leaps(lines: Sequence[str], step: int) -> int:
    """Returns the number of lines that are indented by more than a step below the line above."""
    widths = [_indent(line) for line in lines if _next([line])]
    return sum(below - above > step for above, below in pairwise(widths))


def _misplaced_keys(text: str) -> int:
    """Returns the number of keys that the sections in which they are do not have. A text with an undefined
    alias has a large number of them."""
    try:
        root = yaml.compose(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:
        return len(text)
    return _unknown_keys(root, RECIPE)


def _unknown_keys(node: Any, section: Section) -> int:
    if not isinstance(node, yaml.MappingNode):
        return 1
    unknown = 0
    for key, value in node.value:
        field = section.by_key.get(str(key.value))
        if field is None:
            unknown += 1
        elif isinstance(field.type, Named) and isinstance(value, yaml.MappingNode):
            unknown += sum(_unknown_keys(item, field.type.section) for _, item in value.value)
        elif isinstance(field.type, Nested) and isinstance(value, yaml.MappingNode):
            unknown += _unknown_keys(value, field.type.section)
    return unknown


def _step(lines: Sequence[str]) -> int:
    """Returns the most frequent indentation step of a text, in spaces."""
    indents = [_indent(line) for line in lines if _next([line]) and _indent(line)]
    fitting = (step for step in (4, 2) if sum(width % step == 0 for width in indents) > 0.8 * len(indents))
    return next(fitting, 1)


def _next(lines: Iterable[str]) -> str:
    return next((line for line in lines if line.split("#")[0].strip()), "")


def _lines_above(lines: Sequence[str], error_line: int, count: int) -> list[int]:
    """Returns the numbers of the error's line and of up to `count` lines before it, without empty lines and
    comments."""
    numbers = range(min(error_line, len(lines)), 0, -1)
    return [number for number in numbers if lines[number - 1].split("#")[0].strip()][: count + 1]


def _is_readable(text: str) -> bool:
    try:
        events = [type(event) for event in yaml.parse(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))]
    except yaml.YAMLError:
        return False
    return events.count(yaml.DocumentStartEvent) == 1


# Edits of one line


def _space_edits(lines: Sequence[str], number: int) -> Iterator[_Edit]:
    """Yields edits of space characters that YAML does not accept, of typographic quotes and of full-width
    punctuation."""
    line = lines[number - 1]
    if odd := re.search(f"[{SPACES}]", line):
        last = max(found.end() for found in re.finditer(f"[{SPACES}]", line))
        plain = re.sub(f"[{SPACES}]", " ", line[odd.start() : last])
        message = (
            f"this line contains the character U+{ord(odd[0]):04X}, which YAML does not treat as a space"
        )
        was, mark = line[odd.start() : last], (odd.start(), 1)
        yield _Edit(number, odd.start(), was, plain, message, "write a space", mark)
    if (straight := line.translate(ASCII)) != line:
        start = next(at for at, letter in enumerate(line) if letter != straight[at])
        message, help = "this is not a quote in YAML", 'write a straight one: "'
        if straight[start] in ":,{}[]":
            message, help = f"this is not a `{straight[start]}` in YAML", f"write `{straight[start]}`"
            straight = re.sub(r"([:,])(?=\S)", r"\1 ", straight)
        yield _Edit(number, 0, line, straight, message, help, (start, 1))


def _colon_edits(lines: Sequence[str], number: int) -> Iterator[_Edit]:
    line = lines[number - 1]
    for found in re.finditer(rf"(?:^ *(?:- +)?|[{{,] *)({KEY})( *= *| +|:|$)(?=([^\s:,}}\]]|$))", line):
        key, sign = found[1], found[2]
        value = re.match(r"[^,}\]#]*", line[found.end() :])
        rest = value[0].strip() if value and sign else ""
        written = f"{key}: ..." if rest else f"{key}:"
        mark = (
            found.start(1),
            len(line.rstrip()) - found.start(1) if not rest else found.end() - found.start(1) + len(rest),
        )
        if sign == ":":
            message, text = "a space is missing after the `:`", ": "
        elif "=" in sign:
            message, text = "a key must be followed by `:`, not by `=`", ": "
        else:
            message, text = f"a `:` is missing after `{key}`", ": " if rest else ":"
        yield _Edit(number, found.end(1), sign, text, message, f"write `{written}`", mark)
    if dash := re.match(r"( *)-(?=[^\s-])", line):
        message = "a space is missing after the `-` of a list"
        yield _Edit(
            number,
            dash.end(),
            "",
            " ",
            message,
            "write `- `, with a space",
            (len(dash[1]), len(line.strip())),
        )


def _quote_edits(lines: Sequence[str], number: int) -> Iterator[_Edit]:
    line = lines[number - 1]
    for opened in re.finditer(r"(?:[:,\[{-] +|[\[{])([\"'])([^\"',\]}#]*[^\"',\]}#\s])", line):
        if line[opened.end() : opened.end() + 1] != opened[1]:
            help = f"write a {opened[1]} after the text"
            mark = (opened.start(1), 1)
            yield _Edit(number, opened.end(), "", opened[1], f"this {opened[1]} is not closed", help, mark)


def _bracket_edits(lines: Sequence[str], number: int) -> Iterator[_Edit]:
    """Yields edits of a closing bracket without an opening one."""
    line = lines[number - 1]
    for closing, opening in (("}", "{"), ("]", "[")):
        if line.count(closing) <= line.count(opening):
            continue
        for key in re.finditer(rf"(?:^ *(?:- +)?|[{{,] *){KEY}: +", line):
            message = f"the `{opening}` of this `{closing}` is missing"
            help = f"write a `{opening}` before the first key or item"
            yield _Edit(number, key.end(), "", opening, message, help, (key.end(), 1))


def _indent_edits(lines: Sequence[str], number: int) -> Iterator[_Edit]:
    """Yields edits that give a line the indentation of a line around it, the nearest first."""
    line = lines[number - 1]
    width = _indent(line)
    around = [(at, one) for at, one in _around(lines, number) if _indent(one) != width]
    widths = dict.fromkeys(_indent(one) for _, one in around)
    spaces = f"{width} space{'' if width == 1 else 's'}"
    message = f"this line is indented by {spaces}, which does not match a line above it"
    for other in sorted(widths, key=lambda one: abs(one - width)):
        like = next(at for at, one in around if _indent(one) == other)
        help, mark = f"indent it by {other}, as line {like}", (width, len(line.strip()))
        yield _Edit(number, 0, " " * width, " " * other, message, help, mark)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _around(lines: Sequence[str], number: int) -> Iterator[tuple[int, str]]:
    """Yields (number, line) of the lines above, the nearest first, of the next line below, and of the first
    line without indentation."""
    written = [(at, line) for at, line in enumerate(lines, 1) if _next([line]) and at != number]
    yield from reversed([one for one in written if one[0] < number][-MAX_LINES_AROUND:])
    yield from [one for one in written if one[0] > number][:1]
    yield from [one for one in written if _indent(one[1]) == 0][:1]
