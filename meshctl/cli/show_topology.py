"""`meshctl show-topology`: load, check, resolve, draw. What it draws is the very plan that `launch` runs."""

from __future__ import annotations

import shlex
import shutil
import sys
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshctl.cli.color import coloured
from meshctl.cli.load import Launchable, Unreadable, plan_of
from meshctl.cli.output import why, write
from meshctl.cli.stdin_source import Held, resolve_source
from meshctl.cli.validate import draw
from meshctl.diagnostics import RecipeError, Report
from meshctl.plan.views.topology import Topology, Warning, ZoomError, topology
from meshctl.recipe.compose.folders import is_dir, is_file
from meshctl.run.directory import write_whole
from meshctl.text.english import counted, listed
from meshctl.text.redaction import redact
from meshctl.view.pictures import FORMATS
from meshctl.view.pictures.text.styled import in_encoding
from meshctl.view.reports.text import shown

if TYPE_CHECKING:
    from meshctl.plan.views.selection import Zoom

USAGE = 2
NO_TERMINAL = 80
"""Columns."""
PICTURES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".pdf")
"""Suffixes of files that nobody wants text in."""
LONG = 19
"""A number of so many digits is none that a rank has."""


class Usage(Exception):
    """What is asked for makes no sense; the message says what would."""


@dataclass(frozen=True)
class Asked:
    """The options of the command."""

    format: str = ""
    """Empty where the name of the file says it, or it is text."""
    out: str = ""
    component: str = ""
    dim: str = ""
    node: int | None = None
    rank: str = ""
    """GROUP:N"""
    samples: int | None = None
    diff: str | None = None
    """Another recipe, other overrides, or both, quoted as in a shell; empty for the same recipe without any.
    """

    @property
    def zoom(self) -> tuple[str, ...]:
        """The options that ask for one part."""
        said = {
            "--component": self.component,
            "--dim": self.dim,
            "--node": self.node is not None,
            "--rank": self.rank,
        }
        return tuple(option for option, given in said.items() if given)

    @property
    def suffix(self) -> str:
        return Path(self.out).suffix.lower()

    @property
    def written_in(self) -> str:
        return self.format or next(
            (name for name, format in FORMATS.items() if self.suffix in format.suffixes), "text"
        )


def show(recipe: str, overrides: list[str], asked: Asked) -> int:
    """Prints or writes the picture; the exit code."""
    try:
        check(asked)
        return said(pictured(recipe, overrides, asked), asked)
    except (Usage, ZoomError) as wrong:
        return refuse(str(wrong))
    except Unreadable as unreadable:
        draw(unreadable.report, sys.stderr)
        return 3
    except RecipeError as error:
        draw(error.report, sys.stderr)
        return 1


def refuse(why: str) -> int:
    print(f"error: {shown(redact(why))}", file=sys.stderr)
    return USAGE


def check(asked: Asked) -> None:
    """Raises `Usage` for what no recipe could make right."""
    if asked.written_in not in FORMATS:
        raise Usage(f"there is no format `{asked.format}`; there are {listed(FORMATS)}")
    if not asked.format and asked.suffix in PICTURES:
        raise Usage(
            f"there is no format for `{asked.suffix}`; write `.svg` or `.html`, which a browser shows and prints"
        )
    format = FORMATS[asked.written_in]
    if len(asked.zoom) > 1 and asked.zoom != ("--component", "--dim"):
        raise Usage(
            f"{listed(asked.zoom)} ask for different parts; say one of them (`--dim` may name a `--component`)"
        )
    if asked.zoom and not (format.zoom or format.selects):
        drawing = [name for name, other in FORMATS.items() if other.zoom or other.selects]
        raise Usage(
            f"`{asked.written_in}` draws the whole plan, not {listed(asked.zoom)}; {listed(drawing)} do"
        )
    if asked.diff is not None and asked.zoom:
        raise Usage(f"`--diff` compares whole plans, not {listed(asked.zoom)}")
    if asked.diff is not None and not format.difference:
        drawing = [name for name, other in FORMATS.items() if other.difference]
        raise Usage(f"`{asked.written_in}` draws one plan and no difference; {listed(drawing)} do")
    if asked.samples is not None and not asked.rank:
        raise Usage(
            "`--samples` says how many samples a batch has of which `--rank` gets some; there is no `--rank`"
        )
    if asked.samples is not None and asked.samples < 1:
        raise Usage(f"`--samples` is a whole number from 1, not {asked.samples}")
    if asked.rank:
        group_and_rank(asked.rank)


def group_and_rank(text: str) -> tuple[str, int]:
    group, colon, number = text.rpartition(":")
    if not (colon and group and number.isascii() and number.isdigit() and len(number) < LONG):
        raise Usage(f"`--rank` is GROUP:N, such as `train:0`, not `{text}`")
    return group, int(number)


def pictured(recipe: str, overrides: list[str], asked: Asked) -> str:
    """What is asked for, as text."""
    name, held = resolve_source(recipe)
    ready, format = plan_of(name, overrides, held), FORMATS[asked.written_in]
    drawn = pictured_plan(ready)
    look: dict[str, Any] = {}
    if asked.written_in == "text":
        look = {"width": columns(asked), "colour": not asked.out and coloured(sys.stdout)}
    if asked.diff is not None:
        from meshctl.plan.views.difference import difference

        return draw_in(format.difference, difference(drawn, other_plan(name, held, asked.diff)), **look)
    zoom = zoomed(ready, drawn, asked) if asked.zoom else None
    if zoom and format.zoom:
        return draw_in(format.zoom, zoom, drawn, **look)
    if zoom:
        look = {
            "select": asked.rank,
            "component": asked.component,
            "dim": asked.dim,
            "node": asked.node,
            "samples": asked.samples or 0,
        }
    return draw_in(format.whole, drawn, **look)


def draw_in(file: str, *shown: object, **look: object) -> str:
    text: str = import_module(f"meshctl.view.pictures.{file}").draw(*shown, **look)
    return text


def pictured_plan(ready: Launchable) -> Topology:
    drawn = topology(ready.plan, warnings(ready.report))
    if not ready.secrets.written:
        return drawn
    return replace(
        drawn,
        groups=tuple(
            replace(group, program=redact(group.program, ready.secrets.written)) for group in drawn.groups
        ),
    )


def warnings(report: Report) -> tuple[Warning, ...]:
    return tuple(
        Warning(
            found.code,
            found.message,
            f"{span.file}:{span.line}:{span.column}" if (span := found.primary) else "",
            found.help,
        )
        for found in report.diagnostics
        if found.severity == "warning"
    )


def zoomed(ready: Launchable, drawn: Topology, asked: Asked) -> Zoom:
    """The part that is asked for; raises `ZoomError` where there is no such part."""
    from meshctl.plan.views.selection import of_component, of_dim, of_node, of_rank

    if asked.rank:
        return of_rank(ready.plan, drawn, *group_and_rank(asked.rank), asked.samples or 0)
    if asked.node is not None:
        return of_node(ready.plan, drawn, asked.node)
    return (
        of_dim(ready.plan, drawn, asked.dim, asked.component)
        if asked.dim
        else of_component(ready.plan, drawn, asked.component)
    )


def other_plan(recipe: str, held: Held, text: str) -> Topology:
    """What `--diff` compares with, which may be standard input too; where that is wrong, the reports are its
    own."""
    try:
        name, overrides = other(recipe, text)
        if name == "-":
            name, held = (recipe, held) if held else resolve_source(name)
        return pictured_plan(plan_of(name, overrides, held))
    except (Unreadable, RecipeError):
        print(f"in --diff {shlex.quote(shown(redact(text)))}:", file=sys.stderr)
        raise


def other(recipe: str, text: str) -> tuple[str, list[str]]:
    """The recipe and the overrides that `--diff` names: where it begins with an override, those of the same
    recipe."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise Usage(
            f"`--diff` is a recipe and overrides, quoted as in a shell; {str(error).lower()} in `{text}`"
        ) from None
    begins = words[:1]
    if begins and (is_file(Path(begins[0])) or is_dir(Path(begins[0])) or not overrides_it(begins[0])):
        return begins[0], words[1:]
    return recipe, words


def overrides_it(word: str) -> bool:
    return "=" in word or word.startswith("~")


def columns(asked: Asked) -> int:
    return (
        shutil.get_terminal_size((NO_TERMINAL, 24)).columns
        if sys.stdout.isatty() and not asked.out
        else NO_TERMINAL
    )


def said(text: str, asked: Asked) -> int:
    """Prints it, or writes the file."""
    if asked.out:
        return written(text, Path(asked.out), asked.written_in)
    write(in_encoding(text, sys.stdout.encoding) if asked.written_in == "text" else text, sys.stdout)
    return 0


def written(text: str, path: Path, format: str) -> int:
    """A file is whole or not there; what is no file, a pipe or a device, is written to."""
    try:
        if is_dir(path):
            return refuse(f"`{path}` cannot be written: it is a folder")
        if path.exists() and not path.is_file():  # /dev/stdout may be a pipe, which has no path of its own
            path.write_text(text, encoding="utf-8")
        else:
            write_whole(path.resolve(), text)
    except FileExistsError:
        return refuse(f"`{path}` cannot be written: its folder is a file")
    except (OSError, ValueError) as error:
        return refuse(f"`{path}` cannot be written: {why(error)}")
    print(f"wrote {shown(str(path))}: {format}, {counted(len(text.encode()), 'byte')}", file=sys.stderr)
    return 0
