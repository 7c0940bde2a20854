"""`meshctl show-topology`: loads, checks and resolves a recipe, and draws the plan, the same one that
`launch` runs."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshctl.cli.load import Held, Launchable, Unreadable, plan_of, resolve_source
from meshctl.cli.output import Refusal, check_format, has_color, refuse, write, write_file
from meshctl.cli.validate import draw
from meshctl.dataclass import dataclass
from meshctl.diagnostics import RecipeError, Report
from meshctl.plan.resizing import CannotResize
from meshctl.plan.views.topology import Topology, Warning, ZoomError, topology
from meshctl.recipe.compose.folders import is_dir, is_file
from meshctl.recipe.rules.memory import memory_of
from meshctl.text.english import counted, listed
from meshctl.text.redaction import redact
from meshctl.topology.memory import Memory
from meshctl.view.pictures import FORMATS
from meshctl.view.pictures.text.styled import in_encoding
from meshctl.view.reports.text import shown

if TYPE_CHECKING:
    from meshctl.plan.views.selection import Selection

DEFAULT_COLUMNS = 80
"""Width of the picture without a terminal."""
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".pdf")
"""Suffixes of image files that no format writes."""
MAX_RANK_DIGITS = 18


@dataclass(frozen=True)
class Options:
    """The options of the command."""

    format: str = ""
    """Empty for the format that the suffix of `out` names, or text."""
    out: str = ""
    component: str = ""
    dim: str = ""
    node: int | None = None
    rank: str = ""
    """GROUP:N"""
    samples: int | None = None
    diff: str | None = None
    """Another recipe, other overrides, or both, quoted as in a shell. Empty for the same recipe without
    overrides; None for no comparison."""
    lost: Sequence[str] = ()
    """Items of the form GROUP:RANK or node:N."""

    @property
    def zoom(self) -> tuple[str, ...]:
        """The given options that select one part of the picture."""
        given = {
            "--component": self.component,
            "--dim": self.dim,
            "--node": self.node is not None,
            "--rank": self.rank,
        }
        return tuple(option for option, is_given in given.items() if is_given)

    @property
    def selection(self) -> Selection:
        from meshctl.plan.views.selection import Selection

        rank = group_and_rank(self.rank) if self.rank else None
        return Selection(self.component, self.dim, self.node, rank, self.samples or 0)

    @property
    def suffix(self) -> str:
        return Path(self.out).suffix.lower()

    @property
    def format_name(self) -> str:
        return self.format or next(
            (name for name, format in FORMATS.items() if self.suffix in format.suffixes), "text"
        )


def show(recipe: str, overrides: list[str], options: Options) -> int:
    """Prints or writes the picture, and returns the exit code."""
    try:
        check(options)
        text = picture(recipe, overrides, options)
    except ZoomError as wrong:
        return refuse(str(wrong))
    except CannotResize as error:
        return refuse(f"without {listed(options.lost)} the run ends: {error}", 1)
    except Unreadable as unreadable:
        draw(unreadable.report, sys.stderr)
        return 3
    except RecipeError as error:
        draw(error.report, sys.stderr)
        return 1
    if not options.out:
        is_text = options.format_name == "text"
        write(in_encoding(text, sys.stdout.encoding) if is_text else text, sys.stdout)
        return 0
    if code := write_file(text, Path(options.out)):
        return code
    size = counted(len(text.encode()), "byte")
    print(f"wrote {shown(str(Path(options.out)))}: {options.format_name}, {size}", file=sys.stderr)
    return 0


def check(options: Options) -> None:
    """Raises `Refusal` for options that are wrong whatever the recipe is."""
    check_format(options.format_name, FORMATS)
    if not options.format and options.suffix in IMAGE_SUFFIXES:
        raise Refusal(
            f"no format has the suffix `{options.suffix}`; use `.svg` or `.html`, which a browser displays "
            "and prints"
        )
    format = FORMATS[options.format_name]
    if len(options.zoom) > 1 and options.zoom != ("--component", "--dim"):
        raise Refusal(
            f"{listed(options.zoom)} show different parts; use one of them (only `--dim` and `--component` "
            "combine)"
        )
    if options.zoom and not (format.zoom or format.selects):
        able = listed((name for name, other in FORMATS.items() if other.zoom or other.selects), "or")
        raise Refusal(
            f"`{options.format_name}` shows only the whole plan, not {listed(options.zoom)}; use {able}"
        )
    if options.diff is not None and options.zoom:
        raise Refusal(f"`--diff` compares whole plans, not {listed(options.zoom)}")
    if options.diff is not None and not format.difference:
        able = listed((name for name, other in FORMATS.items() if other.difference), "or")
        raise Refusal(f"`{options.format_name}` shows one plan, not a difference; use {able}")
    if options.samples is not None and not options.rank:
        raise Refusal("`--samples` needs `--rank`: it is the number of samples in a batch for that rank")
    if options.samples is not None and options.samples < 1:
        raise Refusal(f"`--samples` must be a positive integer, not {options.samples}")
    if options.rank:
        group_and_rank(options.rank)


def group_and_rank(text: str) -> tuple[str, int]:
    group, colon, number = text.rpartition(":")
    if not (colon and group and number.isascii() and number.isdigit() and len(number) <= MAX_RANK_DIGITS):
        raise Refusal(f"`--rank` must be GROUP:N, such as `train:0`, not `{text}`")
    return group, int(number)


def picture(recipe: str, overrides: list[str], options: Options) -> str:
    """Returns the text of the picture."""
    name, held = resolve_source(recipe)
    launchable, format = loaded(name, overrides, held, options.lost), FORMATS[options.format_name]
    drawn = topology_of(launchable)
    look: dict[str, Any] = {}
    if options.format_name == "text":
        look = {"width": DEFAULT_COLUMNS, "color": not options.out and has_color(sys.stdout)}
        if not options.out and sys.stdout.isatty():
            look["width"] = shutil.get_terminal_size((DEFAULT_COLUMNS, 24)).columns
    if options.diff is not None:
        from meshctl.plan.views.difference import difference

        return draw_in(format.difference, difference(drawn, other_topology(name, held, options.diff)), **look)
    if not options.zoom:
        return draw_in(format.whole, drawn, **look)
    from meshctl.plan.views.selection import select

    zoom = select(launchable.plan, drawn, options.selection)
    if format.zoom:
        return draw_in(format.zoom, zoom, drawn, **look)
    return draw_in(format.whole, drawn, options.selection)


def loaded(name: str, overrides: list[str], held: Held, lost: Sequence[str]) -> Launchable:
    """Returns the recipe; with `lost`, what remains of it. Prints what changes. Raises
    `CannotResize`."""
    if not lost:
        return plan_of(name, overrides, held)
    from meshctl.cli.resizing import Resizing, changes, lost_of

    resizing = Resizing(name, overrides, held)
    try:
        gone = lost_of(resizing.whole.plan, lost)
    except ValueError as error:
        raise Refusal(str(error)) from None
    smaller = resizing.without(gone)
    for line in changes(resizing, smaller.plan, gone):
        print(shown(redact(line)), file=sys.stderr)
    return smaller


def draw_in(file: str, *shown: object, **look: object) -> str:
    text: str = import_module(f"meshctl.view.pictures.{file}").draw(*shown, **look)
    return text


def topology_of(launchable: Launchable) -> Topology:
    memory = memory_of(launchable.facts) if launchable.facts else Memory()
    drawn = topology(launchable.plan, warnings(launchable.report), memory)
    if not launchable.secrets.written:
        return drawn
    hide = partial(redact, known=launchable.secrets.written_anywhere)
    groups = tuple(
        replace(group, program=hide(group.program), python=hide(group.python)) for group in drawn.groups
    )
    components = tuple(replace(one, unknown=hide(one.unknown)) for one in memory.components)
    return replace(drawn, groups=groups, memory=replace(memory, components=components))


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


def other_topology(recipe: str, held: Held, text: str) -> Topology:
    """Returns the topology with which `--diff` compares. It may come from standard input. Its errors are
    reported separately."""
    try:
        name, overrides = other(recipe, text)
        if name == "-":
            name, held = (recipe, held) if held else resolve_source(name)
        return topology_of(plan_of(name, overrides, held))
    except (Unreadable, RecipeError):
        print(f"in --diff {shlex.quote(shown(redact(text)))}:", file=sys.stderr)
        raise


def other(recipe: str, text: str) -> tuple[str, list[str]]:
    """Returns the recipe and the overrides that `--diff` names. If the text begins with an override, the
    recipe is the same."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise Refusal(
            f"`--diff` must be a recipe and overrides, quoted as in a shell; {str(error).lower()} in `{text}`"
        ) from None
    if not words:
        return recipe, words
    first = words[0]
    is_override = "=" in first or first.startswith("~")
    if is_override and not is_file(Path(first)) and not is_dir(Path(first)):
        return recipe, words
    return first, words[1:]
