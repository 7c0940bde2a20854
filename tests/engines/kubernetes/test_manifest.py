"""The manifests of a JobSet. Golden files pin those of shipped recipes at `scale=node8`, without the plan in the
ConfigMap. To regenerate them, delete the files in `golden/` and run this test: it writes those that are missing, and
fails once."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from meshctl.cli.load import plan_of
from meshctl.engines.engine import TOKEN_PLACE
from meshctl.engines.kubernetes.engine import JobSetEngine
from meshctl.engines.kubernetes.manifest import JobSetOptions
from meshctl.plan.model import Plan
from meshctl.plan.node_sets import node_sets
from meshctl.run.directory import RunDir, Start
from meshctl.text.kubernetes_names import label_of, too_long
from tests.cli.commands import meshctl
from tests.cli.small_launch import PARTS, RECIPE
from tests.engines.kubernetes.cluster import MISSING
from tests.paths import ROOT

GOLDEN = Path(__file__).with_name("golden")
NODE8 = ["scale=node8"]
RECIPES = {
    "grpo": [*NODE8, "rollouts=node8"],
    "sft": NODE8,
    "distill_on_policy": [*NODE8, "distill=node8"],
    "two_sets": [],
}
IMAGE = "engine.jobset.image=registry.example.com/train:1"
SMALL = ["engine=jobset", IMAGE]
FULL = """
{jobset: {image: "registry.example.com/train:1", pull_policy: Always, namespace: lab, context: prod, queue: gpus,
  priority: high, volcano_queue: batch, labels: {team: a}, annotations: {example.com/note: "yes"},
  volumes: {runs: {claim: runs, path: /runs}, data_sets: {claim: data, path: /data, read_only: true}},
  code: /runs/code, env_from: [wandb/api-key as WANDB_API_KEY, hub/HF_TOKEN], shm_size: 16GiB,
  resources: {cpu: 8, memory: 64Gi}, device_resources: {cuda: amd.com/gpu}, service_account: trainer,
  pull_with: registry, node_selector: {gpu: h100}, tolerations: [{key: gpu, operator: Exists, effect: NoSchedule}],
  host_network: true, port: 30000, time_limit: 4h, grace: 5m, max_restarts: 2, join_limit: 10m,
  setup: [". /venv/bin/activate", "ulimit -l unlimited"]}}
"""
TWO_SETS = (
    RECIPE.replace("samples: 4", "samples: 80")
    .replace("one: {ranks: 1, device_type: cpu}", "one: {ranks: 8, device_type: cuda}")
    .replace(
        "two: {ranks: 2, device_type: cpu}",
        "two: {ranks: [8, 9, 10, 11, 12, 13, 14, 15, 16, 17], device_type: cuda}",
    )
)
ELASTIC = (
    RECIPE.replace("{ranks: 2,", "{ranks: 3,")
    .partition("run:")[0]
    .replace('{mood: ""}}', '{mood: ""}, parallel: {fsdp_size: auto}}')
    + "cluster: {nodes: 3}\nrun: {steps: 3, restarts: 3, elastic: {two: {}}}\n"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("manifests")
    (made / "parts.py").write_text(PARTS)
    two_sets = TWO_SETS.replace("run:", "cluster: {nodes: 3, devices_per_node: 8}\nrun:")
    (made / "two_sets.yaml").write_text(f"{two_sets}engine: {FULL.strip()}\n")
    return made


def rendered(folder: Path, name: str, *words: str) -> tuple[str, Plan]:
    recipe = folder / "two_sets.yaml" if name == "two_sets" else ROOT / "recipes" / f"{name}.yaml"
    ready = plan_of(str(recipe), [*RECIPES[name], *(SMALL if name != "two_sets" else []), *words])
    engine = JobSetEngine(**ready.start.engine.options)
    run = RunDir(Path("/home/me/runs") / ready.plan.name / "20261124-120000")
    start = Start(("/home/me",), engine=ready.start.engine)
    return engine.render(ready.plan, run, "", start).document, ready.plan


def documents(text: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text))


@pytest.mark.parametrize("name", RECIPES)
def test_golden(name: str, folder: Path) -> None:
    text, plan = rendered(folder, name)
    _, config, secret = documents(text)
    assert json.loads(config["data"].pop("plan.json")) == json.loads(plan.to_json())
    assert Start.from_json(json.loads(config["data"].pop("start.json"))).path
    assert secret["stringData"] == {"token": TOKEN_PLACE}
    shown = text.partition("---\n")[0]
    file = GOLDEN / f"{name}.yaml"
    if not file.exists():
        file.write_text(shown)
        pytest.fail(f"{file.name} was written")
    assert shown == file.read_text()


def test_only_pods_that_fail_by_themselves_count_where_the_run_may_restart(folder: Path) -> None:
    """The pod of the head is not replaced without `max_restarts`, which is 2 in the recipe."""
    found = []
    for words in ([], ["run.restarts=3"], ["run.restarts=3", "engine.jobset.max_restarts=0"]):
        job_set = documents(rendered(folder, "two_sets", *words)[0])[0]
        spec = job_set["spec"]["replicatedJobs"][0]["template"]["spec"]
        rules = spec["podFailurePolicy"]["rules"]
        whens = [rule.get("onExitCodes", {}).get("values", "disrupted") for rule in rules]
        found.append((spec["backoffLimit"], [rule["action"] for rule in rules], whens))
    verdicts, actions = [1, 4, 5, 70, 130], ["FailJob", "Ignore", "Ignore"]
    assert found == [
        (0, ["FailJob"], [verdicts]),
        (3, actions, [verdicts, [75], "disrupted"]),
        (3, actions, [[*verdicts, 143], [75], "disrupted"]),
    ]


def test_pods_have_the_recipe_of_a_run_that_may_change_its_size(folder: Path) -> None:
    (folder / "elastic.yaml").write_text(ELASTIC)
    engine = ["--engine", "jobset", IMAGE, "engine.jobset.volumes={runs: {claim: runs, path: /runs}}"]
    done = meshctl(folder, "launch", "elastic.yaml", *engine, "--dry-run", "run.steps=7")
    assert done.returncode == 0, done.stderr
    job_set, config, _ = documents(done.stdout)
    recipe = yaml.safe_load(config["data"]["recipe.yaml"])
    assert recipe["run"] == {"steps": 7, "restarts": 3, "elastic": {"two": {}}}
    for job in job_set["spec"]["replicatedJobs"]:
        [container] = job["template"]["spec"]["template"]["spec"]["containers"]
        assert "copy recipe.yaml" in container["command"][2].splitlines()


def test_a_dry_run_shows_what_it_can_and_what_is_missing(folder: Path) -> None:
    (folder / "elastic.yaml").write_text(ELASTIC)
    done = meshctl(folder, "launch", "elastic.yaml", "--engine", "jobset", "--dry-run")
    assert done.returncode == 0 and documents(done.stdout)[0]["kind"] == "JobSet"
    assert "warning[MC620]" in done.stderr and "warning[MC622]" in done.stderr


@pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}")
def test_a_dry_run_is_yaml_with_a_token_of_its_own(folder: Path) -> None:
    outputs = [meshctl(folder, "launch", "two_sets.yaml", "--dry-run") for _ in range(2)]
    assert [one.returncode for one in outputs] == [0, 0], outputs[0].stderr
    tokens = set()
    for one in outputs:
        assert one.stdout.startswith("# small: 2 groups")
        job_set, config, secret = documents(one.stdout)
        assert {job_set["metadata"]["name"], config["metadata"]["name"]} == {"small-time"}
        tokens.add(secret["stringData"]["token"])
    assert len(tokens) == 2 and not (folder / "runs").exists()


def test_the_official_models_read_and_write_the_same(folder: Path) -> None:
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="needs the extra `kubernetes`")
    for name in RECIPES:
        job_set, *_ = documents(rendered(folder, name)[0])
        given = {key: value for key, value in job_set.items() if key not in ("apiVersion", "kind")}
        found = models.JobsetV1alpha2JobSet.from_dict(job_set).to_dict()
        assert {key: found[key] for key in given} == given
        for job in job_set["spec"]["replicatedJobs"]:
            spec = job["template"]["spec"]
            assert models.IoK8sApiBatchV1JobSpec.from_dict(spec).to_dict() == spec


def test_kubernetes_accepts_what_is_inside(folder: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="needs the extra `kubernetes`")
    for name, words in product(RECIPES, ([], ["run.restarts=2"])):
        job_set, config, secret = documents(rendered(folder, name, *words)[0])
        jobs = [
            {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}, **job["template"]}
            for job in job_set["spec"]["replicatedJobs"]
        ]
        for one in (config, secret, *jobs):
            validate.validate(one, "1.32", strict=True)


def test_names_are_short_enough_or_refused() -> None:
    assert label_of("My_Run.v2") == "my-run-v2" and label_of("7b") == "run-7b"
    for nodes, longest in ((16, 26), (10_000, 24)):  # of the address of the head, and of a pod
        names = {length: f"{'a' * length}-20261124-120000" for length in range(1, 60)}
        assert [n for n in names if not too_long(names[n], nodes)] == list(range(1, longest + 1))


def test_the_run_directory_is_that_of_the_launcher_on_a_volume_that_both_see(folder: Path) -> None:
    plan = rendered(folder, "two_sets")[1]
    run = RunDir(Path("/shared/runs/small/T"))
    volume = {"claim": "c", "path": "/shared", "read_only": False}
    assert JobSetOptions(volumes={"v": volume}).folder(plan, run) == run.path
    assert str(JobSetOptions(volumes={"v": {**volume, "path": "/x"}}).folder(plan, run)) == "/x/runs/small/T"
    assert str(JobSetOptions(run_dir="/y").folder(plan, run)) == "/y/small/T"
    assert str(JobSetOptions().folder(plan, run)) == "/meshctl/runs/small/T"
    assert JobSetOptions(shm_size=5).shm_bytes(plan, node_sets(plan)[0]) == 5
