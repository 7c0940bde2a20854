"""A group restarts alone while a rank of another group waits for its peers in code of a component, and they wait
for the restarted group.

A sampler dies between two of its sends: one trainer has got all of a step, goes on and enters a collective, for
which the other one, which has got less, does not come before the group is back.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from processes import events_of, runs_in, written

from meshctl.run.directory import RunDir
from tests.command_server import Started, call
from tests.engines.test_commands import ENGINE, agents_of
from tests.engines.test_group_restart import parts, pids, results_of

pytestmark = pytest.mark.slow_suite

PARTS = '''
import os
import signal
import time
from pathlib import Path

import base
import torch
from meshctl import Batch, Component, endpoint
from meshctl.runtime.routes.channel import Channel

HERE = Path(__file__).parent
"""DEATH: the consumer and the step before which sampler:1 dies. ENTERED: trainer:0 waits for its peer."""
DEATH, ENTERED = HERE / "death", HERE / "entered"
send_parts = Channel._send_parts


def send_or_die(channel, *arguments):
    if DEATH.exists() and channel.route.source == "rollouts" and channel._me == 1:
        target, step = DEATH.read_text().split()
        if channel.route.target == target and channel._sending == int(step):
            while not ENTERED.exists():
                time.sleep(0.01)
            DEATH.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
    send_parts(channel, *arguments)


Channel._send_parts = send_or_die


class Prompts(base.Prompts):
    @endpoint
    def next(self, samples: range) -> Batch:
        victim = HERE / "receiver"  # it has no other input in this step, so it waits for this batch
        if victim.exists() and self.step == 3 and self.rank == 0:
            time.sleep(0.3)
            victim.unlink()
            os.kill(int((HERE / "sampler-1").read_text()), signal.SIGKILL)
        return super().next(samples)


class Sampler(base.Sampler):
    def setup(self):
        super().setup()
        (HERE / f"sampler-{self.rank}").write_text(str(os.getpid()))
        again = HERE / "again"
        if "MESHCTL_GENERATIONS" in os.environ and self.rank == 0 and again.exists():
            again.unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    @endpoint
    def sample(self, batch: Batch) -> Batch:
        found = super().sample(batch)
        return found.with_columns(score=found["answer"])


class Gathering(Component):
    """A component that meets its peers in one of its methods."""

    def __init__(self, meets_in: str = "") -> None:
        self.meets_in = meets_in

    def meet(self, place: str):
        if place == self.meets_in:
            if DEATH.exists() and self.step == int(DEATH.read_text().split()[1]) and self.rank == 0:
                ENTERED.touch()
            self.collective("dp").all_reduce(torch.ones(1))


class Copy(Gathering):
    def load_weights(self, stream):
        for _ in stream:
            self.meet("load")


class Actor(Gathering, base.Actor):
    def weights(self):
        self.meet("weights")
        return super().weights()

    @endpoint(collect="mean")
    def update(self, batch: Batch) -> dict[str, float]:
        self.meet("update")
        return super().update(batch)

    @endpoint(collect="mean")
    def audit(self, batch: Batch) -> dict[str, float]:
        return {"answer": float(batch["answer"].sum())}

    def state_dict(self):
        self.meet("save")
        return super().state_dict()
'''

RECIPE = """
groups:
  rollout: {ranks: 2, device_type: cpu, restartable: true}
  train: {ranks: 2, device_type: cpu}
components:
  prompts: {_target_: parts.Prompts, group: train}
  sampler: {_target_: parts.Sampler, group: rollout}
  actor: {_target_: parts.Actor, group: train, args: {meets_in: PLACE}}
  copy: {_target_: parts.Copy, group: train, args: {meets_in: PLACE}}
pipeline:
  batch: {call: prompts.next, samples: 6}
  rollouts: {call: sampler.sample, in: batch}
  metrics: {call: actor.update, in: rollouts}
  audit: {call: actor.audit, in: rollouts}
  publish: {sync: actor, to: sampler, max_staleness: LAG}
  copied: {sync: actor, to: copy}
run: {steps: 7, dir: runs, checkpoint: {every: 3}, restarts: {times: 5}}
"""


def launch(folder: Path) -> None:
    done = call(folder, "launch", "recipe.yaml", "name=run")
    assert done.returncode == 0, done


def launch_on_nodes(folder: Path) -> None:
    """Runs the recipe on three nodes, with TCP between them. Each trainer is alone on its node."""
    words = ["+cluster.nodes=3", "+groups.train.nodes=[0,1]", "+groups.rollout.nodes=[2]", *ENGINE]
    launch = Started(folder, "launch", "recipe.yaml", "name=run", *words)
    launch.until("set MESHCTL_TOKEN")
    agents = agents_of(runs_in(folder)[0].path, folder, Started)
    code, output = launch.end()
    assert code == 0, output
    for agent in agents:
        agent.end()


def launched(
    folder: Path,
    place: str = "none",
    death: str = "",
    again: bool = False,
    lag: int = 0,
    run: Callable[[Path], None] = launch,
) -> RunDir:
    """Runs the recipe, with a collective at a place. `death` is the consumer and the step before which a
    sampler dies, or `receiver`; `again` has its successor die, too."""
    written(folder, RECIPE.replace("PLACE", place).replace("LAG", str(lag)), PARTS, base=parts(step_s=0.0))
    if death:
        (folder / ("receiver" if death == "receiver" else "death")).write_text(death)
    if again:
        (folder / "again").touch()
    run(folder)
    assert not {"receiver", "death", "again"} & {each.name for each in folder.iterdir()}, "nobody died"
    [made] = runs_in(folder)
    return made


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], list[dict[str, Any]]]:
    """Returns the result of an uninterrupted run with a lag."""
    found: dict[int, list[dict[str, Any]]] = {}

    def of(lag: int) -> list[dict[str, Any]]:
        if lag not in found:
            found[lag] = results_of(launched(tmp_path_factory.mktemp("whole"), lag=lag))
        return found[lag]

    return of


def check(run: RunDir, expected: list[dict[str, Any]], generations: int = 1) -> None:
    """Compares a run with an uninterrupted one, of which one group alone has restarted."""
    restarted = [event.value for event in events_of(run, "restarted")]
    assert [one.get("group") for one in restarted] == ["rollout"] * generations, restarted
    assert len(pids(run, "train")) == 2
    assert results_of(run) == expected


@pytest.mark.parametrize(
    ("place", "death"),
    [("update", "metrics 2"), ("weights", "audit 2"), ("load", "audit 2"), ("save", "audit 3")],
    ids=["endpoint", "weights", "load_weights", "checkpoint"],
)
def test_a_rank_waits_for_its_peer(tmp_path: Path, expected: Any, place: str, death: str) -> None:
    check(launched(tmp_path, place, death), expected(0))


def test_a_rank_waits_for_its_peer_on_another_node(tmp_path: Path, expected: Any) -> None:
    check(launched(tmp_path, "update", "metrics 2", run=launch_on_nodes), expected(0))


def test_the_successor_of_the_group_dies_meanwhile(tmp_path: Path, expected: Any) -> None:
    check(launched(tmp_path, "update", "metrics 4", again=True), expected(0), generations=2)


@pytest.mark.parametrize("death", ["metrics 2", "metrics 5"])
def test_weights_of_earlier_steps_come_again(tmp_path: Path, expected: Any, death: str) -> None:
    check(launched(tmp_path, "update", death, lag=2), expected(2))


@pytest.mark.parametrize("lag", [0, 2])
def test_a_worker_dies_while_it_waits_for_a_batch(tmp_path: Path, expected: Any, lag: int) -> None:
    check(launched(tmp_path, "update", "receiver", lag=lag), expected(lag))
