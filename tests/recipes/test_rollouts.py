"""The recipes of rollouts, as they are shipped: each makes a plan at both scales, and its rewards rise."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from statistics import fmean

import pytest

from meshctl.cli.load import plan_of
from meshctl.recipe.load import load
from tests.command_server import call
from tests.recipes.conftest import RECIPES

GROUPS = {
    "grpo": {"rollout", "judge", "train"},
    "grpo_vllm": {"rollout", "judge", "train"},
    "ppo": {"rollout", "judge", "train"},
    "distill_on_policy": {"rollout", "judge", "train", "teacher"},
}
"""Recipe -> its groups."""


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize(("scale", "ranks", "device"), [("laptop", 2, "cpu"), ("node8", 4, "cuda")])
def test_a_scale_is_a_word(name: str, scale: str, ranks: int, device: str) -> None:
    report = load(str(RECIPES / f"{name}.yaml"), [f"scale={scale}"], RECIPES).report
    assert {one.severity for one in report.diagnostics} <= {"note"}
    plan = plan_of(str(RECIPES / f"{name}.yaml"), [f"scale={scale}"]).plan
    assert {group.name for group in plan.groups} == GROUPS[name]
    assert plan.component("trainer").mesh.size("fsdp") == ranks
    assert plan.group("train").device_type == device


@pytest.mark.parametrize("name", GROUPS)
def test_a_sampler_is_a_word(name: str) -> None:
    for sampler in ("hf", "vllm"):
        plan = plan_of(str(RECIPES / f"{name}.yaml"), [f"sampler={sampler}"]).plan
        assert plan.component("sampler").target == f"meshctl.{sampler}.Sampler"


def test_the_prompts_are_those_that_the_script_writes(tmp_path: Path) -> None:
    folder = RECIPES / "alphabet"
    runpy.run_path(str(folder / "data.py"))["write"](tmp_path)
    assert (tmp_path / "prompts.jsonl").read_bytes() == (folder / "prompts.jsonl").read_bytes()


def test_the_rewards() -> None:
    next_letter = runpy.run_path(str(RECIPES / "alphabet" / "reward.py"))["next_letter"]
    assert [next_letter("hij", answer) for answer in ("k", "kx", "l", "")] == [1.0, 1.0, 0.0, 0.0]
    assert next_letter("z", "a") == 1.0
    right_letters = runpy.run_path(str(RECIPES / "rot13" / "reward.py"))["right_letters"]
    chosen = [{"role": "assistant", "content": "uryyb"}]
    assert [right_letters(answer, chosen) for answer in ("uryyb", "uryxx", "", "uryyburyyb")] == [
        1,
        0.6,
        0,
        0.5,
    ]


def rewards(folder: Path, recipe: str, *overrides: str) -> list[float]:
    """Runs a recipe and returns the mean reward of each step."""
    done = call(folder, "launch", str(RECIPES / recipe), "run.checkpoint=null", *overrides)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (folder / "runs").glob("*/*")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert all(line["metrics.parity_mean"] < 1e-4 for line in lines if "metrics.parity_mean" in line)
    return [line["scored.reward"] for line in lines]


@pytest.mark.slow_suite
def test_the_rewards_of_grpo_rise(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    found = rewards(tmp_path, "grpo.yaml", "run.steps=12")
    assert fmean(found[-3:]) > 4 * fmean(found[:3])


@pytest.mark.slow_suite
@pytest.mark.parametrize(
    ("recipe", "least"), [("grpo.yaml", 0.6), ("ppo.yaml", 0.1), ("distill_on_policy.yaml", 0.6)]
)
def test_the_curves_of_a_laptop(tmp_path: Path, recipe: str, least: float) -> None:
    pytest.importorskip("transformers")
    found = rewards(tmp_path, recipe)
    assert found[0] < 0.05 and fmean(found[-5:]) > least
