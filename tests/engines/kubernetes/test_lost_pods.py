"""Pods that are lost while a run goes on (`run.restarts`, `run.elastic`), in the cluster of `cluster.py`: the Job of a
lost pod makes another one."""

from __future__ import annotations

import signal
import subprocess
from typing import Any

import pytest

from meshctl.run.directory import RunDir
from tests.engines import test_group_restart as group_restart
from tests.engines.kubernetes.cluster import MISSING
from tests.engines.kubernetes.test_run import World, world
from tests.engines.processes import LONG, events_of, rows_of, written
from tests.engines.test_elastic import PARTS
from tests.engines.test_elastic_nodes import RECIPE, SLOW, compared
from tests.engines.test_group_restart import EACH_ON_A_NODE, check_nodes, launched

__all__ = ["world"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.slow_suite,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}"),
]


@pytest.fixture(autouse=True)
def patience(world: World) -> None:
    """Lets pods of a busy machine be slow."""
    short = ("run.grace=", "engine.jobset.lease=")
    world.options = [one for one in world.options if not one.startswith(short)]
    world.options += ["run.grace=60", "engine.jobset.lease=15"]


def launcher_events(world: World, name: str) -> list[dict[str, Any]]:
    """Returns the values of the events of the head that have a name."""
    return [event.value for event in events_of(world.folder / "volume", name)]


def delete(world: World, *words: str) -> None:
    subprocess.run(["kubectl", "delete", *words, "--wait=false"], env=world.environ, check=True)


def until_sizes(world: World, sizes: list[int]) -> None:
    world.until(
        lambda: (
            sizes in [event.get("sizes", {}).get("learn") for event in launcher_events(world, "restarted")]
        )
    )


def until_pods_succeed(world: World) -> None:
    """Waits for the end of all pods. Each has exited with 0, or the Job has replaced it."""
    pods = [pod for pod in world.cluster.pods if not pod.is_replaced]
    world.until(lambda: all(pod.is_over for pod in pods))
    assert [pod.exit_code for pod in pods] == [0] * len(pods)


def test_a_deleted_pod_is_done_without_until_another_one_has_room(world: World) -> None:
    """The workers save before their node leaves, so no step is lost, and no restart is counted."""
    written(world.folder, RECIPE, PARTS, slow=SLOW)
    launch = world.launch("engine.jobset.join_limit=60")
    world.until_step(12)
    world.cluster.is_holding = True
    delete(world, "pod", world.cluster.pod("nodes1", 1).name)
    until_sizes(world, [3, 2])
    leaving, without = launcher_events(world, "restarted")
    assert leaving["cause"] == "the scheduler ends node 2" and leaving["left"] == without["left"] == 5
    world.until_step(len(rows_of(world.run_of_pods)) + 3)
    world.cluster.is_holding = False
    until_sizes(world, [2, 3])
    world.until_step(len(rows_of(world.run_of_pods)) + 3)
    launch.signal(signal.SIGINT)
    code, output = launch.end()
    assert code == 130, output
    assert not world.cluster.failures, "a pod that its node has left counts for no limit of its Job"
    compared(world.folder, world.run_of_pods)


def test_a_deleted_pod_is_replaced(world: World) -> None:
    """Without `run.elastic` the run waits for the other pod."""
    launch = world.launch("components.trainer.args.mood=slow", "run.steps=60", "run.restarts=1")
    world.until_step(10)
    old = world.cluster.pod("nodes0", 1)
    delete(world, "pod", old.name)
    code, output = launch.end()
    assert (
        code == 0 and "node 1 has received SIGTERM from its scheduler: the run goes on without it" in output
    ), output
    until_pods_succeed(world)
    assert old.exit_code == 75 and world.cluster.pod("nodes0", 1).name != old.name
    assert [event["left"] for event in launcher_events(world, "restarted")] == [1]
    rows = rows_of(world.run_of_pods)
    assert [row["step"] for row in rows] == [*range(1, 61)]
    assert [row["sum.seen"] for row in rows] == [2.0 * step for step in range(1, 61)]


def test_a_deleted_job_set_ends_the_run_in_order(world: World) -> None:
    """Its pods are asked to end one after another, that of the head last."""
    launch = world.launch(*LONG, "run.restarts=3")
    world.until_step(5)
    [name] = [name for kind, name in world.cluster.objects if kind == "jobsets"]
    delete(world, "jobset", name)
    world.until(lambda: launcher_events(world, "over"))
    [over] = launcher_events(world, "over")
    assert over["code"] == 143, over
    launch.end()
    steps = len(rows_of(world.run_of_pods))
    assert (world.run_of_pods / "checkpoints" / f"step-{steps}" / "checkpoint.manifest.json").exists()


def test_a_group_in_pods_of_its_own_restarts_alone(world: World) -> None:
    written(world.folder, group_restart.RECIPE, group_restart.parts())
    whole, done = launched(world.folder, "whole")
    assert done.returncode == 0, done
    for death in ("call-1-4", "node-0-8"):
        (world.folder / "volume" / f"die-pods-{death}").touch()
    launch = world.launch("name=pods", *EACH_ON_A_NODE)
    code, output = launch.end()
    assert code == 0, output
    until_pods_succeed(world)
    check_nodes(RunDir(world.run_of_pods), whole)
