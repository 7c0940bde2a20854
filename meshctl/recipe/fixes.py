"""Safe edits of a recipe's text. A diagnostic has a fix only if exactly one correction is possible.

    renamed(span, "rank", known)     a misspelt word with a single similar word
    quoted(node)                     a boolean such as `no` that was meant as text

A `Fix` contains the old text (`Fix.was`) and the new one. `keep_safe` compares the old text with the file. It
drops a fix if the file has another text there, e.g. an interpolation, an anchor or a part of an override, or
if the text is the source of several values of which only some are wrong. `apply` edits a text and keeps all
other characters.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from difflib import SequenceMatcher

from meshctl.diagnostics import Diagnostic, Fix, Report, Span
from meshctl.recipe.compose.yaml_tree import Node
from meshctl.text.english import all_nearest

MIN_RATIO = 0.78
"""The ratio of `difflib.SequenceMatcher` from which a word is a misspelling of another one."""
PLAIN = re.compile(r"(?!(y|n|yes|no|on|off|true|false|null)$)[A-Z_][\w.-]*", re.ASCII | re.IGNORECASE)
"""A text that needs no quotes in YAML."""
BOM = "\ufeff"


# Proposing


def meant(word: str, options: Iterable[str]) -> str:
    """Returns the only option that a word can mean, or an empty string. The word is ambiguous if two options
    are similar."""
    options, other = tuple(options), word.lower().replace("-", "_")
    if word in options or len(word) < 3:
        return ""
    same = [option for option in options if option.lower().replace("-", "_") == other]
    near = same or [option for option in all_nearest(word, options) if _is_near(other, option.lower())]
    return near[0] if len(near) == 1 else ""


def _is_near(one: str, other: str) -> bool:
    """Returns whether one word is a misspelling of the other: few letters differ, or two have changed
    places. Words with different numbers, or with a short part that differs, are different names: `train1`
    and `train2`, `slice_tp` and `slice_dp`."""
    is_alike = SequenceMatcher(None, one, other).ratio() >= MIN_RATIO or sorted(one) == sorted(other)
    if not is_alike or re.findall(r"\d+", one) != re.findall(r"\d+", other):
        return False
    parts, others = re.split(r"[_.-]", one), re.split(r"[_.-]", other)
    has_other = any(a != b and min(len(a), len(b)) < 3 for a, b in zip(parts, others, strict=False))
    return not has_other or len(parts) == 1 or len(parts) != len(others)


def renamed(
    span: Span, word: str, options: Iterable[str], after: str = "", before: str = ""
) -> tuple[Fix, ...]:
    """Returns the edit that replaces `word` by the option that was meant; empty if that is ambiguous.
    `before` and `after` are the rest of the text at the span."""
    right = meant(word, options)
    if not PLAIN.fullmatch(right):
        return ()
    return (Fix(span, before + word + after, before + right + after),)


# Checking


def keep_safe(report: Report, tree: Node | None = None) -> Report:
    """Returns the report with only the fixes that fit the text. The spans of fixes are narrowed to the
    replaced text."""
    fixes = [fix for found in report.diagnostics for fix in found.fixes]
    if not fixes:
        return report
    lines = dict(report.sources)
    wanted = Counter((fix.span.with_word(""), fix.text) for fix in fixes)
    uses = Counter(_spans(tree)) if tree else Counter[Span]()

    def fitted(fix: Fix) -> Fix | None:
        span = fix.span.with_word("")
        if uses[span] > wanted[span, fix.text]:
            return None
        return _fitted(replace(fix, span=span), lines.get(span.file, ()))

    def checked(found: Diagnostic) -> Diagnostic:
        safe = [one for fix in found.fixes if (one := fitted(fix))]
        return replace(found, fixes=tuple(safe) if len(safe) == len(found.fixes) else ())

    diagnostics = (checked(found) if found.fixes else found for found in report.diagnostics)
    return replace(report, diagnostics=tuple(diagnostics))


def _spans(node: Node) -> Iterator[Span]:
    """Yields the spans of all values and keys. A span from which several values come is repeated."""
    yield node.span
    if node.key:
        yield node.key
    inner = node.value if node.is_list else [item for _, item in node.items()]
    for item in inner:
        yield from _spans(item)


def _fitted(fix: Fix, lines: Sequence[str]) -> Fix | None:
    """Returns the fix with its span narrowed to the replaced text, or None if the file has another text
    there."""
    span = fix.span
    written = lines[span.line - 1][span.column - 1 :][: span.width] if 0 < span.line <= len(lines) else ""
    is_quoted = written[:1] + written[-1:] in ('""', "''") and written[1:-1] == fix.was
    if fix.text == fix.was:
        return replace(fix, was=written, span=replace(span, width=len(written))) if is_quoted else None
    start = len(written) - len(fix.was)
    if is_quoted:
        start = 1
    elif written != fix.was and not (fix.was and written.endswith(f".{fix.was}")):
        return None
    return replace(fix, span=replace(span, column=span.column + start, width=len(fix.was)))


# Applying


def compatible(diagnostics: Iterable[Diagnostic], files: Collection[str]) -> tuple[Diagnostic, ...]:
    """Returns the diagnostics whose fixes are all in `files` and do not touch fixes of earlier ones."""
    kept, taken = list[Diagnostic](), list[Fix]()
    for found in diagnostics:
        new = [fix for fix in found.fixes if fix not in taken]
        pairs = [sorted((fix.span, other.span)) for fix in new for other in taken]
        touches = any(
            (one.file, one.line) == (other.file, other.line) and other.column <= one.column + one.width
            for one, other in pairs
        )
        if found.fixes and not touches and all(fix.span.file in files for fix in new):
            kept.append(found)
            taken += new
    return tuple(kept)


def apply(text: str, fixes: Iterable[Fix]) -> str:
    """Returns the text of a file after the edits. Lines that become empty are removed. Raises `ValueError` if
    the text does not contain the old text of an edit."""
    lines = text.removeprefix(BOM).splitlines(keepends=True)
    for fix in sorted(set(fixes), key=lambda fix: fix.span, reverse=True):
        line, start = "".join(lines[fix.span.line - 1 : fix.span.line]), fix.span.column - 1
        if not line.startswith(fix.was, start):
            raise ValueError(f"line {fix.span.line} has changed")
        line = line[:start] + fix.text + line[start + len(fix.was) :]
        lines[fix.span.line - 1] = line if fix.text or line.strip() else ""
    return (BOM if text.startswith(BOM) else "") + "".join(lines)
