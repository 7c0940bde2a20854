"""Where the time of a real run goes, in phases whose bottleneck is known.

In each phase of the run one stage, the sync or two stages are slow, and in the phase after it they take no
time. So what the run would gain without them is compared with what it has gained. These are measured times,
which other tests beside this one change: `make nightly` runs it alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

import meshctl
from meshctl.run.events import Follower
from meshctl.view.times import TimeUse, WorkerTimes, time_use
from tests.command_server import Done, call

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

STEPS, SETTLED = 7, 3
"""The steps of a phase, and those of them until it has no more effects of the phase before."""
SLOW_S = 0.25
USUAL_S = {"batch": 0.01, "rollouts": 0.04, "scored": 0.03, "metrics": 0.06, "publish": 0.01}
BOTTLENECKS = {
    "scored": ("judge", ("rollout", "train")),
    "metrics": ("train", ("rollout", "judge")),  # one waits for the judge, which waits for the trainer
    "batch": ("rollout", ("train",)),
    "rollouts": ("rollout", ("train", "judge")),
    "publish": ("train", ()),
}
"""Slow stage -> its group, and groups that wait for it."""
PHASES = [{**USUAL_S, slow: seconds} for slow in BOTTLENECKS for seconds in (SLOW_S, 0.0)]
PHASES += [{**USUAL_S, "scored": SLOW_S, "metrics": SLOW_S}]
"""The last one has two stages that take equally long."""

PARTS = """
import json
import time
from pathlib import Path

import torch
from meshctl import Batch, Component, endpoint

PHASES, STEPS = json.loads((Path(__file__).parent / "phases.json").read_text())


class Part(Component):
    def rest(self, stage):
        time.sleep(PHASES[min((self.step - 1) // STEPS, len(PHASES) - 1)][stage])

    @endpoint
    def next(self, samples: range) -> Batch:
        self.rest("batch")
        return Batch({"x": torch.ones(len(samples), 4)})

    @endpoint
    def sample(self, batch: Batch) -> Batch:
        self.rest("rollouts")
        return batch

    @endpoint
    def score(self, batch: Batch) -> Batch:
        self.rest("scored")
        return batch

    @endpoint(collect="mean")
    def update(self, batch: Batch) -> dict[str, float]:
        self.rest("metrics")
        return {"count": float(len(batch))}

    def weights(self):
        yield "weight", torch.ones(16)

    def load_weights(self, stream):
        if self.step:
            self.rest("publish")
        dict(stream)
"""
RECIPE = f"""
name: known
groups:
  rollout: {{ranks: 2, device_type: cpu}}
  judge: {{ranks: 1, device_type: cpu}}
  train: {{ranks: 1, device_type: cpu}}
components:
  prompts: {{_target_: parts.Part, group: rollout}}
  sampler: {{_target_: parts.Part, group: rollout}}
  judge: {{_target_: parts.Part, group: judge}}
  actor: {{_target_: parts.Part, group: train}}
pipeline:
  batch: {{call: prompts.next, samples: 8}}
  rollouts: {{call: sampler.sample, in: batch}}
  scored: {{call: judge.score, in: rollouts}}
  metrics: {{call: actor.update, in: scored}}
  publish: {{sync: actor, to: sampler, max_staleness: 2}}
run: {{steps: {STEPS * len(PHASES)}, dir: runs}}
"""


@dataclass(frozen=True)
class Known:
    folder: Path
    done: Done
    uses: list[TimeUse]
    """Where the time goes, by phase."""


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Known:
    folder = tmp_path_factory.mktemp("known")
    (folder / "parts.py").write_text(PARTS)
    (folder / "recipe.yaml").write_text(RECIPE)
    (folder / "phases.json").write_text(json.dumps([PHASES, STEPS]))
    done = call(folder, "launch", "recipe.yaml")
    assert done.returncode == 0, done.stderr
    (path,) = (folder / "runs" / "known").iterdir()
    return Known(folder, done, uses_of(path))


def uses_of(path: Path) -> list[TimeUse]:
    run = meshctl.open_run(path)
    times: list[dict[str, dict[int, WorkerTimes]]] = [{} for _ in PHASES]
    for event in Follower(path / "events").in_order():
        phase, number = divmod((event.step or 0) - 1, STEPS)
        if event.name == "step" and number >= SETTLED:
            ranks = times[phase].setdefault(event.group, {})
            ranks.setdefault(event.rank or 0, WorkerTimes()).add(event.value)
    found = [time_use(run.plan, workers) for workers in times]
    assert None not in found
    return [use for use in found if use]


@pytest.mark.parametrize("slow", BOTTLENECKS)
def test_the_slow_stage_bounds_the_run_and_the_gain_without_it_is_right(slow: str, known: Known) -> None:
    phase = 2 * [*BOTTLENECKS].index(slow)
    use, after = known.uses[phase], known.uses[phase + 1]
    bound = use.bound
    assert bound and (bound.kind, bound.name) == ("sync" if slow == "publish" else "stage", slow), use
    bounding, waiting = BOTTLENECKS[slow]
    assert bound.group == bounding
    assert bound.seconds == pytest.approx(after.seconds, rel=0.35, abs=0.04), (use, after)
    assert bound.gain == pytest.approx(1 - after.seconds / use.seconds, abs=0.2)
    assert after.bound and after.bound.name != slow
    for group in waiting:
        assert use.waits_for(group) == (bounding, slow) and use.groups[group].idle > 0.4
        busy = use.groups[bounding]
        assert busy.share(busy.busy) > 0.6 and busy.idle < 0.3
    for one in use.groups.values():
        assert one.busy + one.moving + one.waiting + one.rest == pytest.approx(one.seconds, rel=0.02)


def test_of_two_equal_stages_none_bounds_the_run_alone(known: Known) -> None:
    bound = known.uses[-1].bound
    assert bound and bound.next and {bound.name, bound.next.name} == {"scored", "metrics"}
    assert bound.gain < 0.25 < bound.next.gain


def test_what_a_user_sees(known: Known) -> None:
    lines = known.done.stderr.splitlines() + known.done.stdout.splitlines()
    steps = [line for line in lines if line.startswith("step ")]
    assert any(" waits " in line and " for " in line for line in steps)
    assert max(map(len, steps)) <= 80
    assert any("bounds the run" in line or "bounds the run alone" in line for line in lines)
    assert "  mean staleness of weights: `publish` 2 steps" in lines
    status = json.loads(call(known.folder, "status", "-f", "json").stdout)["time"]
    (path,) = (known.folder / "runs" / "known").iterdir()
    use = meshctl.open_run(path).time_use
    assert use and status == json.loads(json.dumps(use.to_data()))
    assert status["steps"] == STEPS * len(PHASES) - 1
