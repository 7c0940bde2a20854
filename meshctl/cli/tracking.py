"""The trackers of a launch: what they need, and their processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from meshctl.engines.engine import CannotStart
from meshctl.package import install_command, installed_version
from meshctl.plan.model import Plan
from meshctl.recipe.tracker_fields import EXTRA, LIBRARIES
from meshctl.run.directory import RunDir
from meshctl.run.events import Journal
from meshctl.trackers.feed import Feeds

HIDDEN = {
    "wandb": ("WANDB_API_KEY",),
    "mlflow": ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_URI"),
}
"""Tracker -> the variables with its secrets, which workers do not inherit unless the recipe names them."""


def check_trackers(plan: Plan) -> None:
    """Raises `CannotStart` if the library of a tracker is not installed. Imports none."""
    for track in plan.run.track:
        if (library := LIBRARIES.get(track.name)) and not installed_version(library):
            needs = f"tracker `{track.name}` needs {library}, which is not installed"
            raise CannotStart(f"{needs}: {install_command(EXTRA)}")


@contextmanager
def without_secrets(plan: Plan) -> Iterator[Mapping[str, str]]:
    """Removes the secrets of trackers from the environment, and yields the environment of trackers."""
    environ, text = dict(os.environ), plan.to_json()
    names = [name for track in plan.run.track for name in HIDDEN.get(track.name, ()) if name not in text]
    hidden = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield environ
    finally:
        os.environ.update(hidden)


def feeds_of(
    plan: Plan, run: RunDir, path: tuple[str, ...], environ: Mapping[str, str], is_hurried: Callable[[], bool]
) -> Feeds:
    """Returns the trackers of a run, not started. Their warnings are events; those at the end are also
    printed, because the display has ended."""

    def warn(text: str) -> None:
        with suppress(OSError):
            journal = Journal(run.journal("trackers"))
            journal.write("warning", text=text)
            journal.close()
        if feeds.is_ending:
            with suppress(OSError):
                print(f"warning: {text}", file=sys.stderr, flush=True)

    feeds = Feeds(run, plan.run.track, path, warn, is_hurried, environ)
    return feeds
