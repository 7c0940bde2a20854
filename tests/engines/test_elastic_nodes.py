"""Runs of several nodes that lose one for good, go on without it, and have it again later. The metrics of each step
are those of a run that loses nothing."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from tests.command_server import call
from tests.engines.namespaces import Hosts
from tests.engines.test_elastic import PARTS
from tests.engines.test_ssh import LEASE, LIMIT_S, hosts, is_empty, launches, needs_hosts, started, until

__all__ = ["hosts", "launches"]

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
