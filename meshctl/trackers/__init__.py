"""Trackers: observers of a run that write its metrics somewhere else, one file per library.

A tracker is a class with the methods of `meshctl.run.observer.Observer` and a constructor that takes the run
directory and keyword options. A new one is a file with the class, and one line in `TRACKERS`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, cast

from meshctl.run.directory import RunDir
from meshctl.run.observer import Observer

TRACKERS = {"jsonl": "meshctl.trackers.jsonl:JsonLines"}
"""Name -> "module:attribute". The module is imported on use."""


def tracker_named(name: str, run: RunDir, **options: Any) -> Observer:
    module, _, attribute = TRACKERS[name].partition(":")
    return cast(Observer, getattr(import_module(module), attribute)(run, **options))
