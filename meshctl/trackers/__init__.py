"""Trackers: observers of a run that write its metrics to a destination, one file per library.

A tracker is a class with the methods of `meshctl.run.events.Observer` and a constructor that takes the run
directory and keyword options. A new one is a file with the class, one line in `TRACKERS`, and its options in
`recipe/tracker_fields.py`. `jsonl` runs in the launcher, the others in processes of their own (`feed.py`).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, cast

from meshctl.run.directory import RunDir
from meshctl.run.events import Observer

TRACKERS = {
    "jsonl": "meshctl.trackers.jsonl:JsonLines",
    "tensorboard": "meshctl.trackers.tensorboard:TensorBoard",
    "wandb": "meshctl.trackers.wandb:WeightsAndBiases",
    "mlflow": "meshctl.trackers.mlflow:MLflow",
    "trackio": "meshctl.trackers.trackio:Trackio",
}
"""Name -> "module:attribute". The module is imported on use."""


def tracker_named(name: str, run: RunDir, /, **options: Any) -> Observer:
    """Returns a tracker by its name, or a user's own by `module:NAME`."""
    module, _, attribute = TRACKERS.get(name, name).partition(":")
    return cast(Observer, getattr(import_module(module), attribute)(run, **options))
