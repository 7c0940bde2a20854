"""The recipes as they are shipped: each makes a plan at every scale and in every layout it offers, and learns, from
any working directory."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest

from meshctl.cli.load import plan_of
from meshctl.recipe.load import load
from tests.cli.small_launch import rows
from tests.command_server import call
from tests.log_text import output_of
from tests.paths import RECIPES

MODELS = {"sft": 0.2, "sft_lora": 0.2, "dpo": 0.01, "reward_model": 0.01, "long_context": 0.2, "moe_ep": 0.2}
"""Recipe of a model of transformers -> the least decrease of its held-out loss from step 6 to step 12."""
JUDGED = {"rollout", "judge", "train"}
SCALES: dict[tuple[str, str], dict[str, int]] = {
    **{(name, "laptop"): {"fsdp": 2} for name in ("sft", "sft_lora", "dpo", "reward_model")},
    **{(name, "node8"): {"fsdp": 8} for name in ("sft", "sft_lora", "dpo", "reward_model")},
    **{(name, "laptop"): {"fsdp": 2} for name in ("agent", "grpo", "grpo_free", "ppo", "distill_on_policy")},
    **{(name, "node8"): {"fsdp": 4} for name in ("agent", "grpo", "grpo_free", "ppo", "distill_on_policy")},
    **{("grpo_vllm", scale): {"fsdp": size} for scale, size in (("laptop", 2), ("node8", 4))},
    ("long_context", "laptop"): {"fsdp": 2, "cp": 2, "ulysses": 2},
    ("long_context", "node8"): {"fsdp": 4, "cp": 2, "ulysses": 4},
    ("moe_ep", "laptop"): {"fsdp": 2, "ep": 2},
    ("moe_ep", "node8"): {"fsdp": 8, "ep": 8},
    ("twinkle_flow", "laptop"): {"pp": 2, "dp": 2, "tp": 2},
    ("twinkle_flow", "node8"): {"pp": 2, "fsdp": 8, "tp": 2},
}
"""Recipe and scale -> sizes of the trainer's mesh."""


@pytest.mark.parametrize(("name", "scale"), SCALES)
def test_a_scale_is_a_word(name: str, scale: str) -> None:
    """MC322 and MC445 are notes about an interpreter and a model that are not here."""
    ready = plan_of(str(RECIPES / f"{name}.yaml"), [f"scale={scale}"])
    assert {one.severity for one in ready.report.diagnostics} <= {"note"}
    mesh, group = ready.plan.component("trainer").mesh, ready.plan.group("train")
    assert {dim: mesh.size(dim) for dim in SCALES[name, scale]} == SCALES[name, scale]
    assert group.device_type == ("cpu" if scale == "laptop" else "cuda")
    assert ready.plan.to_json() == plan_of(str(RECIPES / f"{name}.yaml"), [f"scale={scale}"]).plan.to_json()


@pytest.mark.parametrize(("layout", "dp", "fsdp"), [("dp", 2, 1), ("fsdp", 1, 2), ("hsdp", 2, 2)])
def test_a_layout_is_a_word(layout: str, dp: int, fsdp: int) -> None:
    overrides = [f"groups.train.ranks={dp * fsdp}", f"layout@components.trainer.parallel={layout}"]
    mesh = plan_of(str(RECIPES / "sft_arithmetic.yaml"), overrides).plan.component("trainer").mesh
    assert (mesh.size("dp"), mesh.size("fsdp")) == (dp, fsdp)


@pytest.mark.parametrize("name", ["sft", "sft_lora", "dpo", "reward_model"])
def test_a_layout_is_compared_with_the_sizes_of_the_model(name: str) -> None:
    overrides = ["scale=node8", "groups.train.ranks=6", "components.trainer.parallel={tp_size: 3}"]
    report = load(str(RECIPES / f"{name}.yaml"), overrides, RECIPES).report
    assert [one.code for one in report.diagnostics if one.severity == "error"] == ["MC431"]


@pytest.mark.parametrize("name", ["grpo", "grpo_vllm", "ppo", "distill_on_policy"])
def test_a_sampler_is_a_word(name: str) -> None:
    for sampler in ("hf", "vllm"):
        plan = plan_of(str(RECIPES / f"{name}.yaml"), [f"sampler={sampler}"]).plan
        assert plan.component("sampler").target == f"meshctl.{sampler}.Sampler"
        assert {group.name for group in plan.groups} - {"teacher"} == JUDGED


@pytest.mark.parametrize("name", ["rot13/chats.jsonl", "rot13/pairs.jsonl", "alphabet/prompts.jsonl"])
def test_the_data_are_those_that_the_script_writes(name: str, tmp_path: Path) -> None:
    folder, _, file = name.partition("/")
    runpy.run_path(str(RECIPES / folder / "data.py"))["write"](tmp_path)
    assert (tmp_path / file).read_bytes() == (RECIPES / name).read_bytes()


def test_the_rewards() -> None:
    next_letter = runpy.run_path(str(RECIPES / "alphabet" / "reward.py"))["next_letter"]
    assert [next_letter("hij", answer) for answer in ("k", "kx", "l", "")] == [1.0, 1.0, 0.0, 0.0]
    assert next_letter("z", "a") == 1.0
    right_letters = runpy.run_path(str(RECIPES / "rot13" / "reward.py"))["right_letters"]
    chosen, answers = [{"role": "assistant", "content": "uryyb"}], ("uryyb", "uryxx", "", "uryyburyyb")
    assert [right_letters(answer, chosen) for answer in answers] == [1, 0.6, 0, 0.5]


# Runs


def launch(cwd: Path, recipe: str, *overrides: str, preload: str = "") -> Path:
    """Runs it to its end and gives its run directory."""
    output = call(cwd, "launch", str(RECIPES / recipe), *overrides, preload=preload)
    assert output.returncode == 0, output.stdout + output.stderr
    (run,) = (cwd / "runs").glob("*/*")
    return run


def exam_losses(run: Path) -> list[float]:
    return [line["eval.exam.loss"] for line in rows(run) if "eval.exam.loss" in line]


@pytest.mark.slow_suite
@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_transformers_learns(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    run = launch(tmp_path, f"{name}.yaml", "run.steps=12", "pipeline.eval.every=6", preload="meshctl.hf")
    first, last = exam_losses(run)
    assert last < first - MODELS[name]
    assert (run / "exports" / "step-12" / "model.safetensors").is_file()


@pytest.mark.slow_suite
def test_an_actor_with_three_dims_learns_from_four_samplers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    run = launch(tmp_path, "twinkle_flow.yaml", "run.steps=40", preload="meshctl.hf")
    lines = rows(run)
    assert len(lines) == 40
    assert lines[0]["scored.reward"] < 0.1 and max(line["scored.reward"] for line in lines[30:]) > 0.3
    assert all(line["metrics.parity_max"] < 1e-3 for line in lines)  # the samplers have the actor's weights
    assert len({*run.glob("events/*.jsonl")}) >= 12
    assert (run / "exports" / "step-40" / "model.safetensors").is_file()


@pytest.mark.slow_suite
@pytest.mark.parametrize(
    "recipe", ["agent.yaml", "grpo.yaml", "grpo_free.yaml", "ppo.yaml", "distill_on_policy.yaml"]
)
def test_the_rewards_of_a_laptop_rise(tmp_path: Path, recipe: str) -> None:
    pytest.importorskip("transformers")
    lines = rows(launch(tmp_path, recipe, "run.checkpoint=null", preload="meshctl.hf"))
    assert all(line["metrics.parity_mean"] < 1e-4 for line in lines if "metrics.parity_mean" in line)
    scored = {"grpo_free.yaml": "rollouts.scored", "agent.yaml": "episodes.done"}.get(recipe, "scored")
    found = [line[f"{scored}.reward"] for line in lines if f"{scored}.reward" in line]
    assert found[0] < 0.05 and fmean(found[-5:]) > (0.1 if recipe == "ppo.yaml" else 0.6)


@pytest.mark.slow
def test_two_groups_and_a_judge_begin_to_learn(tmp_path: Path) -> None:
    run = launch(tmp_path, "grpo_arithmetic.yaml", "run.steps=2")
    lines = rows(run)
    assert [line["step"] for line in lines] == [1, 2]
    assert all({"exam.reward", "scored.reward", "metrics.entropy"} <= line.keys() for line in lines)
    assert lines[0]["exam.reward"] < 0.2
    assert lines[-1]["metrics.entropy"] != lines[0]["metrics.entropy"]
    phases = {}
    for file in run.glob("events/*.jsonl"):
        for event in map(json.loads, file.read_text().splitlines()):
            if event["name"] == "phase":
                phases[event["group"]] = event["value"]["phase"]
    assert phases == {"judge": "agreement on the last step", "rollout": "first sync", "train": "first sync"}


@pytest.mark.slow
def test_supervised_training_learns(tmp_path: Path) -> None:
    lines = rows(launch(tmp_path, "sft_arithmetic.yaml", "run.steps=8", "pipeline.eval.every=8"))
    losses = [line["metrics.loss"] for line in lines]
    assert [line["step"] for line in lines if "eval.exam.reward" in line] == [8]
    assert losses[0] > 2.3 and losses[-1] < losses[0] - 0.3


@pytest.mark.slow_suite
def test_a_script_runs_under_meshctl_as_under_torchrun(tmp_path: Path) -> None:
    run = launch(tmp_path, "program_ddp.yaml", "groups.train.args=[--epochs, 10]")
    log = output_of(run / "logs" / "train" / "0.log")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = [*torchrun, str(RECIPES / "ddp_digits.py"), "--epochs", "10"]
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    bare = subprocess.run(script, cwd=tmp_path, env=environ, capture_output=True, text=True)
    ours, theirs = (
        [line for line in text.splitlines() if line.startswith("epoch")] for text in (log, bare.stdout)
    )
    assert len(ours) == 1 and ours == theirs
    assert float(ours[-1].rsplit(maxsplit=1)[-1]) > 0.9


KEPT = sorted(path.name.split(".")[0] for path in RECIPES.glob("*.expected.jsonl"))


@pytest.mark.slow_suite
@pytest.mark.parametrize("name", KEPT)
def test_a_shipped_recipe_gives_its_kept_metrics(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    done = call(tmp_path, "test", str(RECIPES / f"{name}.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", 0 numbers" not in done.stdout
