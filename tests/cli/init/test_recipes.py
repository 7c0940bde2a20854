"""`meshctl init`: every choice makes a recipe that is correct and learns."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshctl.cli.init import Options, init
from meshctl.cli.load import plan_of
from meshctl.recipe import templates
from meshctl.recipe.templates import (
    DEVICES,
    KINDS,
    LAYOUTS,
    RECIPES,
    Choice,
    WrongChoice,
    layouts,
)
from tests.cli.init.initialized import validated
from tests.command_server import call

# Every choice makes a recipe


def choices() -> Iterator[Choice]:
    for kind, device, ranks in itertools.product(KINDS, DEVICES, (1, 2, 3, 8)):
        if kind in RECIPES and ranks in (2, 3):
            continue  # a number of ranks changes the same two lines of these, which are larger
        for layout in ("", *LAYOUTS):
            choice = Choice(kind, device, ranks, layout)
            try:
                templates.check(choice)
            except WrongChoice:
                continue
            yield choice


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("device", DEVICES)
def test_every_choice_validates_without_a_warning(kind: str, device: str, here: Path) -> None:
    tried = [choice for choice in choices() if (choice.kind, choice.device) == (kind, device)]
    assert len(tried) >= (1 if device == "mps" else 4)
    for number, choice in enumerate(tried):
        asked = Options(kind, device, choice.ranks, choice.layout)
        assert init(f"r{number}", asked) == 0
        output = validated(f"r{number}.yaml", *(["MC322"] if kind == "grpo_vllm" else []))
        plan = plan_of(f"r{number}.yaml", []).plan
        assert plan.job_size == choice.workers and f"{choice.workers} worker" in output
        if kind != "script" and choice.trained > 1:
            mesh = next(
                component
                for component in plan.components
                if component.name in ("trainer", "actor", "student")
            ).mesh
            assert {"dp": mesh.size("dp") > 1, "fsdp": mesh.size("fsdp") > 1} == {
                "dp": choice.layout in ("dp", "hsdp"),
                "fsdp": (choice.layout or layouts(choice)[0]) != "dp"
                and not (choice.layout == "hsdp" and choice.trained == 2),
            }


def test_one_device_is_shared(here: Path) -> None:
    assert init("r", Options("grpo", "cuda", 1)) == 0
    plan = plan_of("r.yaml", []).plan
    assert plan.group("train").colocate == "rollout" and plan.group("judge").device_type == "cpu"


def test_two_groups_share_the_devices_between_them(here: Path) -> None:
    assert init("r", Options("distill", "npu", 7)) == 0
    plan = plan_of("r.yaml", []).plan
    assert (plan.group("teacher").workers, plan.group("student").workers) == (3, 4)


LEARNED = {
    "train": ("metrics.accuracy", 0.9),
    "grpo": ("scored.reward", 0.5),
    "distill": ("metrics.agrees", 0.8),
}
LOSSES = {"sft": 0.1, "sft_lora": 1.0, "dpo": 0.1, "reward_model": 0.1}
"""Kind -> the largest held-out loss at the end."""
REWARDS = {"grpo_hf": 0.6, "ppo": 0.1, "distill_on_policy": 0.6}
"""Kind -> the least mean reward at the end."""


@pytest.mark.slow_suite
@pytest.mark.parametrize("kind", LOSSES)
def test_a_model_of_transformers_learns(kind: str, here: Path) -> None:
    """Runs `init`, then the command that it proposes, as a user would."""
    pytest.importorskip("transformers")
    assert init("jobs/first", Options(kind)) == 0
    done = call(here, "launch", "jobs/first.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = here.glob("runs/first/*")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [line["eval.exam.loss"] for line in lines if "eval.exam.loss" in line]
    assert losses[-1] < min(losses[0], LOSSES[kind]), losses
    assert (run / "exports" / f"step-{len(lines)}" / "model.safetensors").is_file()


@pytest.mark.slow_suite
@pytest.mark.parametrize("kind", REWARDS)
def test_a_model_of_transformers_learns_from_rewards(kind: str, here: Path) -> None:
    pytest.importorskip("transformers")
    assert init("jobs/first", Options(kind)) == 0
    done = call(here, "launch", "jobs/first.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = here.glob("runs/first/*")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rewards = [line["scored.reward"] for line in lines]
    assert rewards[0] < 0.05 and max(rewards[-5:]) > REWARDS[kind], rewards


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in RECIPES])
def test_on_cpu_it_runs_and_learns(kind: str, here: Path) -> None:
    """Runs `init`, then the command that it proposes, as a user would."""
    assert init("first", Options(kind)) == 0
    done = call(here, "launch", "first.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = here.glob("runs/first/*")
    if kind == "script":
        output = (run / "logs" / "train" / "0.log").read_text()
        assert float(output.split()[-1]) > 0.9, output
        return
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    key, least = LEARNED[kind]
    assert lines[0][key] < 0.7 and lines[-1][key] > least, (lines[0], lines[-1])
    assert (run / "checkpoints" / "latest").is_dir()
