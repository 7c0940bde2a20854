"""A group on a node of its own restarts alone on each engine, also in a job. When its node dies, the whole run starts
again: the node, too."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import Start, events_of, runs_in

from meshctl.run.directory import RunDir
from tests.engines.ray_cluster import ray_cluster
from tests.engines.slurm_cluster import Cluster as Machines
from tests.engines.test_commands import ENGINE, agents_of
from tests.engines.test_group_restart import (
    EACH_ON_A_NODE,
    check_nodes,
    compare,
    folder,
    launched,
    whole,
)
from tests.engines.test_ray import needs_ray, options
from tests.engines.test_slurm import Slurmed, needs_slurm, slurm

__all__ = ["folder", "slurm", "whole"]
pytestmark = [pytest.mark.slow_suite, pytest.mark.timeout(900)]
DEATHS = ("call-1-4", "node-0-8")


def test_on_loopback(folder: Path, whole: RunDir) -> None:
    words = [*EACH_ON_A_NODE, "--engine", "loopback"]
    check_nodes(compare(folder, whole, "loopback", *DEATHS, words=words), whole)


def test_the_death_of_a_node_is_the_cause_where_no_restart_is_left(folder: Path) -> None:
    """The restart of the group counts as one."""
    words = [*EACH_ON_A_NODE, "--engine", "loopback", "run.restarts.times=1"]
    run, done = launched(folder, "once", *words, deaths=DEATHS)
    assert done.returncode == 5 and "error: the node process of node 1: killed by SIGKILL" in done.stderr, (
        done
    )
    assert [event.value["left"] for event in events_of(run, "restarted")] == [0]


def test_a_node_whose_group_has_restarted_alone_has_not_failed(folder: Path, start: Start) -> None:
    (folder / "die-printed-call-1-4").touch()
    launch = start(folder, "launch", "recipe.yaml", "name=printed", *EACH_ON_A_NODE, *ENGINE)
    path = Path(launch.until(r"--plan (\S+)/plan.json --node 2")[1])
    nodes = agents_of(path, folder, start)
    code, output = launch.end()
    assert [code, *(node.end()[0] for node in nodes)] == [0, 0, 0, 0], output
    assert [event.value["group"] for event in events_of(path, "restarted")] == ["rollout"]


@needs_slurm
def test_on_slurm(folder: Path, whole: RunDir, slurm: Machines) -> None:
    for death in DEATHS:
        (folder / f"die-slurm-{death}").touch()
    slurmed = Slurmed(slurm, folder)
    try:
        engine = ("--engine", "slurm", "engine.slurm.lease=6")
        done = slurmed.meshctl("launch", "recipe.yaml", "name=slurm", *EACH_ON_A_NODE, *engine)
        assert done.returncode == 0, done.stdout + done.stderr
        check_nodes(*runs_in(folder, "slurm"), whole)
    finally:
        slurmed.close()


@needs_ray
def test_on_ray(folder: Path, whole: RunDir, start: Start) -> None:
    """In place of a node, an actor of Ray is killed."""
    for death in ("call-1-4", "actor-0-8"):
        (folder / f"die-ray-{death}").touch()
    with ray_cluster(3) as cluster:
        words = ("launch", "recipe.yaml", *options(cluster), "name=ray", *EACH_ON_A_NODE)
        code, output = start(folder, *words).end()
        assert code == 0, output
    check_nodes(*runs_in(folder, "ray"), whole)
