"""MLflow: one run for each run directory, on a server or in an SQLite database, which a resume continues."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from meshctl.run.directory import RunDir
from meshctl.run.media import Media
from meshctl.trackers.external import ExternalTracker, name_of

MAX_VALUE = 500
"""Maximum number of characters of a parameter."""
MAX_BATCH = 100
"""Maximum number of parameters in a request."""


class MLflow(ExternalTracker):
    name = "mlflow"

    def __init__(
        self, run: RunDir, uri: str = "", experiment: str = "", name: str = "", checkpoints: bool = False
    ) -> None:
        super().__init__(run)
        self._checkpoints = checkpoints
        runs = run.path.parent.parent
        own = f"sqlite:///{runs / 'mlflow.db'}"
        uri = uri or os.environ.get("MLFLOW_TRACKING_URI", "") or own
        self._experiment, self._name = experiment or self.recipe_name, name or self.title
        self._artifacts = (runs / "mlartifacts").as_uri() if uri.startswith("sqlite:") else None
        self._client = MlflowClient(uri)

    def begin(self, step: int | None) -> None:
        if self.id:
            self._client.update_run(self.id, status="RUNNING")
            return
        found = self._client.get_experiment_by_name(self._experiment)
        made = self._client.create_experiment
        experiment = str(
            found.experiment_id if found else made(self._experiment, artifact_location=self._artifacts)
        )
        state = self.code_state
        names = {"commit": "mlflow.source.git.commit", "branch": "mlflow.source.git.branch"}
        tags = {"run_dir": str(self.run.path), "mlflow.source.name": "meshctl"}
        tags |= {name: str(state[key]) for key, name in names.items() if state.get(key)}
        if "dirty" in state:
            tags["git.dirty"] = str(state["dirty"]).lower()
        self.id = self._client.create_run(experiment, run_name=self._name, tags=tags).info.run_id
        params = [Param(key, value[:MAX_VALUE]) for key, value in flat(self.config)]
        for first in range(0, len(params), MAX_BATCH):
            self._client.log_batch(self.id, params=params[first : first + MAX_BATCH])
        for path in self.files():
            self._client.log_artifact(self.id, str(path))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [Metric(_allowed(name), value, now, step) for name, value in values.items()]
        self._client.log_batch(self.id, metrics=metrics)

    def media(self, one: Media) -> None:
        self._client.log_artifact(
            self.id, str(one.path), f"media/{_allowed(name_of(one.name))}/step-{one.step}"
        )

    def checkpoint(self, step: int, path: Path) -> None:
        self._client.set_tag(self.id, "checkpoint", str(path))
        if self._checkpoints:
            self._client.log_artifacts(self.id, str(path), f"checkpoints/{path.name}")

    def note(self, step: int, kind: str, text: str) -> None:
        self._client.set_tag(self.id, f"{kind}.{step}", text[:MAX_VALUE])

    def end(self, code: int, reason: str) -> None:
        tags = [RunTag("exit_code", str(code)), RunTag("reason", reason)]
        self._client.log_batch(self.id, tags=tags)
        status = "FINISHED" if code == 0 else "KILLED" if code > 128 else "FAILED"
        self._client.set_terminated(self.id, status)


def flat(value: Any, path: str = "") -> list[tuple[str, str]]:
    """Returns the values of nested data as texts, by the keys joined by dots."""
    if isinstance(value, Mapping):
        return [
            pair for key, item in value.items() for pair in flat(item, f"{path}.{key}" if path else str(key))
        ]
    text = value if isinstance(value, str) else json.dumps(value)
    return [(_allowed(path)[:250], text)]


def _allowed(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "_-. /" else "_" for letter in name)
