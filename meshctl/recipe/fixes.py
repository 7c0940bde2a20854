"""Safe edits of a recipe's text: where exactly one answer is right, a diagnostic carries it.

    renamed(span, "tensor_model_parallel_size", known)     another system's word, or one that is misspelt and
                                                           near to a single other
    rewritten(node, "1000")                                a scalar, written so that YAML reads what was meant
    quoted(node)                                           `no` where text was meant
    repeated(found, lines)                                 a key that is given twice with one value, once

Rules say what stands there (`was`) and what should. At the end `certain` compares that with the text itself:
where it reads otherwise, as an interpolation, an anchor or part of an override does, or where the same text
serves several values and is wrong for some of them only, there is no fix. `fixed` puts fixes into a text, and
every other character stays.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from meshctl.diagnostics import Diagnostic, Fix, Report, Span
from meshctl.recipe.compose.yaml_tree import Node
from meshctl.recipe.suggestions import ALIASES, nearest_key

LOOSE = {
    *(
        "nproc",
        "nproc_per_node",
        "n_procs",
        "num_workers",
        "batch_size",
        "num_samples",
        "n_samples",
        "staleness_threshold",
    ),
    *("keep_top_k", "save_top_k", "allow_padding", "mesh_dim_names"),
}
"""Words of other systems that count something else for some of them, a node's or the best: they are proposed,
and not put in place."""
SHORT = 6
"""From so many letters on, a word may have two wrong ones."""
PLAIN = re.compile(r"(?!(y|n|yes|no|on|off|true|false|null)$)[A-Z_][\w.-]*", re.ASCII | re.IGNORECASE)
"""What YAML reads as text without quotes."""
VALUE = r"""("[^"\\]*"|'[^']*'|[{[][^{}[\]#&*|>'"%@`]*[]}]|[^\s[\]{},#&*!|>'"%@`:?-][^[\]{},#:'"]*?|-?[\d.][\w.+-]*)"""
"""What is whole on one line, and the same wherever it is written the same: text in quotes, a simple list or
mapping, a bare word."""
BOM = "\ufeff"


# What rules say


def meant(word: str, options: Iterable[str]) -> str:
    """The one option that a word must mean, or nothing. Two that are near are a question, and another number
    is another name."""
    options = list(options)
    other = word.lower().replace("-", "_")
    if other in LOOSE or word in options:
        return ""
    if (known := ALIASES.get(other, "")) in options:
        return known
    if same := [option for option in options if option.lower().replace("-", "_") == other]:
        return same[0] if len(same) == 1 else ""
    edits = 0 if len(word) < 3 else 1 if len(word) < SHORT else 2
    near = [
        option
        for option in options
        if edits and not _differ(other, option.lower()) and _within(other, option.lower(), edits)
    ]
    return near[0] if len(near) == 1 and near[0] == nearest_key(word, options) else ""


def _differ(one: str, other: str) -> bool:
    """Whether two words are different names, however near: `train1` and `train2`, `slice_tp` and `slice_dp`."""
    parts = [re.split(r"[_.-]", word) for word in (one, other)]
    numbers = [re.findall(r"\d+", word) for word in (one, other)]
    return numbers[0] != numbers[1] or (
        len(parts[0]) == len(parts[1]) > 1
        and any(a != b and min(len(a), len(b)) < 3 for a, b in zip(*parts, strict=True))
    )


def _within(one: str, other: str, edits: int) -> bool:
    """Whether so many letters left out, put in, changed or swapped make one of the other."""
    while one and other and one[0] == other[0]:
        one, other = one[1:], other[1:]
    if not one or not other:
        return len(one) + len(other) <= edits
    if not edits or abs(len(one) - len(other)) > edits:
        return False
    swapped = one[:2] == other[1::-1] and _within(one[2:], other[2:], edits - 1)
    return swapped or any(
        _within(*pair, edits - 1) for pair in ((one[1:], other), (one, other[1:]), (one[1:], other[1:]))
    )


def renamed(
    span: Span, word: str, options: Iterable[str], after: str = "", before: str = ""
) -> tuple[Fix, ...]:
    """The word that was meant in place of one that there is not; `before` and `after` are what else the text
    at the span says."""
    if not PLAIN.fullmatch(right := meant(word, options)):
        return ()
    return (Fix(span, before + word + after, before + right + after),)


def keys_meant(node: Node, known: Sequence[str]) -> dict[str, tuple[Fix, ...]]:
    """A mapping's unknown keys -> what they were meant to be, unless the same file says that too."""
    spans = {
        key: item.key or item.span for key, item in node.items() if item.key not in (node.span, node.key)
    }
    fixes = {key: renamed(span, key, known) for key, span in spans.items() if key not in known}
    said = [(span.file, key) for key, span in spans.items()]
    wanted = Counter([*said, *((fix.span.file, fix.text) for some in fixes.values() for fix in some)])
    return {
        key: some for key, some in fixes.items() if all(wanted[fix.span.file, fix.text] == 1 for fix in some)
    }


def rewritten(node: Node, text: str) -> tuple[Fix, ...]:
    """A scalar's text; the same text is the scalar without its quotes."""
    return () if node.from_environment or not node.written else (Fix(node.span, node.written, text),)


def quoted(node: Node) -> tuple[Fix, ...]:
    """A boolean or a number as the text that was written."""
    return rewritten(node, f'"{node.written}"') if re.fullmatch(r"[\w.+-]+", node.written) else ()


def as_whole(node: Node, least: int, most: int) -> tuple[Fix, ...]:
    """1e3, 2.0 or "7" as a whole number, where it may be one."""
    value = node.value
    written = isinstance(value, str) and re.fullmatch(r"0|-?[1-9]\d{0,18}", value)
    if not (written or (isinstance(value, float) and abs(value) < 1e15 and value == int(value))):
        return ()
    return rewritten(node, str(int(value))) if least <= int(value) <= most else ()


def repeated(found: Diagnostic, lines: Mapping[str, Sequence[str]]) -> tuple[Fix, ...]:
    """The later of two keys away, where both are followed by the same text on their own lines."""
    if (
        found.code != "MC005"
        or not found.primary
        or [second.file for second in found.seconds] != [found.primary.file]
    ):
        return ()
    text = lines.get(found.primary.file, ())
    later, first = _pair(found.primary, text), _pair(found.seconds[0], text)
    if (
        not later
        or not first
        or (later.key, later.value) != (first.key, first.value)
        or later.before[:1] in ("{", "-")
    ):
        return ()
    was = later.before + later.text
    return (
        Fix(replace(found.primary, column=found.primary.column - len(later.before), width=len(was)), was, ""),
    )


@dataclass(frozen=True)
class _Pair:
    """A key and its value, on one line."""

    key: str
    between: str
    """The colon, and what is beside it."""
    value: str
    before: str
    """In a mapping in braces from the comma or brace on; in another a dash, or nothing."""

    @property
    def text(self) -> str:
        return self.key + self.between + self.value


def _pair(span: Span, lines: Sequence[str]) -> _Pair | None:
    line = lines[span.line - 1] if 0 < span.line <= len(lines) else ""
    start, end = span.column - 1, span.column - 1 + span.width
    if before := re.search(r"[{,]\s*$", line[:start]):
        ends = r"\s*[,}]"
    elif before := re.fullmatch(r"\s*(?:-\s+)*", line[:start]):
        ends = r"(\s+#.*|\s*)$"
    if not before or (ends[-1] == "$" and not _is_next(lines[span.line :], start)):
        return None
    said = re.match(rf"(\s*:\s+){VALUE}(?={ends})", line[end:])
    return _Pair(line[start:end], said[1], said[2], before[0].lstrip()) if said else None


def _is_next(below: Sequence[str], indent: int) -> bool:
    """Whether a value that began above has no other line."""
    rest = next((line for line in below if line.strip()), "")
    return (
        len(rest) - len(rest.lstrip()) <= indent
        and re.match(r"\s*([-#}]|[^\s,]+\s*:(\s|$)|$)", rest) is not None
    )


# What is certain


def certain(report: Report, tree: Node | None = None) -> Report:
    """The report with those fixes only that fit the text; their spans are what is to be replaced, no more."""
    lines = dict(report.sources)
    found = tuple(replace(found, fixes=found.fixes or repeated(found, lines)) for found in report.diagnostics)
    report = replace(report, diagnostics=found)
    if not any(found.fixes for found in report.diagnostics):
        return report
    wanted = Counter(
        (fix.span.with_word(""), fix.text) for found in report.diagnostics for fix in found.fixes
    )
    serves = (
        Counter(span for node in _nodes(tree) for span in (node.span, node.key) if span)
        if tree
        else Counter[Span]()
    )

    def exact(fix: Fix) -> Fix | None:
        span = fix.span.with_word("")
        return _exact(replace(fix, span=span), lines) if serves[span] <= wanted[span, fix.text] else None

    def kept(found: Diagnostic) -> Diagnostic:
        fixes = [exact(fix) for fix in found.fixes]
        return replace(found, fixes=tuple(fix for fix in fixes if fix) if all(fixes) else ())

    return replace(
        report, diagnostics=tuple(kept(found) if found.fixes else found for found in report.diagnostics)
    )


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    inner = (
        node.value.values()
        if isinstance(node.value, dict)
        else node.value
        if isinstance(node.value, list)
        else ()
    )
    for item in inner:
        yield from _nodes(item)


def _exact(fix: Fix, lines: Mapping[str, Sequence[str]]) -> Fix | None:
    """The fix with the span of just what it replaces; none where the text reads otherwise."""
    span, text = fix.span, lines.get(fix.span.file, ())
    stands = text[span.line - 1][span.column - 1 :][: span.width] if 0 < span.line <= len(text) else ""
    in_quotes = stands[:1] + stands[-1:] in ('""', "''") and stands[1:-1] == fix.was
    if fix.text == fix.was:
        return replace(fix, was=stands, span=replace(span, width=len(stands))) if in_quotes else None
    if in_quotes:
        return replace(fix, span=replace(span, column=span.column + 1, width=len(fix.was)))
    before = len(stands) - len(fix.was)
    if stands == fix.was or (fix.was and stands.endswith(f".{fix.was}")):  # the last part of a dotted key
        return replace(fix, span=replace(span, column=span.column + before, width=len(fix.was)))
    return None


# Putting them into a text


def chosen(diagnostics: Iterable[Diagnostic], files: Iterable[str]) -> tuple[Diagnostic, ...]:
    """The diagnostics whose fixes all lie in these files and do not touch the fixes of one before."""
    files, taken = set(files), list[Fix]()
    right: list[Diagnostic] = []
    for found in diagnostics:
        mine = [fix for fix in found.fixes if fix not in taken]
        if (
            found.fixes
            and all(fix.span.file in files for fix in mine)
            and not any(_touch(fix, other) for fix in mine for other in taken)
        ):
            taken += mine
            right.append(found)
    return tuple(right)


def _touch(one: Fix, other: Fix) -> bool:
    a, b = sorted((one.span, other.span))
    return (a.file, a.line) == (b.file, b.line) and b.column <= a.column + a.width


def fixed(text: str, fixes: Iterable[Fix]) -> str:
    """The text with the edits of one file in it; a line that is left empty goes. Raises `ValueError` where it
    is another text."""
    lines = text.removeprefix(BOM).splitlines(keepends=True)
    for fix in sorted(set(fixes), key=lambda fix: fix.span, reverse=True):
        line, start = "".join(lines[fix.span.line - 1 : fix.span.line]), fix.span.column - 1
        if not line.startswith(fix.was, start):
            raise ValueError(f"line {fix.span.line} has changed")
        line = line[:start] + fix.text + line[start + len(fix.was) :]
        lines[fix.span.line - 1] = line if fix.text or line.strip() else ""
    return (BOM if text.startswith(BOM) else "") + "".join(lines)
