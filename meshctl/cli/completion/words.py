"""Candidates for a word of meshctl's command line: commands, options, what options take, recipes, and
overrides of a recipe."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from meshctl.cli.completion.candidate import Candidate
from meshctl.cli.completion.shells import shells

if TYPE_CHECKING:
    from meshctl.recipe.quick_parse import Outline

RECIPE = (".yaml", ".yml")


@dataclass(frozen=True)
class Asked:
    """What is known of the word that is asked for."""

    word: str
    """As far as it is typed."""
    before: tuple[str, ...] = ()
    """The arguments of the command before it, without options and their values."""

    @cached_property
    def outline(self) -> Outline:
        """Of the recipe that the line names."""
        from meshctl.recipe.quick_parse import Outline, outline

        named = next((argument for argument in self.before if not is_override(argument)), "")
        return outline(Path(named).expanduser()) if named else Outline()


Source = Callable[[Asked], Iterable[Candidate]]


def candidates(before: Sequence[str], word: str) -> Iterable[Candidate]:
    """For the word that follows `before`, which begins after the program's name."""
    command, arguments, option = parsed(before)
    if option:
        return VALUES[command][option](Asked(word, arguments))
    if word.startswith("--") and "=" in word:
        name, _, rest = word.partition("=")
        source = VALUES.get(command, {}).get(name, nothing)
        return (
            Candidate(f"{name}={one.text}", one.says, one.whole) for one in source(Asked(rest, arguments))
        )
    if word.startswith("-"):
        return options(command)
    return ARGUMENTS.get(command, nothing)(Asked(word, arguments)) if command else commands()


def parsed(words: Sequence[str]) -> tuple[str, tuple[str, ...], str]:
    """(the command, its arguments so far, the option whose value comes next)."""
    command, option, arguments = "", "", list[str]()
    for word in words:
        if option:
            option = ""
        elif word.startswith("-") and len(word) > 1:
            option = word if word in VALUES.get(command, {}) else ""
        elif command:
            arguments.append(word)
        else:
            command = word
    return command, tuple(arguments), option


def is_override(word: str) -> bool:
    return "=" in word or (word.startswith(("~", "+")) and not word.startswith("~/"))


# What there is, told by typer


def commands() -> Iterator[Candidate]:
    for name, (says, _) in _commands().items():
        if name:
            yield Candidate(name, says)


def options(command: str) -> Iterator[Candidate]:
    _, found = _commands().get(command, ("", {}))
    for name, says in found.items():
        yield Candidate(name, says)


def _commands() -> dict[str, tuple[str, dict[str, str]]]:
    """Name -> (what it does, its options with what they do); the program itself has no name."""
    from typer.main import get_command

    from meshctl.cli.app import app

    root = get_command(app)
    known = {
        "": root,
        **{name: command for name, command in getattr(root, "commands", {}).items() if not command.hidden},
    }
    found = {}
    for name, command in known.items():
        names = {
            word: getattr(one, "help", "") or ""
            for one in command.params
            for word in one.opts
            if word.startswith("--")
        }
        found[name] = (
            (command.help or "").partition("\n")[0],
            {**names, "--help": "Show this message and exit."},
        )
    return found


# Arguments


def nothing(asked: Asked) -> Iterator[Candidate]:
    yield from ()


def recipes(asked: Asked) -> Iterator[Candidate]:
    return paths(asked.word, RECIPE)


def recipe_then_overrides(asked: Asked) -> Iterable[Candidate]:
    return overrides(asked) if asked.before else recipes(asked)


def recipes_and_overrides(asked: Asked) -> Iterator[Candidate]:
    if not is_override(asked.word):
        yield from recipes(asked)
    if asked.before:
        yield from overrides(asked)


def overrides(asked: Asked) -> Iterable[Candidate]:
    from meshctl.cli.completion.overrides import overrides

    return overrides(asked.outline, asked.word)


def codes(asked: Asked) -> Iterator[Candidate]:
    """In whatever case the word is begun."""
    from meshctl.diagnostics.codes import codes, head

    for code in codes():
        if code.startswith(asked.word.upper()):
            yield Candidate(asked.word + code[len(asked.word) :], head(code)[1])


def known_shells(asked: Asked) -> Iterator[Candidate]:
    return map(Candidate, shells())


def any_file(asked: Asked) -> Iterator[Candidate]:
    return paths(asked.word, ("",))


def python_file(asked: Asked) -> Iterator[Candidate]:
    return paths(asked.word, (".py",))


def paths(word: str, suffixes: tuple[str, ...]) -> Iterator[Candidate]:
    """Folders, and files that end so; hidden ones if the word begins like one."""
    folder, _, begun = word.rpartition("/")
    folder = word[: len(word) - len(begun)]
    try:
        entries = sorted(os.scandir(os.path.expanduser(folder) or "."), key=lambda entry: entry.name)
    except (OSError, ValueError):
        return
    for entry in entries:
        if entry.name.startswith(".") and not begun.startswith("."):
            continue
        if entry.is_dir():
            yield Candidate(f"{folder}{entry.name}/", whole=False)
        elif entry.name.endswith(suffixes):
            yield Candidate(f"{folder}{entry.name}")


# What options take


def words(*known: str) -> Source:
    return lambda asked: map(Candidate, known)


def reports(asked: Asked) -> Iterator[Candidate]:
    from meshctl.view.reports import FORMATS

    return (Candidate(name, says) for name, says in FORMATS.items())


def pictures(asked: Asked) -> Iterator[Candidate]:
    from meshctl.view.pictures import FORMATS

    return map(Candidate, FORMATS)


def kinds(asked: Asked) -> Iterator[Candidate]:
    from meshctl.recipe.templates import KINDS

    return (Candidate(name, says) for name, says in KINDS.items())


def devices(asked: Asked) -> Iterator[Candidate]:
    from meshctl.recipe.fields import DEVICE_TYPES

    return (Candidate(name, says) for name, says in DEVICE_TYPES.items())


def starting_layouts(asked: Asked) -> Iterator[Candidate]:
    from meshctl.recipe.templates import LAYOUTS

    return (Candidate(name, says) for name, (says, _) in LAYOUTS.items())


def components(asked: Asked) -> Iterator[Candidate]:
    return (
        Candidate(name, asked.outline.text("components", name, "_target_"))
        for name in asked.outline.names("components")
    )


def dims(asked: Asked) -> Iterator[Candidate]:
    from meshctl.topology.sizes import SIZES

    return (Candidate(size.removesuffix("_size")) for size in SIZES)


def groups(asked: Asked) -> Iterator[Candidate]:
    return map(Candidate, asked.outline.names("groups"))


def recordings(asked: Asked) -> Iterator[Candidate]:
    """ROUTE=DIR, where the source alone stands for its routes."""
    route, said, folder = asked.word.partition("=")
    if said:
        return (Candidate(f"{route}={one.text}", whole=False) for one in paths(folder, ()))
    return (Candidate(f"{name}=", whole=False) for name in asked.outline.names("pipeline"))


def places(asked: Asked) -> Iterator[Candidate]:
    """GROUP:N"""
    return (Candidate(f"{name}:", whole=False) for name in asked.outline.names("groups"))


VALUES: Mapping[str, Mapping[str, Source]] = {
    "init": {
        "--kind": kinds,
        "--device": devices,
        "--ranks": nothing,
        "--layout": starting_layouts,
        "--script": python_file,
    },
    "validate": {"--format": reports, "-f": reports, "--color": words("auto", "always", "never")},
    "config": {"--format": words("text", "json"), "-f": words("text", "json")},
    "show-topology": {
        "--format": pictures,
        "-f": pictures,
        "--out": any_file,
        "-o": any_file,
        "--component": components,
        "--dim": dims,
        "--node": nothing,
        "--rank": places,
        "--samples": nothing,
        "--diff": recipes_and_overrides,
    },
    "launch": {"--only": groups, "--replay": recordings},
    "doctor": {"--format": words("text", "json"), "-f": words("text", "json")},
    "schema": {"--out": any_file, "-o": any_file},
    "agent": {"--plan": any_file, "--group": nothing, "--node": nothing, "--head": nothing},
}
"""By command, every option that takes a value, and what it may be."""
ARGUMENTS: Mapping[str, Source] = {
    "init": any_file,
    "validate": recipes_and_overrides,
    "config": recipe_then_overrides,
    "show-topology": recipe_then_overrides,
    "launch": recipe_then_overrides,
    "doctor": recipe_then_overrides,
    "explain": codes,
    "completion": known_shells,
}
