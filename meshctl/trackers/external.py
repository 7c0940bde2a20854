"""The base class of trackers that write through an external package: it keeps the id of the run there, and
passes each value and each file once.

    class Library(ExternalTracker):
        name = "library"
        def begin(self, step): ...            opens the run `self.id` of the library, or a new one
        def log(self, step, values): ...      the metrics of a step
        def media(self, one): ...
        def checkpoint(self, step, path): ...
        def note(self, step, kind, text): ...
        def end(self, code, reason): ...

A library stores each value that it receives, so each value is passed once. The last row may arrive again with
more metrics. A lost step that has run again arrives again too, and only its changed values are passed. A run
that repeats exactly has none.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from meshctl.run.directory import RunDir, write_whole
from meshctl.run.events import Event, restart_line
from meshctl.run.launcher import git_state
from meshctl.run.media import Media, media_at
from meshctl.run.metrics import Row, rows_of
from meshctl.text.redaction import HIDDEN, is_secret_at, redact

GIT_S = 2.0
"""Seconds that a tracker waits for the state of the repository."""


class ExternalTracker:
    """An observer that passes a run to a library. A subclass overrides the first methods."""

    name = ""
    forgets_lost_steps = False
    """True if the library drops its values of lost steps, so that all values of these steps are passed
    again."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self._file = run.trackers / f"{self.name}.json"
        known = self._known()
        self.id = str(known.get("id", ""))
        """The run's id at the library; empty before it has one."""
        self._through = int(known.get("through", -1))
        """The last step whose row was passed to the library."""
        self._last: Row = {"step": -1}
        self._lost: dict[int, Row] = {}
        """The rows of lost steps that were passed to the library."""
        self._has_begun = False
        self._next = 1
        """The first step of the attempt."""
        self._sizes: dict[str, float] = {}
        """The metrics with the numbers of workers of elastic groups that were passed last."""

    # Methods of a subclass

    def begin(self, step: int | None) -> None:
        """Opens the run, and sets `id`. The run continues after `step`; None for a new run."""

    def rewind(self, step: int | None) -> None:
        """The run continues after `step`, in the same process."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Passes the metrics of a step. A value that was not finite is NaN."""

    def media(self, one: Media) -> None:
        """Passes an image, a histogram or a table."""

    def checkpoint(self, step: int, path: Path) -> None:
        """Passes the path of a published checkpoint."""

    def note(self, step: int, kind: str, text: str) -> None:
        """Passes a line about the run. `kind` is `warning` or `restart`."""

    def shown(self, library: Any, one: Media, **table: Any) -> Any:
        """Returns media as an object of `library`: wandb, or trackio, whose classes are the same. `table` are
        further arguments of a table."""
        content = one.read()
        if one.kind == "image":
            return library.Image(str(one.path), caption=one.caption or None)
        if one.kind == "histogram":
            return library.Histogram(np_histogram=(content["counts"], content["edges"]))
        return library.Table(columns=content["columns"], data=content["rows"], **table)

    def end(self, code: int, reason: str) -> None:
        """Closes the run, and returns when the library has stored everything. `reason` is the first cause of
        a failure."""

    # The observer protocol

    def on_attempt(self, number: int, step: int | None) -> None:
        last = -1 if step is None else step
        self._next = max(last, 0) + 1
        self._lost = {}
        if not self.forgets_lost_steps:
            lost = (row for row in rows_of(self.run.lost_metrics) if last < row["step"] <= self._through)
            self._lost = {row["step"]: row for row in lost}
        self._last = {"step": -1}
        if self._has_begun:
            self.rewind(step)
            return
        self._has_begun = True
        self.begin(step if self.id else None)
        self._remember()

    def on_row(self, row: Mapping[str, Any]) -> None:
        step = int(row["step"])
        known = self._last if self._last["step"] == step else self._lost.pop(step, {})
        new = {
            name_of(name): math.nan if value is None else float(value)
            for name, value in row.items()
            if name not in ("step", "time") and (name not in known or known[name] != value)
        }
        self._last = dict(row)
        if new:
            self.log(step, new)
        self._through = max(self._through, step)

    def on_event(self, event: Event) -> None:
        if event.name == "checkpoint" and event.step is not None:
            self.checkpoint(event.step, Path(str(event.value["path"])))
        elif event.name == "media":
            one = media_at(self.run.path / str(event.value["file"]))
            if one is not None and one.path.exists():  # the file of a lost step is deleted
                self.media(one)
        elif event.name == "warning":
            self.note(event.step or max(self._through, 0), "warning", redact(str(event.value["text"])))
        elif event.name == "restarted":
            self.note(event.step or 0, "restart", redact(restart_line(event)))
        elif event.name == "launched":
            elastic = [str(one["group"]) for one in self.plan["run"].get("elastic", ())]
            sizes = {f"workers/{name}": float(event.value["workers"][name]) for name in elastic}
            if sizes != self._sizes:
                self._sizes = sizes
                self.log(self._next, sizes)

    def on_end(self, code: int, reason: str) -> None:
        self.end(code, redact(reason))
        self._remember()

    # Facts of the run

    @property
    def title(self) -> str:
        """NAME/TIME"""
        return f"{self.run.path.parent.name}/{self.run.path.name}"

    @property
    def recipe_name(self) -> str:
        return str(self.plan["name"])

    @cached_property
    def plan(self) -> dict[str, Any]:
        """The plan as plain data, without secrets."""
        plan: dict[str, Any] = without_secrets(json.loads(self.run.plan.read_text(encoding="utf-8")))
        return plan

    @property
    def config(self) -> dict[str, Any]:
        """Returns the settings of the run by group and component, the state of its repository, and the digest
        of the plan."""
        plan = self.plan
        config: dict[str, Any] = {key: plan[key] for key in ("name", "seed", "digest", "run") if key in plan}
        for key in ("groups", "components"):
            config[key] = {one["name"]: {k: v for k, v in one.items() if k != "name"} for one in plan[key]}
        state = self.code_state
        return {**config, "run_dir": str(self.run.path), **({"git": state} if state else {})}

    @property
    def code_state(self) -> dict[str, Any]:
        """The commit and the branch of the recipe's repository at the launch, and whether it had uncommitted
        changes; empty outside of a repository. Waits up to a few seconds for git."""
        end = time.monotonic() + GIT_S
        while not self.run.git.exists() and time.monotonic() < end:
            time.sleep(0.05)
        return git_state(self.run)

    def files(self) -> list[Path]:
        """Returns the files of the recipe and the plan, or redacted copies if they contain secrets."""
        return [self._shared(self.run.recipe), self._shared(self.run.plan)]

    def _shared(self, path: Path) -> Path:
        text = path.read_text(encoding="utf-8")
        clean = redact(text) if path.suffix == ".yaml" else json.dumps(self.plan, indent=2) + "\n"
        if clean == text:
            return path
        copy = self.run.trackers / path.name
        write_whole(copy, clean)
        return copy

    def _known(self) -> dict[str, Any]:
        try:
            found = json.loads(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _remember(self) -> None:
        write_whole(self._file, json.dumps({"id": self.id, "through": self._through}) + "\n")


def name_of(metric: str) -> str:
    """Returns the name of a metric in libraries: STAGE/NAME for STAGE.NAME, because they show the part before
    the slash as a section."""
    return metric.replace(".", "/", 1)


def without_secrets(value: Any, path: tuple[str, ...] = ()) -> Any:
    """Returns plain data with `<redacted>` in place of secrets."""
    if isinstance(value, Mapping):
        return {key: without_secrets(item, (*path, str(key))) for key, item in value.items()}
    if isinstance(value, list):
        return [without_secrets(item, path) for item in value]
    if path and is_secret_at(path) and value not in (None, "", True, False):
        return HIDDEN
    return redact(value) if isinstance(value, str) else value
