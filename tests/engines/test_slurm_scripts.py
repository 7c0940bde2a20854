"""The scripts and steps of the engine `slurm`, without a cluster.

python -m tests.engines.test_slurm_scripts      regenerates the scripts of shipped recipes, and the steps
"""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from meshctl.engines.engine import CannotStart
from meshctl.engines.slurm.engine import SlurmEngine, failed_task, steps_of
from meshctl.engines.slurm.job import Allocation, Share, SlurmOptions
from meshctl.plan.model import Cluster, Group, Plan, Restarts, Run
from meshctl.recipe.slurm_fields import slurm_time
from meshctl.run.directory import RunDir
from meshctl.run.process import IN_JOB
from tests.cli.commands import meshctl
from tests.engines.processes import written
from tests.engines.test_slurm import ENGINE, TWO_SETS
from tests.paths import ROOT

GOLDEN = Path(__file__).parent / "golden"
SHIPPED = {
    "grpo": ["scale=node8", "cluster.nodes=2", "engine.slurm.gres=gpu:h100", "engine.slurm.time=4h"],
    "grpo_arithmetic": ["cluster.nodes=3", "groups.judge.ranks=1", "engine.slurm.partition=cpu"],
    "program_ddp": ["cluster.nodes=2", "engine.slurm.sbatch=[--exclusive]", "engine.slurm.requeue=true"],
}
"""Shipped recipe -> overrides."""


def script_of(name: str, folder: Path) -> str:
    """Returns the script of a shipped recipe, without the paths of this machine."""
    from meshctl.cli.load import plan_of

    ready = plan_of(str(ROOT / "recipes" / f"{name}.yaml"), ["engine=slurm", *SHIPPED[name]])
    engine = SlurmEngine(**ready.start.engine.options)
    [text] = engine.render(ready.plan, RunDir(Path("/runs/RUN")), "").files.values()
    return text.replace(sys.executable, "PYTHON").replace(os.getcwd(), "FOLDER")


@pytest.mark.parametrize("name", SHIPPED)
def test_the_script_of_a_shipped_recipe(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert script_of(name, tmp_path) == (GOLDEN / f"slurm_{name}.sh").read_text()


IN_CONTAINERS = [
    "cluster.nodes=3",
    "groups.judge.ranks=1",
    "engine.slurm.container_image='nvcr.io#nvidia/pytorch:26.01'",
]
IN_CONTAINERS += ["engine.slurm.container_mounts=[/data,/scratch:/tmp:ro]", "engine.slurm.cpus=8"]
IN_CONTAINERS += ["engine.slurm.setup=[source /venv/bin/activate]"]
THREE_COMPONENTS = {
    "SLURM_JOB_ID": "12",
    "SLURM_HET_SIZE": "3",
    **{f"SLURM_JOB_NODELIST_HET_GROUP_{index}": f"n{index + 1}" for index in range(3)},
}


def container_steps() -> str:
    """Returns the command lines by which the head starts nodes in containers of pyxis."""
    from meshctl.cli.load import plan_of

    ready = plan_of(str(ROOT / "recipes" / "grpo_arithmetic.yaml"), ["engine=slurm", *IN_CONTAINERS])
    commands = (
        SlurmEngine(**ready.start.engine.options)
        .render(ready.plan, RunDir(Path("/runs/RUN")), "10.0.0.1:5")
        .commands
    )
    lines = [f"{shlex.join(command.argv)}\n" for command in commands]
    return "\n".join(lines).replace(str(Path(sys.executable).parent), "BIN").replace(os.getcwd(), "FOLDER")


def test_the_steps_in_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in THREE_COMPONENTS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(IN_JOB, raising=False)
    assert container_steps() == (GOLDEN / "slurm_containers.txt").read_text()


def test_a_dry_run_of_4096_nodes_has_few_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    (tmp_path / "sbatch").symlink_to("/bin/true")
    big = TWO_SETS.replace("nodes: 3", "nodes: 4096").replace("{ranks: 3,", "{ranks: 32768,")
    written(tmp_path, big.replace("samples: 6", "samples: 32768"))
    done = meshctl(tmp_path, "launch", "recipe.yaml", "--dry-run", *ENGINE)
    assert done.returncode == 0, done.stderr
    assert "#SBATCH --nodes=4095\n" in done.stdout and len(done.stdout.splitlines()) < 40
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("90m", "0-01:30:00"),
        ("1d12h", "1-12:00:00"),
        ("4:00:00", "0-04:00:00"),
        ("0:30:00", "0-00:30:00"),
        ("4:00", ""),
        ("2-12", "2-12:00:00"),
        ("1-2:30", "1-02:30:00"),
        ("infinite", "UNLIMITED"),
        ("90", ""),
        ("0s", ""),
        ("soon", ""),
    ],
)
def test_times_of_slurm(written: str, found: str) -> None:
    assert slurm_time(written) == found


def test_the_hosts_of_an_allocation_are_shared_out() -> None:
    plan = Plan("p", 0, Cluster.of(3), (Group("a", "cpu", 1, 0), Group("b", "cpu", 3, 1)), (), (), (), Run())
    one = Allocation((("n1", "n2", "n3", "n4"),), False).shares(plan)
    assert one == (Share(("n1",)), Share(("n2", "n3")))
    two = Allocation((("n1",), ("n7", "n9")), True).shares(plan)
    assert two == (Share(("n1",), 0), Share(("n7", "n9"), 1))
    with pytest.raises(CannotStart, match="the plan has 3 nodes, and the allocation is too small: 2 nodes"):
        Allocation((("n1", "n2"),), False).shares(plan)
    assert Allocation.of({"SLURM_JOB_NODELIST": "n1"}) == Allocation((("n1",),), False)
    with pytest.raises(CannotStart, match="2 sets of equal nodes"):
        Allocation((("n1",),), True).shares(plan)


def test_steps_for_each_set_and_with_restarts_for_each_node(tmp_path: Path) -> None:
    groups = (Group("a", "cpu", 1, 0), Group("b", "cpu", 3, 1))
    plan = Plan("p", 0, Cluster.of(3), groups, (), (), (), Run())
    shares = (Share(("n1",), 0), Share(("n2", "n3"), 1))
    made = steps_of(plan, RunDir(tmp_path), "10.0.0.1:5", shares, [], options := SlurmOptions())
    assert [step.nodes for step in made] == [(0,), (1, 2)] and "--kill-on-bad-exit=1" in made[1].argv
    assert made[1].argv[-1].splitlines()[-1].endswith('--head 10.0.0.1:5 --in-job --node "1.$SLURM_NODEID"')
    plan = replace(plan, run=replace(plan.run, restarts=Restarts(3)))
    made = steps_of(plan, RunDir(tmp_path), "10.0.0.1:5", shares, [], options)
    assert [(step.node, step.hosts) for step in made] == [(0, ("n1",)), (1, ("n2",)), (2, ("n3",))]
    assert made[2].argv[-1].endswith("--node 2") and "--kill-on-bad-exit=0" in made[2].argv


def test_the_task_that_failed_is_read_from_srun(tmp_path: Path) -> None:
    log = tmp_path / "srun.log"
    assert failed_task(log) == ("", 0)
    log.write_text("srun: error: n2: task 0: Exited with exit code 97\nsrun: error: n3: task 1: Killed\n")
    assert failed_task(log) == ("n2", 97)
    log.write_text("srun: error: n3: task 1: Killed\n")
    assert failed_task(log) == ("n3", 0)


if __name__ == "__main__":
    for _name in SHIPPED:
        (GOLDEN / f"slurm_{_name}.sh").write_text(script_of(_name, GOLDEN))
    os.environ |= THREE_COMPONENTS
    (GOLDEN / "slurm_containers.txt").write_text(container_steps())
