"""`meshctl init`: every kind makes a recipe that is correct and learns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshctl.cli.init import Options, init
from meshctl.recipe.templates import KINDS, LAYOUTS, RECIPES, Choice, layouts
from tests.cli.init.conftest import validated
from tests.command_server import call

CHOICES = [
    *(Choice(kind, "cpu", 3) for kind in KINDS),
    *(Choice(kind, "cuda", 8) for kind in KINDS),
    *(Choice(kind, "cuda", 1) for kind in ("distill", "distill_on_policy")),
    *(Choice(kind, "cpu", 2, layout) for kind in ("train", "sft") for layout in LAYOUTS),
    Choice("ppo", "npu", 8, "dp"),
    Choice("dpo", "mps", 1),
]


@pytest.mark.parametrize(
    "choice", CHOICES, ids=lambda one: f"{one.kind}-{one.device}-{one.ranks}-{one.layout}"
)
def test_a_choice_validates_without_a_warning(choice: Choice) -> None:
    assert init("r", Options(choice.kind, choice.device, choice.ranks, choice.layout)) == 0
    plan = validated("r.yaml", *(["MC322"] if choice.kind == "grpo_vllm" else [])).plan
    assert plan.job_size == choice.workers
    if choice.kind != "script" and choice.trained > 1:
        [mesh] = [one.mesh for one in plan.components if one.name in ("trainer", "actor", "student")]
        layout = choice.layout or layouts(choice)[0]
        assert (mesh.size("dp") > 1) == (layout in ("dp", "hsdp"))
        assert (mesh.size("fsdp") > 1) == (layout != "dp" and (layout, choice.trained) != ("hsdp", 2))


def test_groups_share_the_devices_between_them(here: Path) -> None:
    assert init("one", Options("grpo", "cuda", 1)) == 0
    plan = validated("one.yaml").plan
    assert plan.group("train").colocate == "rollout" and plan.group("judge").device_type == "cpu"
    assert init("seven", Options("distill", "npu", 7)) == 0
    plan = validated("seven.yaml").plan
    assert (plan.group("teacher").workers, plan.group("student").workers) == (3, 4)


LOSSES = {"sft": 0.1, "sft_lora": 1.0, "dpo": 0.1, "reward_model": 0.1}
"""Kind -> the largest held-out loss at the end."""
LEARNED = {
    "train": ("metrics.accuracy", 0.7, 0.9),
    "grpo": ("scored.reward", 0.7, 0.5),
    "distill": ("metrics.agrees", 0.7, 0.8),
    "grpo_hf": ("scored.reward", 0.05, 0.6),
    "grpo_free": ("rollouts.scored.reward", 0.05, 0.5),
    "agent": ("episodes.done.reward", 0.1, 0.6),
    "ppo": ("scored.reward", 0.05, 0.1),
    "distill_on_policy": ("scored.reward", 0.05, 0.6),
}
"""Kind -> a metric, its largest value in the first step, and the least that it reaches in the last five."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[] if kind == "grpo" else pytest.mark.slow_suite)
        for kind in KINDS
        if kind != "grpo_vllm"
    ],
)
def test_on_cpu_it_runs_and_learns(kind: str, here: Path) -> None:
    """Runs `init`, then the command that it proposes, as a user would."""
    if kind in RECIPES:
        pytest.importorskip("transformers")
    assert init("jobs/first", Options(kind)) == 0
    done = call(here, "launch", "jobs/first.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = here.glob("runs/first/*")
    if kind == "script":
        output = (run / "logs" / "train" / "0.log").read_text()
        assert float(output.split()[-1]) > 0.9, output
        return
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    if kind in LOSSES:
        losses = [line["eval.exam.loss"] for line in lines if "eval.exam.loss" in line]
        assert losses[-1] < min(losses[0], LOSSES[kind]), losses
        assert (run / "exports" / f"step-{len(lines)}" / "model.safetensors").is_file()
    else:
        key, first, least = LEARNED[kind]
        values = [line[key] for line in lines if key in line]  # no pass may end in a step
        assert values[0] < first and max(values[-5:]) > least, values
    assert kind in RECIPES or (run / "checkpoints" / "latest").is_dir()
