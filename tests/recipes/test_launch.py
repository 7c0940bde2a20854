"""The recipes as they are shipped: each makes a plan in every layout it offers, and runs, from any working
directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from meshctl.cli.load import plan_of
from tests.command_server import call
from tests.recipes.conftest import RECIPES

LAYOUTS = {"dp": (2, 1), "fsdp": (1, 2), "hsdp": (2, 2)}
"""The words of `layout@...`, and their (dp, fsdp)."""


def launch(cwd: Path, recipe: str, *overrides: str) -> Path:
    """Runs it to its end and gives its run directory."""
    output = call(cwd, "launch", str(RECIPES / recipe), *overrides)
    assert output.returncode == 0, output.stdout + output.stderr
    (run,) = (cwd / "runs").glob("*/*")
    return run


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def last_phases(run: Path) -> dict[str, str]:
    """Returns group -> the last phase before the first step."""
    found = {}
    for file in run.glob("events/*.jsonl"):
        for event in map(json.loads, file.read_text().splitlines()):
            if event["name"] == "phase":
                found[event["group"]] = event["value"]["phase"]
    return found


@pytest.mark.parametrize("recipe", sorted(path.name for path in RECIPES.glob("*.yaml")))
def test_a_recipe_makes_the_same_plan_twice(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        plan_of(str(RECIPES / recipe), []).plan.to_json() == plan_of(str(RECIPES / recipe), []).plan.to_json()
    )


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_a_layout_is_a_word(layout: str) -> None:
    dp, fsdp = LAYOUTS[layout]
    overrides = [f"groups.train.ranks={dp * fsdp}", f"layout@components.trainer.parallel={layout}"]
    mesh = plan_of(str(RECIPES / "sft_arithmetic.yaml"), overrides).plan.component("trainer").mesh
    assert (mesh.size("dp"), mesh.size("fsdp")) == (dp, fsdp)


@pytest.mark.slow
def test_two_groups_and_a_judge_begin_to_learn(tmp_path: Path) -> None:
    run = launch(tmp_path, "grpo_arithmetic.yaml", "run.steps=3")
    lines = metrics(run)
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert all({"exam.reward", "scored.reward", "metrics.entropy"} <= line.keys() for line in lines)
    assert lines[0]["exam.reward"] < 0.2
    assert lines[-1]["metrics.entropy"] != lines[0]["metrics.entropy"]
    assert last_phases(run) == {
        "judge": "agreement on the last step",
        "rollout": "first sync",
        "train": "first sync",
    }


@pytest.mark.slow
def test_supervised_training_learns_and_repeats_itself(tmp_path: Path) -> None:
    first, again = (tmp_path / name for name in ("first", "again"))
    found = []
    for folder in (first, again):
        folder.mkdir()
        lines = metrics(launch(folder, "sft_arithmetic.yaml", "run.steps=25"))
        found.append([line["metrics.loss"] for line in lines])
        assert [line["step"] for line in lines if "eval.exam.reward" in line] == [20]
    assert found[0] == found[1]
    assert found[0][0] > 2.3 and found[0][-1] < 2.1


@pytest.mark.slow
def test_a_script_runs_under_meshctl_as_under_torchrun(tmp_path: Path) -> None:
    log = (
        launch(tmp_path, "program_ddp.yaml", "groups.train.args=[--epochs, 10]") / "logs" / "train" / "0.log"
    ).read_text()
    script = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        str(RECIPES / "ddp_digits.py"),
        "--epochs",
        "10",
    ]
    bare = subprocess.run(
        script,
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
    )
    ours, theirs = (
        [line for line in text.splitlines() if line.startswith("epoch")] for text in (log, bare.stdout)
    )
    assert len(ours) == 1 and ours == theirs
    assert float(ours[-1].rsplit(maxsplit=1)[-1]) > 0.9
