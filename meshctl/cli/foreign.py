"""`meshctl init NAME --from [FORMAT] FILE...` converts a configuration of another system, and prints what
became of each of its keys. `meshctl lint FILE...` checks one with the rules of recipes, at its own lines.

Exit codes: 1 where something is lost that changes the training, or where `lint` finds an error; 3 where a
file cannot be read.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import wrap
from typing import TextIO

from meshctl.cli.init import FILE, MODELINE, for_editors, place_of
from meshctl.cli.output import check_format, refuse, why, write
from meshctl.cli.validate import Options, draw, report
from meshctl.diagnostics import Report
from meshctl.foreign import lint as rules
from meshctl.foreign.convert import Converted, Entry, convert
from meshctl.foreign.model import Unreadable
from meshctl.foreign.source import read
from meshctl.foreign.table import NAMES, recognised, table
from meshctl.foreign.write import flow, text_of
from meshctl.recipe.templates import WrongChoice
from meshctl.run.directory import write_whole
from meshctl.text.english import counted, listed
from meshctl.view.reports import FORMATS, Checked
from meshctl.view.reports.text import shown

HEADS = {
    "lost": "lost",
    "mapped": "in the recipe",
    "default": "needs nothing in a recipe",
    "unused": "without effect here",
}
WIDEST = 120
UNREADABLE = 3


def init_from(name: str, words: Sequence[str], force: bool) -> int:
    """Writes the recipe NAME of a configuration, and returns the exit code. `words` are the format, which may
    be left out, and the files."""
    try:
        found = _converted(words)
        to = place_of(name, found.kind)
    except Unreadable as error:
        draw(Report((error.diagnostic,)), sys.stderr)
        return UNREADABLE
    except WrongChoice as wrong:
        return refuse(str(wrong))
    files = listed(str(file) for file, _ in found.source.sources)
    heading = f"# From {files.replace('`', '')}, for {found.table.title} {found.table.version}.\n"
    text = text_of({**found.recipe, "name": to.stem}, found.comments)
    if to.recipe.exists() and any(to.recipe.samefile(file) for file, _ in found.source.sources):
        return refuse(f"`{to.recipe}` is the configuration itself: choose another NAME")
    if to.recipe.exists() and not force:
        return refuse(f"`{to.recipe}` already exists: choose another NAME, or use `--force` to overwrite it")
    try:
        for file, content in {to.recipe: MODELINE + heading + text, **for_editors(to.folder / FILE)}.items():
            write_whole(file, content)
    except OSError as error:
        return refuse(f"`{to.folder}` cannot be written to: {why(error)}")
    print_entries(found, sys.stdout)
    path = shlex.quote(str(to.recipe))
    again = shlex.join(["meshctl", "lint", *(file for file, _ in found.source.sources)])
    if errors := rules.findings(found, to.folder).errors:
        print(f"\n{counted(len(errors), 'mistake')} in the configuration itself: {again}")
    print(f"\nwrote {shown(str(to.recipe))}\n\nnext:")
    print(f"  meshctl validate {path}\n  meshctl show-topology {path}")
    return int(found.changes_training)


def lint(files: Sequence[str], format: str, options: Options) -> int:
    """Prints the findings about a configuration, and returns the exit code."""
    check_format(options.report_format, FORMATS)
    if format and format not in NAMES:
        return refuse(f"--as must be {listed(NAMES, 'or')}, not `{format}`")
    try:
        found = _converted([*([format] if format else []), *files])
    except Unreadable as error:
        draw(Report((error.diagnostic,)), sys.stderr)
        return UNREADABLE
    folder = Path(found.source.sources[0][0]).absolute().parent
    checked = rules.findings(found, folder)
    counts = [(len(checked.errors), "error"), (len(checked.diagnostics) - len(checked.errors), "warning")]
    words = ", ".join(counted(count, noun) for count, noun in counts if count) or "ok"
    if unknown := sum(bool(one.unknown) for one in found.source.given):
        words += f", {counted(unknown, 'value')} unknown"
    name = str(found.source.sources[0][0])
    code = int(bool(checked.errors) or (options.strict and bool(checked.diagnostics)))
    summary = f"{name}: {words}, as {found.table.title} {found.table.version}"
    return report((Checked(name, code, checked, summary),), options, sys.stdout)


def _converted(words: Sequence[str]) -> Converted:
    """Returns the conversion of files. The first word may be the format. Raises `Unreadable`."""
    format = words[0] if words and words[0] in NAMES else ""
    files = words[1:] if format else words
    if not files:
        raise Unreadable("no file is given", help=f"write `--from FORMAT FILE`; formats are {listed(NAMES)}")
    if not format and len(files) > 1 and not Path(files[0]).exists():
        raise Unreadable(f"`{files[0]}` is neither a file nor a format", help=f"formats are {listed(NAMES)}")
    source = read(map(Path, files))
    format = format or recognised(source)
    if not format:
        known = f"name its format: {listed(NAMES, 'or')}"
        raise Unreadable(f"the system of {listed(files)} is not recognised", help=known)
    return convert(source, table(format))


# The table of keys


def print_entries(found: Converted, out: TextIO) -> None:
    width = min(WIDEST, shutil.get_terminal_size((80, 24)).columns) if out.isatty() else 80
    write("\n".join(_lines(found, width)) + "\n", out)


def _lines(found: Converted, width: int) -> Iterator[str]:
    count = counted(len(found.entries), "key")
    yield f"{found.table.title} {found.table.version}, a recipe of the kind {found.kind}: {count}"
    for kind, head in HEADS.items():
        entries = [one for one in found.entries if one.kind == kind]
        if entries:
            yield from ("", f"{head} ({len(entries)})")
        for one in sorted(entries, key=lambda one: not one.trains):
            yield from _entry(one, width)
    if found.changes_training:
        yield from ("", "What is marked with ! changes the training.")


def _entry(one: Entry, width: int) -> Iterator[str]:
    """Yields the lines of a key: its value, and below it what became of it."""
    value = one.given.unknown or flow(one.given.value)
    mark = "!" if one.trains else " "
    first = f" {mark} {shown(one.given.key)}: {shown(value)}"
    yield first if len(first) <= width else f"{first[: width - 3]}..."
    if one.kind != "default":
        arrow = "-> " if one.kind == "mapped" else ""
        yield from (
            f"     {line}" for line in wrap(arrow + shown(one.what), width - 5, break_on_hyphens=False)
        )
