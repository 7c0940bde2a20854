"""The engine `ray` in a cluster of three raylets, which are processes of this machine."""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from processes import Start as Begin

from meshctl.engines.engine import CannotStart
from meshctl.engines.ray import RayEngine
from meshctl.engines.ray_driver import Machine, why_dead, why_not
from meshctl.package import install_command
from meshctl.plan.model import Plan
from meshctl.plan.resolve import resolve
from meshctl.recipe.load import load
from meshctl.run.directory import Start
from tests.cli.commands import meshctl
from tests.engines.processes import LONG, THREE, name_of, parent_of, rows_of, written
from tests.engines.ray_cluster import RayCluster, ray_cluster

pytestmark = pytest.mark.timeout(900)
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs ray: make test-all installs it")


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster(3) as found:
        yield found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written(tmp_path, THREE)


def options(cluster: RayCluster) -> list[str]:
    return ["--engine", "ray", f"engine.ray.address={cluster.address}", "engine.ray.lease=10"]


def processes_in(folder: Path) -> list[int]:
    """Returns the processes whose working directory is a folder: those of the nodes."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(entry / "cwd") == str(folder):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def actor_of(folder: Path, node: int) -> int:
    """Returns the pid of the actor of a node: the parent of the node process, which is that of its agents."""
    [agent] = [pid for pid in processes_in(folder) if name_of(pid) == f"mesh two/{node}"]
    return parent_of(parent_of(agent))


def is_clean(folder: Path, cluster: RayCluster, limit_s: float = 60) -> bool:
    """Waits until no process of a run is left, and nothing of it in the cluster."""
    end = time.monotonic() + limit_s
    while (is_left := bool(processes_in(folder) or cluster.left())) and time.monotonic() < end:
        time.sleep(0.5)
    return not is_left


@needs_ray
@pytest.mark.slow_suite
def test_a_killed_actor_is_the_cause_and_a_killed_launcher_leaves_nothing(
    cluster: RayCluster, folder: Path, start: Begin
) -> None:
    words = ("launch", "recipe.yaml", *options(cluster))
    launch = start(folder, *words, *LONG, "engine.ray.cpus=3")
    launch.until("^step 2")
    busy = meshctl(folder, *words)
    assert busy.returncode == 4 and "3 x 3 CPU (free: 0 CPU)" in busy.stderr, busy.stderr
    os.kill(actor_of(folder, 1), signal.SIGKILL)
    code, output = launch.end()
    assert code == 5, output
    cause = r"error: (node 1 \(\S+\) was ended by a signal|the connection to node 1 \(\S+\) is lost|the Ray actor of node 1 on \S+ .* died: )"
    assert re.search(cause, output), output
    assert is_clean(folder, cluster)
    launch = start(folder, *words, *LONG)
    launch.until("^step 2")
    assert len(cluster.left()) == 4
    launch.signal(signal.SIGKILL)
    launch.end()
    assert is_clean(folder, cluster)


@needs_ray
@pytest.mark.slow_suite
def test_a_killed_actor_and_a_killed_raylet_start_again(
    cluster: RayCluster, folder: Path, start: Begin
) -> None:
    words = ["components.trainer.args.mood=slow", "run.steps=600", "run.restarts=2"]
    launch = start(folder, "launch", "recipe.yaml", *options(cluster), *words)
    launch.until("^step [0-9]{2}/")
    os.kill(actor_of(folder, 2), signal.SIGKILL)
    launch.until(r"\(1 restart left\)")
    launch.until("^step [0-9]+/")
    cluster.add()
    cluster.kill_machine()
    launch.until(r"\(0 restarts left\)")
    launch.until("^step [0-9]+/")
    launch.signal(signal.SIGINT)
    code, output = launch.end()
    assert code == 130, output
    assert is_clean(folder, cluster)


@needs_ray
@pytest.mark.slow_suite
def test_what_the_cluster_cannot_hold_is_named(cluster: RayCluster, folder: Path) -> None:
    def message(*words: str) -> str:
        done = meshctl(folder, "launch", "recipe.yaml", *options(cluster), *words)
        assert done.returncode == 4, done.stderr
        return done.stderr

    found = message("engine.ray.cpus=64")
    assert "node 0 needs 64 CPU, as do 2 other nodes, which no machine has" in found
    assert "the cluster has 3 machines: 3 x 3 CPU" in found
    found = message("cluster.nodes=9", "groups.one.ranks=9", "groups.two.ranks=9", "pipeline.batch.samples=9")
    assert "the plan has 9 nodes, each on a machine of its own; the cluster has 3 machines" in found
    found = message("engine.ray.address=127.0.0.1:9")
    assert found.count("error:") == 1 and "there is no Ray cluster at `127.0.0.1:9`" in found
    assert "has failed in `engine.ray.setup`: cd /nowhere" in message("engine.ray.setup=[cd /nowhere]")
    assert is_clean(folder, cluster)


@needs_ray
@pytest.mark.slow_suite
def test_a_shipped_run_equals_one_here_and_leaves_its_files_on_the_nodes(
    cluster: RayCluster, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each actor has a home folder of its own, as if it were on a machine that shares no files."""
    homes = tmp_path_factory.mktemp("homes")
    words = ["engine.ray.ship=true", f"engine.ray.setup=['export HOME={homes}/$$']", "run.steps=4"]
    there = meshctl(folder, "launch", "recipe.yaml", *options(cluster), *words)
    assert there.returncode == 0, there.stderr
    assert "note[MC640]: each node keeps its files of a checkpoint, below ~/meshctl-runs" in there.stderr
    found = rows_of(folder)
    [run] = folder.glob("runs/small/*")
    assert not list((run / "logs" / "two").glob("*"))
    own = sorted(homes.glob(f"*/meshctl-runs/small/{run.name}"))
    logs = [[log.name for log in (one / "logs" / "two").glob("[0-9].log")] for one in own]
    assert sorted(logs) == [["0.log"], ["1.log"], ["2.log"]]
    assert all((one / "checkpoints" / "step-4").is_dir() for one in own)
    assert is_clean(folder, cluster) and not list(Path(tempfile.gettempdir()).glob("meshctl-shipped-*"))
    shutil.rmtree(folder / "runs")
    here = meshctl(folder, "launch", "recipe.yaml", "--engine", "loopback", "run.steps=4")
    assert here.returncode == 0, here.stderr
    assert rows_of(folder) == found and len(found) == 4


# Without a cluster

DEVICES = """
cluster: {nodes: 2, devices_per_node: 4}
groups:
  train: {ranks: 6, device_type: cuda, gpus_per_worker: 2}
  judge: {ranks: 4, device_type: cpu}
  same: {ranks: 6, device_type: cuda, colocate: train}
components:
  rows: {_target_: parts.Maker, group: train}
  more: {_target_: parts.Maker, group: judge}
  third: {_target_: parts.Maker, group: same}
pipeline:
  batch: {call: rows.next, samples: 12}
  other: {call: more.next, samples: 12}
  again: {call: third.next, samples: 12}
run: {steps: 2}
"""


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    loaded = load("recipe.yaml", (), written(tmp_path, DEVICES))
    assert not loaded.report.errors
    return resolve(loaded.recipe, loaded.endpoints)


def test_a_bundle_has_the_workers_and_devices_of_its_node(plan: Plan) -> None:
    assert RayEngine().bundles(plan) == [{"CPU": 8.0, "GPU": 4.0}, {"CPU": 5.0, "GPU": 2.0}]
    engine = RayEngine(cpus=0, resources={"rack": 0.5})
    assert engine.bundles(plan) == [{"GPU": 4.0, "rack": 0.5}, {"GPU": 2.0, "rack": 0.5}]


def test_what_does_not_fit_is_named_with_what_there_is() -> None:
    total = {"CPU": 8.0, "GPU": 2.0, "memory": 9e9, "node:10.0.0.1": 1.0}
    machines = [Machine("a", total, total), Machine("b", total, {**total, "GPU": 0.0})]
    assert why_not([{"CPU": 4.0, "GPU": 4.0}, {"CPU": 4.0}], machines) == (
        "the Ray cluster cannot hold the plan: node 0 needs 4 CPU, 4 GPU, which no machine has; the cluster "
        "has 2 machines: 1 x 8 CPU, 2 GPU; 1 x 8 CPU, 2 GPU (free: 8 CPU, 0 GPU)"
    )
    assert "the nodes need 2 x 2 GPU; the cluster has" in why_not([{"GPU": 2.0}, {"GPU": 2.0}], machines)


def test_the_reason_of_a_death_is_one_sentence() -> None:
    error = RuntimeError(
        "The actor died.\n\tclass_name: A\nThe actor is dead because its node has died. More."
    )
    assert why_dead(error) == "its node has died"
    assert why_dead(RuntimeError("lost\nmore")) == "lost"


def test_without_ray_the_extra_is_named(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshctl.engines.ray.installed_version", lambda name: "")
    with pytest.raises(
        CannotStart, match=f"needs ray, which is not installed: {re.escape(install_command('ray'))}"
    ):
        RayEngine().preflight(plan, Start(()))
    monkeypatch.setattr("meshctl.engines.ray.installed_version", lambda name: "2.60.0")
    with pytest.raises(CannotStart, match="passes NO_SUCH_NAME through, which is not set here"):
        RayEngine(env=[("NO_SUCH_NAME", None)]).preflight(plan, Start(()))
