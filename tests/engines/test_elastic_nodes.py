"""Runs of several nodes that lose one for good, go on without it, and have it again later. The metrics of each step
are those of a run that loses nothing."""

from __future__ import annotations

import json
import os
import re
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from tests.command_server import call
from tests.engines.namespaces import Hosts
from tests.engines.ray_cluster import ray_cluster
from tests.engines.slurm_cluster import Cluster as Machines
from tests.engines.slurm_cluster import wait_for
from tests.engines.test_elastic import PARTS
from tests.engines.test_ray import Launch, needs_ray
from tests.engines.test_slurm import Slurmed, needs_slurm, slurm
from tests.engines.test_ssh import LEASE, LIMIT_S, hosts, is_empty, launches, needs_hosts, started, until

__all__ = ["hosts", "launches", "slurm"]

RECIPE = """
name: nodes
cluster: {nodes: 3}
groups:
  read: {ranks: 1, device_type: cpu, nodes: 0}
  learn: {ranks: 3, device_type: cpu}
components:
  reader: {_target_: parts.Reader, group: read}
  learner: {_target_: slow.Learner, group: learn, parallel: {fsdp_size: auto}}
pipeline:
  batch: {call: reader.next, samples: 12}
  update: {call: learner.update, in: batch}
run: {dir: runs, steps: 100000, checkpoint: {every: 10, keep: 3}, restarts: 5, elastic: {learn: {}}}
"""
SLOW = """
import time

import parts
from meshctl import Batch, endpoint


class Learner(parts.Learner):
    @endpoint(collect="sum")
    def update(self, batch: Batch) -> dict[str, float]:
        time.sleep(0.1)
        return super().update(batch)
"""


@pytest.mark.slow
@pytest.mark.slow_suite
@pytest.mark.namespaces
@needs_hosts
def test_a_host_that_is_lost_and_comes_back(hosts: Hosts, tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    launch = started(tmp_path, "recipe.yaml", *hosts.options, LEASE)
    until(launch, "^checkpoint of step 10")
    hosts.link(1, "down")
    try:
        until(launch, r"^restarted after step \d+, learn with 2 of 3 workers: ")
        until(launch, "^checkpoint of step")
    finally:
        hosts.link(1, "up")
    back = until(launch, r"^restarted after step \d+, learn with 3 workers again: lost workers are back")
    until(launch, "^checkpoint of step")
    launch.send_signal(signal.SIGINT)
    output, _ = launch.communicate(timeout=LIMIT_S)
    assert launch.returncode == 130, output
    [grown] = re.findall(r"^restarted after step (\d+), learn with 3", back, re.M)
    [folder] = (tmp_path / "runs" / "nodes").iterdir()
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    last = len(rows)
    assert [row["step"] for row in rows] == [*range(1, last + 1)] and last > int(grown)
    words = (
        "cluster.nodes=1",
        "name=whole",
        f"run.steps={last}",
        "components.learner._target_=parts.Learner",
    )
    done = call(tmp_path, "launch", "recipe.yaml", *words)
    assert done.returncode == 0, done.stderr
    [folder] = (tmp_path / "runs" / "whole").iterdir()
    others = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for own, other in zip(rows, others, strict=True):
        assert own["update.loss"] == pytest.approx(other["update.loss"], rel=1e-6)
    assert is_empty(hosts, 10)


@needs_slurm
@pytest.mark.slow
@pytest.mark.slow_suite
def test_a_job_goes_on_without_a_node_whose_slurmd_is_gone(slurm: Machines, tmp_path: Path) -> None:
    for name, text in (("parts.py", PARTS), ("slow.py", SLOW), ("recipe.yaml", RECIPE)):
        (tmp_path / name).write_text(text)
    run = Slurmed(slurm, tmp_path)
    try:
        options = ("engine.slurm.lease=6", "engine.slurm.join_limit=20")
        done = run.meshctl("launch", "recipe.yaml", "--detach", "--engine", "slurm", *options)
        assert done.returncode == 0, done.stderr
        run.wait_for_step(12)
        slurm.kill("n3")
        for pid in run.processes("n3"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_for(lambda: '"sizes":{"learn":[3,2]}' in run.launcher_events(), "two nodes", LIMIT_S)
        before = len(run.rows())
        run.wait_for_step(before + 15)
        slurm.start_node("n3")
        wait_for(lambda: '"sizes":{"learn":[2,3]}' in run.launcher_events(), "three nodes", LIMIT_S)
        run.wait_for_step(len(run.rows()) + 5)
        assert run.meshctl("stop").returncode == 0
        run.ended()
        assert [row["step"] for row in run.rows()] == list(range(1, len(run.rows()) + 1))
    finally:
        run.close()


@needs_ray
@pytest.mark.slow
@pytest.mark.slow_suite
def test_a_run_in_a_ray_cluster_that_loses_a_machine(tmp_path: Path) -> None:
    """The cluster has no other machine for the bundle, until one is added. Ray chooses the node that the lost
    machine has, so both groups are on all nodes."""
    everywhere = RECIPE.replace("{ranks: 1, device_type: cpu, nodes: 0}", "{ranks: 3, device_type: cpu}")
    everywhere = everywhere.replace("learn: {}}", "learn: {}, read: {}}")
    for name, text in (("parts.py", PARTS), ("slow.py", SLOW), ("recipe.yaml", everywhere)):
        (tmp_path / name).write_text(text)
    with (
        ray_cluster(3) as cluster,
        Launch(tmp_path, cluster, "engine.ray.join_limit=90", "engine.ray.lease=6") as launch,
    ):
        launch.until("^checkpoint of step 10")
        cluster.kill_machine()
        launch.until(r"^restarted after step \d+, read with 2 of 3 workers, learn with 2 of 3 workers: ")
        launch.until("^checkpoint of step")
        cluster.add()
        launch.until(r"^restarted after step \d+, read with 3 workers again, learn with 3 workers again: ")
        launch.until("^checkpoint of step")
        launch.send_signal(signal.SIGINT)
        assert launch.end() == 130, launch.output
    [folder] = (tmp_path / "runs" / "nodes").iterdir()
    steps = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert steps == [*range(1, len(steps) + 1)]
