"""The shipped config groups: each option is used in a recipe here, and has the pinned result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshctl.plan.model import Plan
from meshctl.plan.resolve import resolve
from meshctl.recipe.compose.folders import shipped
from meshctl.recipe.load import Loaded, load

RANKS = 16
LAYOUTS: dict[str, dict[str, int]] = {
    "dp": {"dp": 16},
    "fsdp": {"fsdp": 16},
    "fsdp_cp": {"fsdp": 8, "cp": 2},
    "fsdp_cp_tp": {"fsdp": 4, "cp": 2, "tp": 2},
    "fsdp_ep": {"fsdp": 16, "ep": 2},
    "fsdp_tp": {"fsdp": 8, "tp": 2},
    "fsdp_ulysses": {"fsdp": 16, "ulysses": 2},
    "hsdp": {"dp": 2, "fsdp": 8},
    "hsdp_tp": {"dp": 2, "fsdp": 4, "tp": 2},
    "pp2_dp_tp": {"pp": 2, "dp": 4, "tp": 2},
    "pp2_fsdp": {"pp": 2, "fsdp": 8},
    "pp2_fsdp_tp": {"pp": 2, "fsdp": 4, "tp": 2},
    "pp2_hsdp": {"pp": 2, "dp": 2, "fsdp": 4},
    "tp2": {"dp": 8, "tp": 2},
    "tp4": {"dp": 4, "tp": 4},
}
"""Layout -> its sizes on 16 ranks."""
GROUPS: dict[str, dict[str, tuple[tuple[int, int], ...]]] = {
    "cpu": {"train": ()},
    "cpu_split": {"rollout": (), "judge": (), "train": ()},
    "node": {"train": ((0, 8),)},
    "node_colocated": {"train": ((0, 8),), "rollout": ((0, 8),), "judge": ()},
    "node_split": {"rollout": ((0, 4),), "train": ((4, 8),), "judge": ()},
    "teacher_student": {"teacher": ((0, 2),), "student": ((2, 8),)},
    "two_nodes_split": {"rollout": ((0, 8),), "train": ((8, 16),), "judge": ()},
}
"""Placement -> devices of each group, as ranges (first, end); none on cpu."""
CLUSTERS = {"one_node": 1, "two_nodes": 2, "four_nodes": 4}
"""Cluster -> its nodes of eight devices."""
ENGINES = ("local", "loopback", "commands", "ssh", "ray", "jobset", "slurm")
PIPELINES = {
    "train": ("cpu", "batch metrics"),
    "train_eval": ("cpu", "batch metrics questions exam"),
    "grpo": ("cpu_split", "batch rollouts scored metrics publish"),
    "distill": ("cpu", "batch targets metrics"),
}
"""Pipeline -> (a suitable placement, its stages)."""
RUNS = {"smoke": (3, 0), "short": (100, 50), "long": (10_000, 500), "one_epoch": (0, 500)}
"""Run preset -> (steps, steps between checkpoints)."""
MODELS = {
    **{"qwen3_tiny": (4, 2), "qwen3_moe_tiny": (4, 2), "qwen3_8b": (32, 36), "qwen3_30b_a3b": (32, 48)},
    "smollm2": (9, 30),
}
"""Model -> (heads, layers)."""
CODE = """
from meshctl import Batch, Component, endpoint


class Source(Component):
    @endpoint
    def next(self, numbers: range) -> Batch: ...
    def __len__(self) -> int: ...


class Model(Component):
    @endpoint
    def sample(self, batch: Batch) -> Batch: ...
    @endpoint
    def predict(self, batch: Batch) -> Batch: ...
    @endpoint
    def score(self, batch: Batch) -> Batch: ...
    @endpoint
    def update(self, batch: Batch) -> dict[str, float]: ...
    @endpoint
    def evaluate(self, batch: Batch) -> dict[str, float]: ...
    def weights(self): ...
    def load_weights(self, stream): ...
    def state_dict(self): ...
    def load_state_dict(self, state): ...
"""
COMPONENTS = {
    "train": "data: Source train, trainer: Model train",
    "train_eval": "data: Source train, held_out: Source train, trainer: Model train",
    "grpo": "prompts: Source rollout, sampler: Model rollout, judge: Model judge, actor: Model train",
    "distill": "data: Source train, teacher: Model train, student: Model train",
}
"""Pipeline -> the components that it calls, as `NAME: CLASS GROUP`."""
BASE = """
defaults: [base, groups: GROUPS, pipeline: train, run: smoke, _self_]
components:
  data: {_target_: pieces.Source, group: train}
  trainer: {_target_: pieces.Model, group: train}
"""


def resolved(loaded: Loaded) -> Plan:
    assert [found for found in loaded.report.diagnostics if found.severity != "note"] == []
    return resolve(loaded.recipe, loaded.endpoints)


def plan_of(folder: Path, text: str, *overrides: str) -> Plan:
    """Resolves a recipe that must have neither errors nor warnings."""
    (folder / "pieces.py").write_text(CODE)
    (folder / "r.yaml").write_text(text)
    return resolved(load("r.yaml", overrides, folder, environ={}, detect=lambda: "cpu"))


@pytest.mark.parametrize("name", ENGINES)
def test_engines(name: str, tmp_path: Path) -> None:
    (tmp_path / "pieces.py").write_text(CODE)
    (tmp_path / "r.yaml").write_text(BASE.replace("GROUPS", "cpu"))
    needed = {"ssh": ["engine.ssh.hosts=[a]"], "jobset": ["engine.jobset.image=train:1"]}
    loaded = load("r.yaml", [f"engine={name}", *needed.get(name, ())], tmp_path)
    assert loaded.report.errors == () and loaded.recipe.engine.name == name


def test_every_shipped_option_is_used_here() -> None:
    options = {str(path.relative_to(shipped()).with_suffix("")) for path in shipped().rglob("*.yaml")} - {
        "base"
    }
    used: dict[str, Any] = {
        "layout": LAYOUTS,
        "engine": ENGINES,
        "groups": GROUPS,
        "cluster": CLUSTERS,
        "pipeline": PIPELINES,
        "run": RUNS,
        "model": MODELS,
        "sampler": ("hf", "vllm"),  # tests/recipes/test_launch.py makes plans with these
        **dict.fromkeys(
            ("long_context", "moe_ep", "twinkle_flow", "scale", "rollouts", "free", "agent", "distill"),
            ("laptop", "node8"),
        ),
    }
    assert options == {f"{group}/{option}" for group, table in used.items() for option in table}


@pytest.mark.parametrize("option", LAYOUTS)
def test_layout(tmp_path: Path, option: str) -> None:
    text = BASE.replace("GROUPS", "node").replace(
        "run: smoke", f"cluster: two_nodes, run: smoke, layout@components.trainer.parallel: {option}"
    )
    mesh = plan_of(tmp_path, text, f"groups.train.ranks={RANKS}").component("trainer").mesh
    assert {dim: mesh.size(dim) for dim in LAYOUTS[option]} == LAYOUTS[option]
    assert mesh.world_size == RANKS
    first = (shipped() / "layout" / f"{option}.yaml").read_text().splitlines()[0]
    assert first.startswith("# ") and first.endswith(".")  # its description


@pytest.mark.parametrize("option", GROUPS)
def test_placement(tmp_path: Path, option: str) -> None:
    components = "".join(
        f"  data_{name}: {{_target_: pieces.Source, group: {name}}}\n"
        f"  model_{name}: {{_target_: pieces.Model, group: {name}}}\n"
        for name in GROUPS[option]
    )
    stages = "".join(
        f"  batch_{name}: {{call: data_{name}.next, samples: 64}}\n"
        f"  metrics_{name}: {{call: model_{name}.update, in: batch_{name}, collect: mean}}\n"
        for name in GROUPS[option]
    )
    cluster = next((one for one in CLUSTERS if option.startswith(one)), "one_node")
    text = f"defaults: [base, groups: {option}, cluster: {cluster}, run: smoke, _self_]\n"
    plan = plan_of(tmp_path, f"{text}components:\n{components}pipeline:\n{stages}")
    assert {group.name: group.devices for group in plan.groups} == GROUPS[option]


@pytest.mark.parametrize("option", PIPELINES)
def test_pipeline(tmp_path: Path, option: str) -> None:
    groups, stages = PIPELINES[option]
    pieces = [one.replace(":", "").split() for one in COMPONENTS[option].split(", ")]
    components = "".join(
        f"  {name}: {{_target_: pieces.{cls}, group: {group}}}\n" for name, cls, group in pieces
    )
    text = f"defaults: [base, groups: {groups}, pipeline: {option}, run: short, _self_]\n"
    plan = plan_of(tmp_path, f"{text}components:\n{components}")
    assert sorted(stage.name for stage in plan.stages) == sorted(stages.split())


@pytest.mark.parametrize("option", MODELS)
def test_model(tmp_path: Path, option: str) -> None:
    (tmp_path / "pieces.py").write_text(CODE)
    text = BASE.replace("GROUPS", "cpu").replace("run: smoke", f"model: {option}, run: smoke")
    (tmp_path / "r.yaml").write_text(text)
    facts = load("r.yaml", [], tmp_path, environ={}, detect=lambda: "cpu").facts
    assert facts is not None
    sizes = facts.models["trainer"]
    assert (sizes.get("num_heads"), sizes.get("num_layers")) == MODELS[option]


@pytest.mark.parametrize("option", RUNS)
def test_run(tmp_path: Path, option: str) -> None:
    plan = plan_of(tmp_path, BASE.replace("GROUPS", "cpu"), f"run={option}")
    every = plan.run.checkpoint.every if plan.run.checkpoint else 0
    assert (plan.run.steps, every) == RUNS[option]
