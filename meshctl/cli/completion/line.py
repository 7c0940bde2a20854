"""The word at the cursor of a shell's line, and candidates for it in the shell's terms.

zsh and fish pass words without their quotes and replace the whole word by a candidate. bash passes the line
as it is typed and replaces what follows the last of its word breaks, among which are `=`, `@` and `:`; so
only that part is answered, quoted as bash needs it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from meshctl.cli.completion.candidate import Candidate
from meshctl.cli.completion.words import candidates

BREAKS = "\"'@><=;|&(: \t\n"
"""Characters at which bash begins a new word by default."""
PREFIXES = "@"
"""Word breaks that belong to the new word: bash may complete the name of a host there."""
SPECIAL = " \t\"'\\$`&;|<>()*?!"
"""Characters that need a backslash."""


def complete(arguments: Sequence[str]) -> int:
    """Answers a shell. `arguments` are its name, then for all but bash the words up to the cursor."""
    try:
        sys.stdout.write("".join(f"{line}\n" for line in answer(arguments[0], arguments[1:], os.environ)))
        sys.stdout.flush()
    except Exception:  # a shell has no place for what went wrong
        if os.environ.get("MESHCTL_DEBUG") == "1":
            raise
    return 0


def answer(shell: str, words: Sequence[str], environ: Mapping[str, str]) -> Iterator[str]:
    """Yields the lines that the shell's script reads."""
    if shell == "bash":
        line, point = environ.get("COMP_LINE", ""), environ.get("COMP_POINT", "")
        yield from _bash(
            _up_to(line, int(point)) if point.isdecimal() else line, environ.get("COMP_WORDBREAKS", BREAKS)
        )
        return
    *before, word = words or [""]
    for found in _fitting(before, word):
        yield (
            f"{found.text}\t{found.description}\t{int(found.is_whole)}"
            if shell == "zsh"
            else f"{found.text}\t{found.description}".rstrip("\t")
        )


def _up_to(line: str, point: int) -> str:
    """Returns the line up to the cursor, whose position bash counts in bytes."""
    return line.encode("utf-8", "surrogateescape")[:point].decode("utf-8", "surrogateescape")


def _fitting(before: Sequence[str], word: str) -> list[Candidate]:
    found = {
        one.text: one
        for one in candidates(before, word)
        if one.text.startswith(word) and one.text.isprintable()
    }
    return list(found.values())


@dataclass
class Typed:
    """A line up to the cursor, split as a shell splits it."""

    words: tuple[str, ...] = ()
    """The words before the last one."""
    last: str = ""
    """The word at the cursor, without its quotes."""
    kept: int = 0
    """Number of characters of `last` that bash keeps."""
    quote: str = ""
    """The quote that is open at the cursor."""


def typed(line: str, breaks: str = BREAKS) -> Typed:
    state, begun = Typed(), False
    characters = iter(line)
    for character in characters:
        if state.quote:
            escaped = character == "\\" and state.quote == '"'
            text = next(characters, "") if escaped else "" if character == state.quote else character
            state = replace(
                state, last=state.last + text, quote="" if character == state.quote else state.quote
            )
        elif character in " \t\n":
            state, begun = (Typed((*state.words, state.last)), False) if begun else (state, begun)
            continue
        elif character in "'\"":
            state = replace(state, quote=character, kept=len(state.last))
        else:
            text = next(characters, "") if character == "\\" else character
            before, last = len(state.last), state.last + text
            kept = state.kept if character not in breaks else before if character in PREFIXES else len(last)
            state = replace(state, last=last, kept=kept)
        begun = True
    return state


def _bash(line: str, breaks: str) -> Iterator[str]:
    at = typed(line, breaks)
    for found in _fitting(at.words[1:], at.last):
        rest = found.text[at.kept :]
        yield rest if at.quote else _escaped(rest) + " " * found.is_whole


def _escaped(text: str) -> str:
    return "".join(f"\\{character}" if character in SPECIAL else character for character in text)
