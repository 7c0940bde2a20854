"""`meshctl export` writes the model of a checkpoint as a folder that transformers loads."""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meshctl.cli.output import NO_RUN, REFUSED, USAGE, refuse, why, write
from meshctl.package import install_command, missing_libraries
from meshctl.run.checkpoints import FILE as MANIFEST
from meshctl.run.checkpoints import steps_of
from meshctl.run.directory import RunDir
from meshctl.run.finding import NoRun, find
from meshctl.run.reading import DAMAGED, text_of
from meshctl.view.reports.text import shown

EXPORTED = ("config.json", "adapter_config.json")
"""The files of which an exported model has one. Only such a folder is replaced."""


def export(word: str, folder: str, step: int, best: bool, to: str, adapter: bool, force: bool) -> int:
    """Writes a folder for each model of a run, prints their paths, and returns the exit code."""
    if step and best:
        return refuse("--step and --best exclude each other")
    if missing := missing_libraries("hf"):
        return refuse(f"an export needs {', '.join(missing)}: {install_command('hf')}", REFUSED)
    run = find(word, Path(folder))
    try:
        found = _step(run, step, best)
        models = _models(run, found)
        if not models:
            return refuse(f"the checkpoint of step {found} has no trained `hf.Model`", NO_RUN)
        sys.path.extend(run.read_start().path)  # the folders of models, never before installed packages
    except (OSError, *DAMAGED) as error:
        return refuse(f"the files of {run.path} are damaged: {why(error)}", NO_RUN)
    targets = {name: _target(run, name if len(models) > 1 else "", found, to) for name in models}
    for taken in [one for one in targets.values() if one.exists()]:
        if not force:
            return refuse(f"{taken} exists: name another folder with --to, or replace it with --force")
        if not any((taken / file).is_file() for file in EXPORTED):
            return refuse(f"{taken} is not an exported model, so it is not replaced: name another folder")
    for name, target in targets.items():
        if code := _write(run.checkpoint(found), name, models[name], target, adapter):
            return code
    return 0


def _target(run: RunDir, name: str, step: int, to: str) -> Path:
    """Returns the folder of an export. `name` is that of its component in a run with several models."""
    return Path(to, name) if to else run.path / "exports" / name / f"step-{step}"


def _write(checkpoint: Path, name: str, args: Mapping[str, Any], target: Path, adapter: bool) -> int:
    """Writes a model beside `target`, and gives it this name once it is complete."""
    from meshctl.hf.options import ModelError
    from meshctl.hf.saved import export_saved
    from meshctl.runtime.errors import CheckpointError
    from meshctl.runtime.instantiate import TargetError, resolved

    part = target.with_name(f".{target.name}.part")
    try:
        shutil.rmtree(part, ignore_errors=True)
        run_dir = str(checkpoint.parent.parent)
        known = {
            key: resolved(value, f"components.{name}.args.{key}", run_dir) for key, value in args.items()
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that no processes take part
            export_saved(checkpoint, name, known, part, adapter)
        shutil.rmtree(target, ignore_errors=True)
        part.rename(target)
    except (ModelError, CheckpointError, TargetError, OSError) as error:
        gone = not (checkpoint / MANIFEST).is_file()
        lost = f"{checkpoint} was deleted while it was read: keep it with `run.checkpoint.keep`"
        reason = why(error) if isinstance(error, OSError) else str(error)
        return refuse(lost if gone else f"`{name}`: {reason}", REFUSED if gone else USAGE)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    write(f"{shown(str(target))}\n", sys.stdout)
    return 0


def _step(run: RunDir, step: int, best: bool) -> int:
    """Returns the step of the checkpoint to export. Raises `NoRun` if there is no such whole checkpoint."""
    whole = sorted(one for one in steps_of(run) if (run.checkpoint(one) / MANIFEST).is_file())
    if best:
        ranked = [one for one in run.read_best()[1] if one.step in whole]
        if not ranked:
            raise NoRun("the run has no best checkpoint: write `run.checkpoint.best: {on: STAGE.NAME}`")
        return ranked[0].step
    if not whole:
        raise NoRun(f"{shown(str(run.path))} has no checkpoint: name another run, or write `run.checkpoint`")
    if step and step not in whole:
        raise NoRun(f"the run has no whole checkpoint of step {step}: there are {', '.join(map(str, whole))}")
    return step or whole[-1]


def _models(run: RunDir, step: int) -> dict[str, Mapping[str, Any]]:
    """Returns component -> its arguments, for the components of a checkpoint with the state of an
    `hf.Model`."""
    from meshctl.hf.saved import trained_weights

    plan = json.loads(text_of(run.plan))
    saved = {path.name for path in run.checkpoint(step).iterdir() if path.is_dir()}
    found = {one["name"]: one["args"] for one in plan["components"] if one["name"] in saved}
    return {
        name: args
        for name, args in found.items()
        if "model" in args and trained_weights(run.checkpoint(step), name)
    }
