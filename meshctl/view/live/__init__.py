"""How a run looks while it goes on: a picture on a terminal, plain lines elsewhere.

view = for_terminal(plan, run, sys.stderr)
view.on_event(event)
view.on_row(row)            # of metrics, for every complete step
view.on_end(0, "")
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:  # every report is below this package, and needs none of them
    from meshctl.plan.model import Plan
    from meshctl.run.directory import RunDir
    from meshctl.run.observer import Observer


def for_terminal(
    plan: Plan, run: RunDir, stream: TextIO, environ: Mapping[str, str] = os.environ
) -> Observer:
    """The dashboard where the stream is a terminal that can move its cursor, lines where not. NO_COLOR is
    heard by both."""
    if stream.isatty() and environ.get("TERM", "") not in ("", "dumb"):
        from meshctl.view.live.dashboard import Dashboard

        return Dashboard(plan, stream)
    from meshctl.view.live.plain import Lines

    return Lines(plan, run, stream)
