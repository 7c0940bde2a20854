"""`meshctl export` writes the model of a checkpoint, whole or its adapter, without the run's processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("peft")

from safetensors.torch import load_file

from meshctl.hf import Model
from meshctl.run.best import ScoredCheckpoint
from meshctl.run.checkpoints import Manifest
from meshctl.run.directory import RunDir, Start
from meshctl.runtime import checkpoint
from meshctl.topology.mesh import DeviceMesh
from tests import command_server
from tests.hf.parity import LORA, MODELS, batch_of

ARGUMENTS: dict[str, dict[str, Any]] = {
    "whole": {"model": MODELS["qwen3_moe"], "tokenizer": "byte"},
    "tied": {"model": MODELS["llama_tied"]},
    "parts": {"model": MODELS["llama"], "train": ["model.layers.1"]},
    "adapter": {"model": MODELS["llama"], "lora": LORA},
}


def call(folder: Path, *words: str) -> Any:
    return command_server.call(folder, *words, preload="meshctl.hf.saved")


def run_with(folder: Path, *names: str, steps: tuple[int, ...] = (2,)) -> tuple[RunDir, dict[str, Model]]:
    """Makes a run directory with the checkpoints of trained models. Returns the models of the last one."""
    run = RunDir.create(folder / "runs", "sft", "20260101-000000")
    run.recipe.write_text("")
    run.plan.write_text(json.dumps({"components": [{"name": one, "args": ARGUMENTS[one]} for one in names]}))
    run.write_start(Start(()))
    made = {name: Model(**ARGUMENTS[name], lr=0.1) for name in names}
    for step in steps:
        for name, model in made.items():
            model.update(batch_of(step, False))
            checkpoint.save(run.checkpoint(step), name, model.state_dict(), DeviceMesh.from_sizes().at(0))
        Manifest(step, {}).write(run.checkpoint(step))
    return run, made


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return {
        name: one for path in sorted(folder.glob("*.safetensors")) for name, one in load_file(path).items()
    }


def check_equal(first: Path, second: Path) -> None:
    ours, theirs = tensors(first), tensors(second)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(one, theirs[name]) for name, one in ours.items())
    assert {path.name for path in first.iterdir()} == {path.name for path in second.iterdir()}
    assert (first / "config.json").read_text() == (second / "config.json").read_text()


def test_the_models_of_a_checkpoint_are_those_that_the_run_exports(tmp_path: Path) -> None:
    _, models = run_with(tmp_path, *ARGUMENTS)
    done = call(tmp_path, "export", "--to", "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [f"out/{name}" for name in ARGUMENTS]
    for name, model in models.items():
        model.export(tmp_path / "own" / name)
        check_equal(tmp_path / "own" / name, tmp_path / "out" / name)


def test_an_adapter_alone(tmp_path: Path) -> None:
    _, models = run_with(tmp_path, "adapter")
    done = call(tmp_path, "export", "--adapter", "--to", "out")
    assert (done.returncode, done.stdout) == (0, "out\n"), done.stderr
    models["adapter"].exports_adapter = True
    models["adapter"].export(tmp_path / "own")
    assert tensors(tmp_path / "out").keys() == tensors(tmp_path / "own").keys()


def test_the_step_of_the_checkpoint(tmp_path: Path) -> None:
    run, _ = run_with(tmp_path, "tied", steps=(2, 4, 6))
    (run.checkpoint(6) / "checkpoint.manifest.json").unlink()
    for words, step in ((), 4), (("--step", "2"), 2):
        done = call(tmp_path, "export", *words)
        assert (done.returncode, done.stdout) == (0, f"{run.path}/exports/step-{step}\n"), done.stderr
    done = call(tmp_path, "export")
    assert done.returncode == 2
    assert (
        done.stderr
        == f"error: {run.path}/exports/step-4 exists: name another folder with --to, or replace it with --force\n"
    )
    assert call(tmp_path, "export", "--force").returncode == 0
    done = call(tmp_path, "export", "--force", "--to", "runs")
    assert (done.returncode, run.plan.exists()) == (2, True)
    assert done.stderr == "error: runs is not an exported model, so it is not replaced: name another folder\n"
    run.write_best("metrics.loss", "min", [ScoredCheckpoint(2, 0.5, 2)])
    done = call(tmp_path, "export", "--best", "--to", "best")
    assert (done.returncode, done.stdout) == (0, "best\n"), done.stderr


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (("--step", "3"), 3, "the run has no whole checkpoint of step 3: there are 2"),
        (("--best",), 3, "the run has no best checkpoint: write `run.checkpoint.best: {on: STAGE.NAME}`"),
        (("--best", "--step", "2"), 2, "--step and --best exclude each other"),
        (("--adapter",), 2, "`tied`: `export: {adapter: true}` needs `lora` and `head: lm`"),
        (("none",), 3, "the run `none` does not exist below runs"),
        (("--to", "file/x"), 2, "`tied`: the export to `file/.x.part` failed"),
    ],
)
def test_what_cannot_be_exported(tmp_path: Path, words: tuple[str, ...], code: int, error: str) -> None:
    run_with(tmp_path, "tied")
    (tmp_path / "file").write_text("")
    done = call(tmp_path, "export", *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(f"error: {error}") and done.stderr.count("\n") == 1


def test_a_run_without_a_model(tmp_path: Path) -> None:
    run, _ = run_with(tmp_path, "tied")
    checkpoint.save(run.checkpoint(2), "other", {"model": torch.ones(3)}, DeviceMesh.from_sizes().at(0))
    run.plan.write_text(json.dumps({"components": [{"name": "other", "args": {"model": "x"}}]}))
    done = call(tmp_path, "export")
    assert (done.returncode, done.stderr) == (
        3,
        "error: the checkpoint of step 2 has no trained `hf.Model`\n",
    )


def test_a_damaged_checkpoint_leaves_nothing_behind(tmp_path: Path) -> None:
    run, _ = run_with(tmp_path, "tied")
    for path in (run.checkpoint(2) / "tied").glob("*.distcp"):
        path.write_bytes(b"")
    done = call(tmp_path, "export", "--to", "out")
    assert done.returncode == 2 and done.stderr.startswith("error: `tied`: ") and done.stderr.count("\n") == 1
    assert not list(tmp_path.glob("*out*"))
