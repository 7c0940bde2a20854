"""Finds the word at the cursor of a shell's line, and formats candidates for the shell.

zsh and fish pass words without quotes, and replace the whole word by a candidate. bash passes the line as it
was typed, and replaces only the text after the last word break (`=`, `@` and `:` are such). For bash, a
candidate is therefore cut at the word break, and quoted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from meshctl.cli.completion.candidate import Candidate
from meshctl.cli.completion.words import candidates

BREAKS = "\"'@><=;|&(: \t\n"
"""The default word breaks of bash: characters at which it begins a new word."""
PREFIXES = "@"
"""Word breaks that bash includes in the new word, because a host name may follow them."""
SPECIAL = " \t\"'\\$`&;|<>()*?!"
"""Characters that need a backslash outside of quotes."""


def complete(arguments: Sequence[str]) -> int:
    """Prints the candidates for a shell. `arguments` are the shell's name and, except for bash, the words up
    to the cursor."""
    try:
        sys.stdout.write("".join(f"{line}\n" for line in answer(arguments[0], arguments[1:], os.environ)))
        sys.stdout.flush()
    except Exception:  # a shell cannot show an error during completion
        if os.environ.get("MESHCTL_DEBUG") == "1":
            raise
    return 0


def answer(shell: str, words: Sequence[str], environ: Mapping[str, str]) -> Iterator[str]:
    """Yields the lines that the shell's script reads, one per candidate."""
    if shell == "bash":
        line, point = environ.get("COMP_LINE", ""), environ.get("COMP_POINT", "")
        yield from _bash(
            _up_to(line, int(point)) if point.isdecimal() else line, environ.get("COMP_WORDBREAKS", BREAKS)
        )
        return
    *before, word = words or [""]
    for found in _fitting(before, word):
        description = "".join(filter(str.isprintable, found.description))
        described = f"{found.text}\t{description}"
        yield f"{described}\t{int(found.is_whole)}" if shell == "zsh" else described.rstrip("\t")


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
    """A command line up to the cursor, split into words as a shell does."""

    words: tuple[str, ...] = ()
    """The words before the last one."""
    last: str = ""
    """The word at the cursor, without its quotes."""
    kept: int = 0
    """Number of characters at the beginning of `last` that bash does not replace."""
    quote: str = ""
    """The open quote at the cursor; empty for none."""


def typed(line: str, breaks: str = BREAKS) -> Typed:
    state, begun = Typed(), False
    characters = iter(line)
    for character in characters:
        if character == state.quote:
            state = replace(state, quote="")
        elif state.quote:
            is_escape = character == "\\" and state.quote == '"'
            text = next(characters, "") if is_escape else character
            state = replace(state, last=state.last + text)
        elif character in " \t\n":
            state, begun = (Typed((*state.words, state.last)), False) if begun else (state, begun)
            continue
        elif character in "'\"":
            state = replace(state, quote=character, kept=len(state.last))
        else:
            text = next(characters, "") if character == "\\" else character
            last, kept = state.last + text, state.kept
            if character in breaks:
                kept = len(state.last) if character in PREFIXES else len(last)
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
