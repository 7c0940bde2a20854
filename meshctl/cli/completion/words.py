"""Candidates for a word of the command line, from the commands, options and arguments that are declared to
typer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from meshctl.cli.completion.candidate import Candidate


def candidates(before: Sequence[str], word: str) -> Iterable[Candidate]:
    """Returns the candidates for the word after `before`, the previous words without the program's name."""
    from typer.main import get_command

    from meshctl.cli.app import app

    root: Any = get_command(app)
    command, arguments, option = _parsed(root, before)
    if option:
        return _values(command, option, arguments, word)
    if word.startswith("--") and "=" in word:
        name, _, value = word.partition("=")
        option = _option(command, name)
        found = _values(command, option, arguments, value) if option else ()
        return (Candidate(f"{name}={one.text}", one.description) for one in found)
    if word.startswith("-"):
        return _options(command)
    if command is root:
        return _commands(root)
    takes = [one for one in command.params if one.param_type_name == "argument"]
    return _values(command, takes[min(len(arguments), len(takes) - 1)], arguments, word) if takes else ()


def _parsed(root: Any, words: Sequence[str]) -> tuple[Any, list[str], Any]:
    """Returns (the command, its arguments so far, the option whose value comes next or None)."""
    command, arguments, option = root, list[str](), None
    for word in words:
        if option is not None:
            option = None
        elif word.startswith("-") and len(word) > 1:
            found = _option(command, word)
            option = None if found is None or found.is_flag else found
        elif command is root:
            command = root.commands.get(word, root)
        else:
            arguments.append(word)
    return command, arguments, option


def _option(command: Any, name: str) -> Any:
    return next((one for one in command.params if name in one.opts), None)


def _values(command: Any, parameter: Any, arguments: list[str], word: str) -> Iterator[Candidate]:
    """Yields the candidates of the callback of an option or argument."""
    import typer

    context = typer.Context(command)
    context.args = arguments
    for item in parameter.shell_complete(context, word):
        yield Candidate(item.value, item.help or "")


def _commands(root: Any) -> Iterator[Candidate]:
    for name, command in root.commands.items():
        if not command.hidden:
            yield Candidate(name, (command.help or "").partition("\n")[0])


def _options(command: Any) -> Iterator[Candidate]:
    for one in command.params:
        yield from (Candidate(name, getattr(one, "help", "") or "") for name in one.opts if name[:2] == "--")
    yield Candidate("--help", "Show this message and exit.")
