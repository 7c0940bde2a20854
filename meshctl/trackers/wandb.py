"""Weights & Biases: one run there for each run directory, which a resume continues.

The steps are a metric `step` of our own, because wandb's own steps cannot go back after a restart. Its files
are in `trackers/wandb` of the run directory.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import wandb

from meshctl.run.directory import RunDir
from meshctl.run.media import Media
from meshctl.trackers.external import ExternalTracker, name_of

INIT_S = 50
"""Seconds in which the server must answer. wandb's own limit is longer than the `patience` of a tracker."""


class WeightsAndBiases(ExternalTracker):
    name = "wandb"

    def __init__(
        self,
        run: RunDir,
        project: str = "",
        entity: str = "",
        name: str = "",
        group: str = "",
        tags: Sequence[str] = (),
        mode: Literal["online", "offline", "disabled"] | None = None,
        checkpoints: bool = False,
    ) -> None:
        super().__init__(run)
        self._checkpoints = checkpoints
        self._options: dict[str, Any] = {
            "project": project or self.recipe_name,
            "entity": entity or None,
            "name": name or self.title,
            "group": group or None,
            "tags": list(tags) or None,
            "mode": mode or None,
        }
        self._run: Any = None

    def begin(self, step: int | None) -> None:
        is_new, self.id = not self.id, self.id or secrets.token_hex(4)
        self.run.trackers.mkdir(exist_ok=True)
        settings = wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,  # of this process's folder
            save_code=False,
            x_disable_stats=True,
            init_timeout=INIT_S,
        )
        self._run = wandb.init(
            **self._options,
            id=self.id,
            resume="allow",
            dir=str(self.run.trackers),
            config=self.config,
            settings=settings,
            reinit="finish_previous",
        )
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")
        if is_new:
            artifact = wandb.Artifact(f"recipe-{self.id}", type="recipe")
            for path in self.files():
                artifact.add_file(str(path), name=path.name)
            self._run.log_artifact(artifact)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({**values, "step": step})

    def media(self, one: Media) -> None:
        shown = self.shown(wandb, one, allow_mixed_types=True)
        self._run.log({name_of(one.name): shown, "step": one.step})

    def checkpoint(self, step: int, path: Path) -> None:
        self._run.summary["checkpoint"] = str(path)
        artifact = wandb.Artifact(f"checkpoint-{self.id}", type="model", metadata={"step": step})
        if self._checkpoints:
            artifact.add_dir(str(path), skip_cache=True)
        else:
            artifact.add_reference(path.as_uri(), checksum=False)
        self._run.log_artifact(artifact, aliases=[f"step-{step}", "latest"])

    def note(self, step: int, kind: str, text: str) -> None:
        self._run.alert(title=kind, text=text, level="WARN", wait_duration=0)

    def end(self, code: int, reason: str) -> None:
        self._run.summary["exit_code"] = code
        self._run.summary["reason"] = reason
        self._run.finish(exit_code=code)
