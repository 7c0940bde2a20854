"""`meshctl complete SHELL`: candidates for the word at the cursor, for the scripts of shells.

zsh and fish pass words without quotes, and replace the whole word by a candidate. bash passes the line as it
was typed, and replaces only the text after the last word break (`=`, `@` and `:` are such). For bash, a
candidate is therefore cut at the word break, and quoted.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

from meshctl.cli.completion import Candidate

BREAKS = "\"'@><=;|&(: \t\n"
"""The default word breaks of bash: characters at which it begins a new word."""
SPECIAL = re.compile(r"""([ \t"'\\$`&;|<>()*?!])""")
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
        if point.isdecimal():  # bash counts bytes
            line = line.encode("utf-8", "surrogateescape")[: int(point)].decode("utf-8", "surrogateescape")
        yield from _bash(line, environ.get("COMP_WORDBREAKS", BREAKS))
        return
    *before, word = words or [""]
    for found in _fitting(before, word):
        description = "".join(filter(str.isprintable, found.description))
        described = f"{found.text}\t{description}"
        yield f"{described}\t{int(found.is_whole)}" if shell == "zsh" else described.rstrip("\t")


def _fitting(before: Sequence[str], word: str) -> list[Candidate]:
    found = [one for one in candidates(before, word) if one.text.startswith(word) and one.text.isprintable()]
    return list({one.text: one for one in found}.values())


def _bash(line: str, breaks: str) -> Iterator[str]:
    for quote in ("", "'", '"'):
        with suppress(ValueError):  # another quote is open
            _, *before, last = shlex.split(f"{line}x{quote}")
            break
    else:
        return
    word = last[:-1]
    if quote:
        replaced = line.rpartition(quote)[2]
    else:
        starts = [found.end() for found in re.finditer(rf"(?<!\\)[{re.escape(breaks)}]", line)]
        start = starts[-1] if starts else 0
        replaced = line[start - (line[start - 1 : start] == "@") :].replace(
            "\\", ""
        )  # `@` may begin a host name
    for found in _fitting(before, word):
        rest = found.text[len(word) - len(replaced) :]
        yield rest if quote else SPECIAL.sub(r"\\\1", rest) + " " * found.is_whole


def candidates(before: Sequence[str], word: str) -> Iterator[Candidate]:
    """Yields the candidates for the word after `before`, the previous words without the program's name."""
    root = _commands_of_meshctl()
    command, arguments, option = root, list[str](), None
    for earlier in before:
        if option is not None:
            option = None
        elif earlier.startswith("-") and len(earlier) > 1:
            known = _option(command, earlier)
            option = None if known is None or known.is_flag else known
        elif command is root:
            command = root.commands.get(earlier, root)
        else:
            arguments.append(earlier)
    name, equals, value = word.partition("=")
    if option:
        yield from _values(command, option, arguments, word)
    elif word.startswith("--") and equals:
        option = _option(command, name)
        for found in _values(command, option, arguments, value) if option else ():
            yield Candidate(f"{name}={found.text}", found.description)
    elif word.startswith("-"):
        for one in command.params:
            names = (name for name in one.opts if name[:2] == "--")
            yield from (Candidate(name, getattr(one, "help", "") or "") for name in names)
        yield Candidate("--help", "Show this message and exit.")
    elif command is root:
        shown = {name: one for name, one in root.commands.items() if not one.hidden}
        yield from (Candidate(name, (one.help or "").partition("\n")[0]) for name, one in shown.items())
    elif takes := [one for one in command.params if one.param_type_name == "argument"]:
        yield from _values(command, takes[min(len(arguments), len(takes) - 1)], arguments, word)


@cache
def _commands_of_meshctl() -> Any:
    from typer.main import get_command

    from meshctl.cli.app import app

    return get_command(app)


def _option(command: Any, name: str) -> Any:
    return next((one for one in command.params if name in one.opts), None)


def _values(command: Any, parameter: Any, arguments: list[str], word: str) -> Iterator[Candidate]:
    import typer

    context = typer.Context(command)
    context.args = arguments
    for item in parameter.shell_complete(context, word):
        yield Candidate(item.value, item.help or "")
