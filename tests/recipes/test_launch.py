"""The recipes as they are shipped: each makes a plan in every layout it offers, and runs, from any working
directory."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from meshctl.cli.load import plan_of
from meshctl.recipe.load import load
from tests.command_server import call
from tests.log_text import output_of
from tests.recipes.conftest import RECIPES

LAYOUTS = {"dp": (2, 1), "fsdp": (1, 2), "hsdp": (2, 2)}
"""The words of `layout@...`, and their (dp, fsdp)."""
MODELS = {"sft": 0.2, "sft_lora": 0.2, "dpo": 0.01, "reward_model": 0.01}
"""Recipe of a model of transformers -> the least decrease of its held-out loss from step 6 to step 12."""
OF_FURTHER_DIMS = {"long_context": 0.2, "moe_ep": 0.2}
"""The same for recipes with cp and ulysses, and with ep."""


def launch(cwd: Path, recipe: str, *overrides: str, preload: str = "") -> Path:
    """Runs it to its end and gives its run directory."""
    output = call(cwd, "launch", str(RECIPES / recipe), *overrides, preload=preload)
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


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("scale", "ranks", "device"), [("laptop", 2, "cpu"), ("node8", 8, "cuda")])
def test_a_scale_is_a_word(name: str, scale: str, ranks: int, device: str) -> None:
    plan = plan_of(str(RECIPES / f"{name}.yaml"), [f"scale={scale}"]).plan
    assert plan.component("trainer").mesh.size("fsdp") == ranks
    assert plan.group("train").device_type == device


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("scale", ["laptop", "node8"])
def test_a_layout_is_compared_with_the_sizes_of_the_model(name: str, scale: str) -> None:
    overrides = [f"scale={scale}", "groups.train.ranks=6", "components.trainer.parallel={tp_size: 3}"]
    report = load(str(RECIPES / f"{name}.yaml"), overrides, RECIPES).report
    assert [one.code for one in report.diagnostics if one.severity == "error"] == ["MC431"]


@pytest.mark.parametrize(
    ("name", "scale", "sizes"),
    [
        ("long_context", "laptop", {"fsdp": 2, "cp": 2, "ulysses": 2}),
        ("long_context", "node8", {"fsdp": 4, "cp": 2, "ulysses": 4}),
        ("moe_ep", "laptop", {"fsdp": 2, "ep": 2}),
        ("moe_ep", "node8", {"fsdp": 8, "ep": 8}),
        ("twinkle_flow", "laptop", {"pp": 2, "dp": 2, "tp": 2}),
        ("twinkle_flow", "node8", {"pp": 2, "fsdp": 8, "tp": 2}),
    ],
)
def test_further_dims_of_hf_models(name: str, scale: str, sizes: dict[str, int]) -> None:
    loaded = load(str(RECIPES / f"{name}.yaml"), [f"scale={scale}"], RECIPES)
    assert [one.code for one in loaded.report.diagnostics if one.code != "MC445"] == []
    mesh = plan_of(str(RECIPES / f"{name}.yaml"), [f"scale={scale}"]).plan.component("trainer").mesh
    assert {dim: mesh.size(dim) for dim in sizes} == sizes


def test_the_data_are_those_that_the_script_writes(tmp_path: Path) -> None:
    folder = RECIPES / "rot13"
    runpy.run_path(str(folder / "data.py"))["write"](tmp_path)
    for name in ("chats.jsonl", "pairs.jsonl"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "dpo",
        *(pytest.param(name, marks=pytest.mark.slow_suite) for name in ("sft", "sft_lora", "reward_model")),
        *(pytest.param(name, marks=pytest.mark.slow_suite) for name in OF_FURTHER_DIMS),
    ],
)
def test_a_model_of_transformers_learns(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    run = launch(tmp_path, f"{name}.yaml", "run.steps=12", "pipeline.eval.every=6", preload="meshctl.hf")
    first, last = (line["eval.exam.loss"] for line in metrics(run) if "eval.exam.loss" in line)
    assert last < first - (MODELS | OF_FURTHER_DIMS)[name]
    assert (run / "exports" / "step-12" / "model.safetensors").is_file()


@pytest.mark.slow_suite
def test_an_actor_with_three_dims_learns_from_four_samplers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    run = launch(tmp_path, "twinkle_flow.yaml", "run.steps=40", preload="meshctl.hf")
    lines = metrics(run)
    assert len(lines) == 40
    assert lines[0]["scored.reward"] < 0.1 and max(line["scored.reward"] for line in lines[30:]) > 0.3
    assert all(line["metrics.parity_max"] < 1e-3 for line in lines)  # the samplers have the actor's weights
    assert len({*run.glob("events/*.jsonl")}) >= 12
    assert (run / "exports" / "step-40" / "model.safetensors").is_file()


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


@pytest.mark.slow_suite
def test_a_script_runs_under_meshctl_as_under_torchrun(tmp_path: Path) -> None:
    run = launch(tmp_path, "program_ddp.yaml", "groups.train.args=[--epochs, 10]")
    log = output_of(run / "logs" / "train" / "0.log")
    script = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
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
    )
    ours, theirs = (
        [line for line in text.splitlines() if line.startswith("epoch")] for text in (log, bare.stdout)
    )
    assert len(ours) == 1 and ours == theirs
    assert float(ours[-1].rsplit(maxsplit=1)[-1]) > 0.9
