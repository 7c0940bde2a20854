"""Every recipe without errors is resolved, and the plan has the values of the recipe."""

from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from meshctl.plan.model import Checkpoint, Cluster, Input, Plan, Program
from meshctl.plan.resolve import resolve
from meshctl.recipe.load import load
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import Dispatch
from tests.examples import examples
from tests.paths import RECIPE_GOLDEN as GOLDEN

IN_DESIGN = """
name: grpo-arithmetic
cluster: {nodes: 1, devices_per_node: 8}
vars: {tokens: 16}
groups:
  rollout: {ranks: 4, device_type: cuda}
  train: {ranks: [4, 5, 6, 7], device_type: cuda}
  judge: {ranks: 2, device_type: cpu}
components:
  prompts: {_target_: arithmetic.Prompts, group: rollout}
  sampler: {_target_: arithmetic.Sampler, group: rollout, parallel: {dp_size: 4}, args: {max_new_tokens: "${vars.tokens}"}}
  judge: {_target_: arithmetic.Judge, group: judge, parallel: {dp_size: 2}}
  actor: {_target_: arithmetic.Actor, group: train, parallel: {fsdp_size: auto, tp_size: 2}}
  critic: {_target_: arithmetic.Critic, group: train, parallel: actor, frozen: true}
pipeline:
  metrics: {call: actor.update, in: scored}
  batch: {call: prompts.next, samples: 64}
  rollouts: {call: sampler.sample, in: batch, samples: 512}
  scored: {call: judge.score, in: rollouts, dispatch: {balance: tokens}}
  both: {call: judge.compare, in: {batch: rollouts, other: {from: [scored, batch], dispatch: all}}, collect: first}
  publish: {sync: actor, to: sampler, every: 2, max_staleness: 2}
run: {steps: 200, checkpoint: {every: 50}}
"""


def plan_of(folder: Path, text: str, *overrides: str) -> Plan:
    (folder / "recipe.yaml").write_text(text)
    loaded = load("recipe.yaml", overrides, folder, path=(str(GOLDEN),))
    assert [found.message for found in loaded.report.errors] == []
    return resolve(loaded.recipe, loaded.endpoints)


def test_the_recipe_of_the_design(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, IN_DESIGN)
    assert plan.cluster == Cluster.of(1, cuda=8)
    places = [(group.name, group.workers, group.first_job_rank, group.devices) for group in plan.groups]
    assert places == [("rollout", 4, 0, ((0, 4),)), ("train", 4, 4, ((4, 8),)), ("judge", 2, 8, ())]
    assert plan.component("prompts").mesh == DeviceMesh.from_sizes(dp_size=4, device_type="cuda")
    assert plan.component("actor").mesh == DeviceMesh.from_sizes(fsdp_size=2, tp_size=2, device_type="cuda")
    assert plan.component("critic").mesh == plan.component("actor").mesh and plan.component("critic").frozen
    assert plan.component("sampler").args == {"max_new_tokens": 16}
    assert plan.component("sampler").endpoints == {"sample": ("slice_dp", "flatten", "all")}
    assert plan.component("actor").endpoints == {"update": ("slice_dp", "mean", "all")}
    assert " ".join(stage.name for stage in plan.stages) == "batch rollouts scored metrics both publish"
    assert plan.stage("metrics").collect == "mean"
    assert plan.stage("scored").inputs == (Input(("rollouts",), "", Dispatch(balance="tokens")),)
    publish = plan.stage("publish")
    ends = (publish.method, publish.to, publish.to_method, publish.lag)
    assert ends == ("weights", "sampler", "load_weights", 1)
    assert plan.run.checkpoint == Checkpoint(50, 3) and plan.run.steps == 200


def test_rare_fields_arrive_and_leave_no_trace_where_they_are_absent(tmp_path: Path) -> None:
    rare = (
        "pipeline.scored.dispatch.equal_counts=true",
        "pipeline.publish.checksum=true",
        "run.patience=0.5",
    )
    plan = plan_of(tmp_path, IN_DESIGN, "pipeline.scored.patience=0", *rare)
    assert plan.stage("publish").checksum and plan.run.patience == 0.5
    assert plan.stage("scored").patience == 0 and plan.stage("metrics").patience is None
    equal = [route.dispatch for route in plan.routes if route.dispatch.equal_counts]
    assert equal == [Dispatch(balance="tokens", equal_counts=True)]
    assert Plan.from_json(plan.to_json()) == plan
    stated = plan_of(tmp_path, IN_DESIGN, "pipeline.scored.dispatch.equal_counts=false", "run.patience=600")
    assert stated.digest == plan_of(tmp_path, IN_DESIGN).digest != plan.digest


def test_views_and_sizes_of_samples_arrive(tmp_path: Path) -> None:
    train = ["groups.train={ranks: 8, device_type: cpu}", "pipeline.rollouts.sample_bytes=4096"]
    sizes = {"fsdp_size": "auto", "pp_size": 2, "ep_size": 2, "etp_size": 2, "vpp_size": 3, "ulysses_size": 2}
    stated = [
        f"components.actor.parallel.{key}={size}"
        for key, size in {**sizes, "sequence_parallel": "true"}.items()
    ]
    plan = plan_of(tmp_path, IN_DESIGN, *train, *stated)
    mesh = DeviceMesh.from_sizes(
        **{**sizes, "fsdp_size": 2, "tp_size": 2}, sequence_parallel=True, device_type="cpu"
    )
    assert plan.component("actor").mesh == mesh and mesh.ep_fsdp_size == 1
    assert Plan.from_json(plan.to_json()).component("actor").mesh.view("expert") == mesh.view("expert")
    assert [stage.sample_bytes for stage in plan.stages] == [0, 4096, 0, 0, 0, 0]
    plan = plan_of(tmp_path, IN_DESIGN, *train, "layout@components.actor.parallel=fsdp_ep")
    assert plan.component("actor").mesh == DeviceMesh.from_sizes(fsdp_size=8, ep_size=2, device_type="cpu")


def test_the_environment_is_not_in_the_plan(tmp_path: Path, monkeypatch: Any) -> None:
    text = IN_DESIGN.replace(
        "_target_: arithmetic.Prompts,", "_target_: arithmetic.Prompts, args: {path: '${oc.env:SECRET}'},"
    )
    monkeypatch.setenv("SECRET", "hush")
    plan = plan_of(tmp_path, text)
    assert plan.component("prompts").args == {"path": "${oc.env:SECRET}"}
    monkeypatch.setenv("SECRET", "other")
    assert plan.digest == plan_of(tmp_path, text).digest != plan_of(tmp_path, text, "seed=1").digest


def test_a_stage_comes_after_its_inputs_and_else_as_written(tmp_path: Path) -> None:
    groups, components, _ = IN_DESIGN.partition("pipeline:")
    text = f"""{groups}{components}
  late: {{call: judge.score, in: b}}
  early: {{call: prompts.next, samples: 8, after: c}}
  b: {{call: judge.score, in: a}}
  a: {{call: prompts.next, samples: 8}}
  c: {{call: prompts.next, samples: 8}}
"""
    assert [stage.name for stage in plan_of(tmp_path, text).stages] == ["a", "b", "late", "c", "early"]


def test_an_unreadable_mode_is_not_compared_where_the_stage_states_it(tmp_path: Path) -> None:
    stage = "  look: {call: actor.look, in: batch}\nrun:"
    plan = plan_of(tmp_path, IN_DESIGN.replace("run:", stage))
    assert plan.component("actor").endpoints["look"] == ("slice_dp", "flatten", "all")
    plan = plan_of(
        tmp_path, IN_DESIGN.replace("run:", stage.replace("in: batch", "in: batch, dispatch: slice"))
    )
    assert "look" not in plan.component("actor").endpoints


def test_programs_are_placed(tmp_path: Path) -> None:
    text = """
groups:
  a: {ranks: 2, device_type: cpu, program: train.py, args: [--lr, 1e-3], cwd: sub}
  b: {ranks: 1, device_type: cpu, program: {module: pkg.main}, env: [HOME]}
"""
    for name in ("sub/train.py", "pkg/main.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    (tmp_path / "recipe.yaml").write_text(text)
    loaded = load("recipe.yaml", [], tmp_path)
    assert not loaded.report.diagnostics
    plan = resolve(loaded.recipe, loaded.endpoints)
    assert plan.name == "recipe" and plan.stages == ()
    assert plan.group("a").program == Program(("train.py", "--lr", "1e-3"), "sub")
    assert plan.group("b").program == Program(("-m", "pkg.main")) and plan.group("b").env == (("HOME", None),)


# Whatever the rules accept, `resolve` places

RANKS = ["[0, 1, 2, 5]", "[3, 1, 0, 2]", "8", "2"]
WORDS = [
    "every: 2",
    "collect: sum",
    "execute: peer",
    "when: end",
    "dispatch: {allow_empty: true}",
    "after: both",
]
CHANGES = [
    *(f"groups.{group}.{key}" for group in ("rollout", "train") for key in ("device_type=npu", "gpus_per_worker=2")),
    *(f"groups.{group}.ranks={ranks}" for group in ("rollout", "train") for ranks in RANKS),
    *("groups.train.colocate=rollout", "groups.judge.ranks=5", "groups.judge.device_type=npu"),
    *(f"cluster.devices_per_node={each}" for each in ("[8, 4, 0, 16]", "{gpu: 8, npu: [30, 6]}")),
    *("cluster.nodes=2", "cluster.nodes=3", "~cluster"),
    *(f"components.{name}.parallel={{{size}_size: auto}}" for name in ("sampler", "actor") for size in ("tp", "pp", "fsdp")),
    *(f"components.actor.parallel.{view}_size=2" for view in ("ulysses", "ep", "etp", "vpp")),
    *(f"pipeline.{stage}.{word}" for stage in ("scored", "both", "metrics") for word in (each.replace(": ", "=", 1) for each in WORDS)),
]  # fmt: skip


@settings(max_examples=examples(25, 150), suppress_health_check=[*HealthCheck])
@given(st.lists(st.sampled_from(CHANGES), max_size=5, unique_by=lambda change: change.partition("=")[0]))
def test_resolve_never_fails_on_what_the_rules_accept(changes: list[str]) -> None:
    held = {str(GOLDEN / "recipe.yaml"): IN_DESIGN.encode()}
    loaded = load("recipe.yaml", changes, GOLDEN, path=(str(GOLDEN),), held=held)
    assume(not loaded.report.errors)
    plan = resolve(loaded.recipe, loaded.endpoints)
    assert Plan.from_json(plan.to_json()).to_json() == plan.to_json()
    seen: list[str] = []
    for stage in plan.stages:
        assert all(name in seen for given in stage.inputs for name in given.stages)
        seen.append(stage.name)
    for component in plan.components:
        assert component.mesh.world_size == plan.group(component.group).workers
    for group in plan.groups:
        workers = list(plan.workers(group.name))
        assert [worker.rank for worker in workers] == list(range(group.workers))
        each = 0 if group.device_type == "cpu" else group.gpus_per_worker
        assert all(len(one.devices) == each and one.node < plan.cluster.nodes for one in workers)
