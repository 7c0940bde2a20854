"""`meshctl report` writes a run, or two side by side, as one HTML page."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from meshctl.cli.output import NO_RUN, REFUSED, refuse, why, write, write_file
from meshctl.run.directory import RunDir
from meshctl.run.reading import DAMAGED, text_of
from meshctl.text.english import listed
from meshctl.text.redaction import redact
from meshctl.view.live.seen_run import SeenRun
from meshctl.view.report_page.page import draw
from meshctl.view.report_page.record import RunRecord
from meshctl.view.reports.text import shown

MAX_RUNS = 2
FILE = "report.html"


def report(words: Sequence[str], folder: str, out: str) -> int:
    """Writes the page, prints its path, and returns the exit code."""
    if len(words) > MAX_RUNS:
        return refuse(f"a report shows one run or two, not {len(words)}")
    seen = [SeenRun.named(word, folder) for word in words or [""]]
    try:
        records = [RunRecord.read(each, recipe_of(each.run)) for each in seen]
    except OSError as error:
        return refuse(f"{error.filename} cannot be read: {why(error)}", NO_RUN)
    try:
        text = draw(records)
    except DAMAGED as error:
        return refuse(f"the files of {listed(each.name for each in seen)} are damaged: {why(error)}", NO_RUN)
    if out == "-":
        write(text, sys.stdout)
        return 0
    path = seen[0].run.path / FILE  # of two runs, it is in the working directory
    if out or len(seen) > 1:
        path = Path(out or f"report-{'-and-'.join(each.name.replace('/', '-') for each in seen)}.html")
    # A run directory may contain any link.
    code = write_file(text, path, follows=bool(out), unwritable=REFUSED)
    if not code:
        write(f"{shown(str(path))}\n", sys.stdout)
    return code


def recipe_of(run: RunDir) -> str:
    """Returns the composed recipe without its secrets. Where it cannot be read as a recipe any more, its text
    is redacted line by line."""
    from meshctl.cli.config import printed
    from meshctl.cli.load import Unreadable, load_recipe

    with suppress(Unreadable):
        loaded, _ = load_recipe(str(run.path), [])
        if loaded.tree is not None and loaded.readable:
            return printed(loaded, with_origins=False, format="text")
    try:
        return "\n".join(map(redact, text_of(run.recipe).splitlines()))
    except (OSError, ValueError) as error:
        return f"recipe.yaml cannot be read: {why(error)}"
