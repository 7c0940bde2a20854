"""`meshctl explain [CODE]`: prints the page of a code, the codes of a subject (`MC4`), or all codes."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence

from meshctl.cli.output import refuse, write
from meshctl.diagnostics.codes import SUBJECTS, Page, Section, codes, head, page
from meshctl.text.english import did_you_mean, listed

INDENT, CHANGED = "    ", "  > "
RECIPE = "recipe.yaml"


def explain(word: str) -> int:
    """Prints the page of a code or a list of codes, and returns the exit code."""
    known = codes()
    found = re.fullmatch(
        r"(?:error|warning|note|retired)?\[?(?:mc)?(\d{1,3})\]?:?", word.strip(), re.IGNORECASE
    )
    wanted = f"MC{found[1]}" if found else ""
    if wanted in known:
        return _print(_page(page(wanted)))
    if among := [code for code in known if wanted and code.startswith(wanted)] if word else known:
        return _print(_list(among))
    word = word.strip()
    shown = word[:40] if word.isprintable() else ascii(word)[:40]
    near = did_you_mean(word.upper(), known)
    help = near if near.startswith("did you mean") else "`meshctl explain` lists all codes"
    return refuse(f"code `{shown}` does not exist; {help}")


# Output


def _list(known: Sequence[str]) -> Iterator[str]:
    subject = ""
    for code in known:
        if code[2] != subject:
            yield from [""] * bool(subject)
            subject = code[2]
            yield f"MC{subject}  {SUBJECTS[subject]}"
        severity, title = head(code)
        yield f"  {code}  {'' if severity == 'error' else f'{severity}: '}{title}"


def _page(of: Page) -> Iterator[str]:
    yield f"{of.severity}[{of.code}]: {of.title}"
    yield ""
    yield from _section(of.why, of.why)
    for name, section, other in (("wrong", of.wrong, of.right), ("right", of.right, of.wrong)):
        if section.pieces:
            yield from ("", f"{name}{f', and also {listed(section.also)}' if section.also else ''}:", "")
            yield from _section(section, other)


def _section(section: Section, other: Section) -> Iterator[str]:
    """Yields the paragraphs and blocks of a section, and marks the lines of its blocks that are not in the
    other section."""
    for number, piece in enumerate(section.pieces):
        if number:
            yield ""
        if isinstance(piece, str):
            yield from piece.splitlines()
        else:
            before = next((block for block in other.blocks if block.name == piece.name), piece)
            if piece.name and piece.name != RECIPE:
                yield f"{INDENT}{'#' if piece.language in ('python', 'yaml') else '--'} {piece.name}"
            for line in piece.lines:
                yield f"{INDENT if line in before.lines else CHANGED}{line}".rstrip()


def _print(lines: Iterator[str]) -> int:
    write("".join(f"{line}\n" for line in lines), sys.stdout)
    return 0
