"""Trackio: one run of a local project, or of a space on the hub, for each run directory, which a resume
continues."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trackio

from meshctl.run.directory import RunDir
from meshctl.run.media import Media
from meshctl.trackers.external import ExternalTracker, name_of


class Trackio(ExternalTracker):
    name = "trackio"

    def __init__(
        self, run: RunDir, project: str = "", name: str = "", space: str = "", checkpoints: bool = False
    ) -> None:
        super().__init__(run)
        self._checkpoints = checkpoints
        self._project, self._name, self._space = project or self.recipe_name, name or self.title, space
        self._run: Any = None

    def begin(self, step: int | None) -> None:
        is_new, self.id = not self.id, self.id or self._name
        self._run = trackio.init(
            project=self._project,
            name=self.id,
            space_id=self._space or None,
            config=self.config,
            resume="never" if is_new else "allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        if is_new:
            for path in self.files():
                trackio.log_artifact(path, name=path.stem, type="recipe")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        trackio.log(dict(values), step=step)

    def media(self, one: Media) -> None:
        shown = self.shown(trackio, one)
        trackio.log({name_of(one.name): shown}, step=one.step)

    def checkpoint(self, step: int, path: Path) -> None:
        trackio.alert(title=f"checkpoint of step {step}", text=str(path), level=trackio.AlertLevel.INFO)
        if self._checkpoints:
            trackio.log_artifact(path, name="checkpoint", type="model", aliases=[f"step-{step}"])

    def note(self, step: int, kind: str, text: str) -> None:
        trackio.alert(title=kind, text=text, level=trackio.AlertLevel.WARN)

    def end(self, code: int, reason: str) -> None:
        level = trackio.AlertLevel.INFO if code == 0 else trackio.AlertLevel.ERROR
        trackio.alert(title=f"exit code {code}", text=reason or json.dumps(code), level=level)
        trackio.finish()
