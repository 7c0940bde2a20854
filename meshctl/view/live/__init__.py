"""The display of a running job: a picture on a terminal, plain lines on other streams.

view = for_terminal(plan, run, sys.stderr)
view.on_event(event)
view.on_row(row)            # of metrics, for every complete step
view.on_end(0, "")
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:  # this package contains every report, and reports need none of these
    from meshctl.plan.model import Plan
    from meshctl.run.directory import RunDir
    from meshctl.run.events import Observer


def for_terminal(
    plan: Plan,
    run: RunDir,
    stream: TextIO,
    environ: Mapping[str, str] = os.environ,
    follow: Collection[str] = (),
    is_shared: bool = False,
) -> Observer:
    """Returns the dashboard if the stream is a terminal that can move its cursor, otherwise plain output.

    Both respect NO_COLOR. `follow` contains GROUP and GROUP:RANK whose output is shown completely.
    `is_shared` means that a worker writes to the same terminal; then the output is plain.
    """
    from meshctl.view.live.output import Output

    output = Output(plan, run, follow, from_end=_is_continued(run))
    if not is_shared and has_cursor(stream, environ):
        from meshctl.view.live.dashboard import Dashboard

        return Dashboard(plan, stream, output)
    from meshctl.view.live.plain import PlainOutput

    return PlainOutput(plan, run, stream, output)


def has_cursor(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Returns whether a stream is a terminal that can move its cursor."""
    return stream.isatty() and environ.get("TERM", "") not in ("", "dumb")


def _is_continued(run: RunDir) -> bool:
    try:
        return run.read_start().attempt > 0
    except (OSError, ValueError):
        return False
