"""A run on two nodes, with an agent per group and node, as on two machines, with all nodes on this
machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from processes import Launch, plan_of

from meshctl.plan.model import Cluster, Component, Input, Plan, Stage
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import Route

COMPONENTS = """
import json, os, threading
import torch
from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.component import Component, endpoint


class Maker(Component):
    @endpoint
    def next(self, samples: range) -> Batch:
        return Batch({"x": torch.tensor(samples), "wide": torch.tensor(samples)[:, None].expand(-1, 10_000).clone()})


class Trainer(Component):
    @endpoint
    def take(self, batch: Batch) -> None:
        ways = sorted({name for name in ("tcp-receive", "gloo") if name in {thread.name for thread in threading.enumerate()}})
        said = [self.step, batch["x"].tolist(), batch["wide"].sum(1).tolist(), ways]
        with open(os.path.join(os.environ["MESHCTL_RUN_DIR"], f"taken-{self.rank}.jsonl"), "a") as file:
            file.write(json.dumps(said) + "\\n")
"""
EXEC = (("PYTHONHASHSEED", "7"),)
"""A variable that is read at import. It makes workers start by exec, instead of as forks of the driver."""


def two_nodes(folder: Path) -> Plan:
    """Returns a plan with a source on the first of two nodes, and two data ranks of two ranks each on the
    second."""
    (folder / "pipes.py").write_text(COMPONENTS)
    placed: Plan = plan_of(folder, ("make", 2), ("take", 4), env=EXEC)
    groups = [
        replace(group, device_type="mps", devices=((4 * node, 4 * node + group.workers),))
        for node, group in enumerate(placed.groups)
    ]
    components = (
        Component("maker", "pipes.Maker", "make", DeviceMesh.from_sizes(dp_size=2)),
        Component("trainer", "pipes.Trainer", "take", DeviceMesh.from_sizes(dp_size=2, tp_size=2)),
    )
    stages = (
        Stage("made", "call", "maker", "next", samples=8),
        Stage("taken", "call", "trainer", "take", (Input(("made",)),)),
    )
    route = Route("made -> taken", "made", "taken")
    run = replace(placed.run, checkpoint=None)
    return replace(
        placed,
        cluster=Cluster.of(2, mps=4),
        groups=tuple(groups),
        components=components,
        stages=stages,
        routes=(route,),
        run=run,
    )


@pytest.mark.slow_suite
def test_samples_go_from_node_to_node(launch: Launch, tmp_path: Path) -> None:
    run = launch(two_nodes(tmp_path))
    assert run.end() == 0, run.output()
    assert len(run.events("done")) == 6
    for rank in range(4):
        record = [
            json.loads(line) for line in (run.run.path / f"taken-{rank}.jsonl").read_text().splitlines()
        ]
        first = 4 * (rank // 2)
        rows = [[8 * step + first + row for row in range(4)] for step in range(3)]
        assert [row[:3] for row in record] == [
            [step, rows[step - 1], [10_000 * x for x in rows[step - 1]]] for step in (1, 2, 3)
        ]
        assert {tuple(row[3]) for row in record} == {("tcp-receive",)}
