"""Callbacks that return candidates for options and arguments. `cli/app.py` assigns them to its options.

A callback receives the previous arguments of the command in `ctx.args`, and the beginning of the word.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from meshctl.cli.completion import Candidate

if TYPE_CHECKING:
    from meshctl.cli.completion.overrides import Outline

MAX_RANKS = 100
"""Maximum number of ranks that are proposed."""
Callback = Callable[[typer.Context, str], Iterable[Candidate]]


def words(*known: str) -> Callback:
    """Returns a callback with a fixed set of words."""

    return lambda ctx, incomplete: map(Candidate, known)


# Arguments


def paths(*suffixes: str) -> Callback:
    """Returns a callback with folders, and files with one of these suffixes."""
    return lambda ctx, incomplete: _paths(incomplete, suffixes)


recipe, files, folders, python_files = paths(".yaml", ".yml"), paths(""), paths(), paths(".py")


def runs(ctx: typer.Context, incomplete: str) -> Iterator[Candidate]:
    """Yields the names of recipes that have runs and NAME/TIME of each run, then folders."""
    from meshctl.run.finding import NoRun, launched_at, name_of, runs_below

    try:
        found = sorted(runs_below(Path("runs")), key=launched_at, reverse=True)
    except NoRun:
        found = []
    names = [name_of(run) for run in found]
    begun = dict.fromkeys(name.partition("/")[0] for name in names)
    yield from map(Candidate, names if "/" in incomplete else begun)
    yield from _paths(incomplete, ())


def runs_and_ranks(ctx: typer.Context, incomplete: str) -> Iterator[Candidate]:
    """Yields runs, or, behind a run, its groups and ranks."""
    if not ctx.args:
        yield from runs(ctx, incomplete)
        return
    from meshctl.run.finding import NoRun
    from meshctl.view.live.seen_run import SeenRun

    try:
        plan = SeenRun.named(ctx.args[0], "runs").plan
    except NoRun:
        return
    group, colon, _ = incomplete.partition(":")
    for each in plan.groups:
        if not colon:
            yield Candidate(each.name)
        elif each.name == group:
            yield from (Candidate(f"{group}:{rank}") for rank in range(min(each.workers, MAX_RANKS)))


def overrides(ctx: typer.Context, incomplete: str) -> Iterable[Candidate]:
    from meshctl.cli.completion.overrides import overrides

    return overrides(_outline(ctx), incomplete)


def recipes_and_overrides(ctx: typer.Context, incomplete: str) -> Iterator[Candidate]:
    if not _is_override(incomplete):
        yield from recipe(ctx, incomplete)
    if ctx.args:
        yield from overrides(ctx, incomplete)


def codes(ctx: typer.Context, incomplete: str) -> Iterator[Candidate]:
    """Yields the codes that begin with `incomplete`, in upper or lower case like `incomplete`."""
    from meshctl.diagnostics.codes import codes, head

    for code in codes():
        if code.startswith(incomplete.upper()):
            yield Candidate(incomplete + code[len(incomplete) :], head(code)[1])


def shells(ctx: typer.Context, incomplete: str) -> Iterable[Candidate]:
    return map(Candidate, known_shells())


# Options


def table(place: str) -> Callback:
    """Returns a callback with the words of a table, MODULE:NAME, which is imported on use. Texts of a
    mapping describe its keys."""

    def found(ctx: typer.Context, incomplete: str) -> Iterator[Candidate]:
        module, _, name = place.partition(":")
        known = getattr(import_module(module), name)
        for word in known:
            meaning = known[word] if isinstance(known, Mapping) else ""
            meaning = meaning[0] if isinstance(meaning, tuple) else meaning
            yield Candidate(word, meaning if isinstance(meaning, str) else "")

    return found


def dims(ctx: typer.Context, incomplete: str) -> Iterable[Candidate]:
    from meshctl.topology.mesh import DIMS, VIEWS

    return map(Candidate, dict.fromkeys((*DIMS, *VIEWS["data"], *VIEWS["expert"])))


def components(ctx: typer.Context, incomplete: str) -> Iterable[Candidate]:
    outline = _outline(ctx)
    names = outline.names("components")
    return (Candidate(name, outline.text("components", name, "_target_")) for name in names)


def groups(ctx: typer.Context, incomplete: str) -> Iterable[Candidate]:
    return map(Candidate, _outline(ctx).names("groups"))


def ranks(ctx: typer.Context, incomplete: str) -> Iterable[Candidate]:
    """Returns GROUP: for each group."""
    return (Candidate(f"{name}:") for name in _outline(ctx).names("groups"))


def recordings(ctx: typer.Context, incomplete: str) -> Iterable[Candidate]:
    """Returns candidates for ROUTE=DIR. ROUTE is the name of a source, for all routes from it."""
    route, equals, folder = incomplete.partition("=")
    if equals:
        return (Candidate(f"{route}={one.text}") for one in _paths(folder, ()))
    return (Candidate(f"{name}=") for name in _outline(ctx).names("pipeline"))


# Shared by several callbacks


def _outline(ctx: typer.Context) -> Outline:
    from meshctl.cli.completion.overrides import Outline, outline

    named = next((argument for argument in ctx.args if not _is_override(argument)), "")
    return outline(Path(named).expanduser()) if named else Outline()


def _is_override(word: str) -> bool:
    return "=" in word or (word.startswith(("~", "+")) and not word.startswith("~/"))


def _paths(word: str, suffixes: tuple[str, ...]) -> Iterator[Candidate]:
    """Yields folders, and files with one of these suffixes. Hidden ones are included only if the word begins
    with a dot."""
    begun = word.rpartition("/")[2]
    folder = word[: len(word) - len(begun)]
    try:
        entries = sorted(os.scandir(os.path.expanduser(folder) or "."), key=lambda entry: entry.name)
    except (OSError, ValueError):
        return
    for entry in entries:
        if entry.name.startswith(".") and not begun.startswith("."):
            continue
        if entry.is_dir():
            yield Candidate(f"{folder}{entry.name}/")
        elif entry.name.endswith(suffixes):
            yield Candidate(f"{folder}{entry.name}")


# `meshctl completion SHELL`

FOLDER = Path(__file__).parent
"""The folder with the script `meshctl.SHELL` of each shell that is supported."""


def known_shells() -> tuple[str, ...]:
    """Returns the names of the supported shells."""
    return tuple(sorted(path.suffix[1:] for path in FOLDER.glob("meshctl.*")))


def script(shell: str) -> int:
    """Prints the script of a shell, or of `$SHELL` if `shell` is empty. Returns the exit code."""
    from meshctl.cli.output import refuse, write
    from meshctl.text.english import listed

    name = shell or Path(os.environ.get("SHELL", "")).name
    if name not in known_shells():
        reason = f"shell `{name}` is not supported" if name else "the shell cannot be detected from SHELL"
        return refuse(f"{reason}; available: {listed(known_shells())}")
    write((FOLDER / f"meshctl.{name}").read_text(encoding="utf-8"), sys.stdout)
    return 0
