"""Runs of several nodes that lose one for good, go on without it, and have it again later. The metrics of each step
are those of a run that loses nothing."""

from __future__ import annotations

import os
import re
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from processes import Start, rows_of, written

from tests.command_server import call
from tests.engines.namespaces import Hosts
from tests.engines.ray_cluster import ray_cluster
from tests.engines.slurm_cluster import Cluster as Machines
from tests.engines.slurm_cluster import wait_for
from tests.engines.test_commands import ENGINE, agents_of
from tests.engines.test_elastic import PARTS
from tests.engines.test_ray import needs_ray, options
from tests.engines.test_slurm import Slurmed, needs_slurm, slurm
from tests.engines.test_ssh import LEASE, hosts, is_empty, on_hosts
from tests.hang import HANG_S

__all__ = ["hosts", "slurm"]

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


def compared(folder: Path, run: Path, *words: str) -> int:
    """Compares a run with one on this machine that loses nothing. Returns its last step."""
    rows = rows_of(run)
    assert [row["step"] for row in rows] == [*range(1, len(rows) + 1)]
    words = ("cluster.nodes=1", "name=whole", f"run.steps={len(rows)}", *words)
    fast = "components.learner._target_=parts.Learner"
    done = call(folder, "launch", "recipe.yaml", "--engine", "local", "run.dir=here", fast, *words)
    assert done.returncode == 0, done.stderr
    [whole] = (folder / "here" / "whole").iterdir()
    for own, other in zip(rows, rows_of(whole), strict=True):
        assert own["update.loss"] == pytest.approx(other["update.loss"], rel=1e-6)
    return len(rows)


@on_hosts
def test_a_host_that_is_lost_and_comes_back(hosts: Hosts, tmp_path: Path, start: Start) -> None:
    written(tmp_path, RECIPE, PARTS, slow=SLOW)
    launch = start(tmp_path, "launch", "recipe.yaml", *hosts.options, LEASE)
    launch.until("^checkpoint of step 10")
    hosts.link(1, "down")
    try:
        launch.until(r"^restarted after step \d+, learn with 2 of 3 workers: ")
        launch.until("^checkpoint of step")
    finally:
        hosts.link(1, "up")
    launch.until(r"^restarted after step \d+, learn with 3 workers again: lost workers are back")
    launch.until("^checkpoint of step")
    launch.signal(signal.SIGINT)
    code, output = launch.end()
    assert code == 130, output
    [grown] = re.findall(r"^restarted after step (\d+), learn with 3", output, re.M)
    [folder] = (tmp_path / "runs" / "nodes").iterdir()
    assert compared(tmp_path, folder) > int(grown)
    assert is_empty(hosts, 10)


@pytest.mark.slow_suite
def test_a_node_that_comes_back_and_fails_its_examination_is_refused(tmp_path: Path, start: Start) -> None:
    """Nodes are commands that the test starts. The layout is dp, and a program runs beside the elastic group."""
    program = "  watch: {ranks: 1, device_type: cpu, nodes: 0, program: watch.py}\n"
    recipe = RECIPE.replace("groups:\n", f"groups:\n{program}").replace("fsdp_size", "dp_size")
    watch = "import time\nwhile True:\n    time.sleep(0.05)\n"
    written(tmp_path, recipe, PARTS, slow=SLOW, watch=watch)
    launch = start(tmp_path, "launch", "recipe.yaml", *ENGINE, "engine.commands.join_limit=20")
    found = launch.until(r"--plan (\S+)/plan.json --node 2 --head (\S+)")
    run, head = Path(found[1]), found[2]
    launch.until("set MESHCTL_TOKEN")
    agents = agents_of(run, tmp_path, start)
    launch.until("^checkpoint of step 10")
    agents[2].kill()
    launch.until(r"^restarted after step \d+, learn with 2 of 3 workers: ")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("plan.json", "start.json", ".token"):
        shutil.copy(run / name, elsewhere)
    for folder, expected in (
        (elsewhere, r"node 2 \(\S+\): run directory: .*another file system; the run goes on without it; "),
        (run, r"^restarted after step \d+, learn with 3 workers again: lost workers are back"),
    ):
        words = ("--plan", str(folder / "plan.json"), "--node", "2", "--head", head)
        start(tmp_path, "agent", *words)
        launch.until(expected)
    launch.until("^checkpoint of step")
    launch.signal(signal.SIGINT)
    code, output = launch.end()
    assert code == 130 and output.count("another file system") == 1, output
    compared(tmp_path, run, "~groups.watch")


@needs_slurm
@pytest.mark.slow_suite
def test_a_job_goes_on_without_a_node_whose_slurmd_is_gone(slurm: Machines, tmp_path: Path) -> None:
    written(tmp_path, RECIPE, PARTS, slow=SLOW)
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
        wait_for(lambda: '"sizes":{"learn":[3,2]}' in run.launcher_events(), "two nodes", HANG_S)
        before = len(run.rows())
        run.wait_for_step(before + 15)
        slurm.start_node("n3")
        wait_for(lambda: '"sizes":{"learn":[2,3]}' in run.launcher_events(), "three nodes", HANG_S)
        run.wait_for_step(len(run.rows()) + 5)
        assert run.meshctl("stop").returncode == 0
        run.ended()
        compared(tmp_path, run.path)
    finally:
        run.close()


@needs_ray
@pytest.mark.slow_suite
def test_a_run_in_a_ray_cluster_that_loses_a_machine(tmp_path: Path, start: Start) -> None:
    """The cluster has no other machine for the bundle, until one is added. Ray chooses the node that the lost
    machine has, so both groups are on all nodes."""
    everywhere = RECIPE.replace("{ranks: 1, device_type: cpu, nodes: 0}", "{ranks: 3, device_type: cpu}")
    everywhere = everywhere.replace("learn: {}}", "learn: {}, read: {}}")
    written(tmp_path, everywhere, PARTS, slow=SLOW)
    with ray_cluster(3) as cluster:
        limits = ("engine.ray.join_limit=90", "engine.ray.lease=6")
        launch = start(tmp_path, "launch", "recipe.yaml", *options(cluster), *limits)
        launch.until("^checkpoint of step 10")
        cluster.kill_machine()
        launch.until(r"^restarted after step \d+, read with 2 of 3 workers, learn with 2 of 3 workers: ")
        launch.until("^checkpoint of step")
        cluster.add()
        launch.until(r"^restarted after step \d+, read with 3 workers again, learn with 3 workers again: ")
        launch.until("^checkpoint of step")
        launch.signal(signal.SIGINT)
        code, output = launch.end()
        assert code == 130, output
    [folder] = (tmp_path / "runs" / "nodes").iterdir()
    compared(tmp_path, folder)
