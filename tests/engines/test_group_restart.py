"""A group of components without state restarts alone: the other groups keep their processes, and the result is
that of an uninterrupted run, digit for digit."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from processes import alive, events_of, rows_of, runs_in, written

from benchmarks.group_restart import survived
from meshctl.run.directory import RunDir
from tests.command_server import Done, call
from tests.engines.namespaces import Hosts
from tests.engines.test_ssh import hosts, on_hosts

__all__ = ["hosts"]

PARTS = '''
import json
import os
import signal
import time

import torch
from meshctl import Batch, Component, endpoint


class Prompts(Component):
    def __len__(self):
        return 1 << 20

    @endpoint
    def next(self, samples: range) -> Batch:
        return Batch({"x": torch.rand(len(samples)) + torch.tensor(samples)})


def parent_of(pid):
    with open(f"/proc/{pid}/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[1])


def dies_once(component, place):  # "load": the first weights of a process, once it has restarted
    """Kills this process if a file asks for it, at this place and step on this rank; or its node, or Ray's actor."""
    wanted = component.run_dir.parents[2] / f"die-{component.run_dir.parent.name}-{place}-{component.rank}"
    for file in wanted.parent.glob(wanted.name + "-*"):
        if (component.step or 0) >= int(file.name.rpartition("-")[2]) and file.exists():
            file.unlink(missing_ok=True)
            node = os.getppid()
            if place == "agreement":  # a checkpoint is requested from the launcher, the parent of the node
                os.kill(parent_of(node), signal.SIGUSR1)
            victims = {"node": node, "actor": parent_of(node)}
            os.kill(victims.get(place, os.getpid()), signal.SIGKILL)


class Sampler(Component):
    def setup(self):
        self.weight, self.called = torch.zeros(300, dtype=torch.float64), False
        time.sleep(SETUP_S)
        if "MESHCTL_GENERATIONS" in os.environ:
            dies_once(self, "setup")

    def weights(self):
        yield "weight", self.weight

    def load_weights(self, stream):
        dies_once(self, "sync" if self.called else "load")
        for _, tensor in stream:
            self.weight = tensor.clone()

    @endpoint
    def sample(self, batch: Batch) -> Batch:
        self.called = True
        dies_once(self, "call")
        for place in ("agreement", "node", "actor"):
            dies_once(self, place)
        self.log({"seen": float(batch["x"].sum())})
        noise = torch.rand(len(batch), dtype=torch.float64)
        many = batch.repeat(2)
        answer = torch.sin(self.weight[:1] + many["x"].double()) + noise.repeat_interleave(2)
        return many.with_columns(answer=answer, wide=torch.ones(len(many), WIDE))


class Judge(Component):
    def setup(self):
        time.sleep(SETUP_S)

    @endpoint
    def score(self, batch: Batch) -> Batch:
        dies_once(self, "judge")
        return Batch({"score": batch["answer"] * 2}, ids=batch.ids)


class Actor(Component):
    def setup(self):
        self.weight, self.seen = torch.zeros(300, dtype=torch.float64), []
        time.sleep(SETUP_S)

    def weights(self):
        yield "weight", self.weight

    @endpoint(collect="mean")
    def update(self, batch: Batch) -> dict[str, float]:
        time.sleep(STEP_S)
        step = torch.sin(self.weight + batch["answer"].sum() + batch["score"].sum())
        self.weight = self.weight + self.collective("dp").all_reduce(step)
        self.seen += [str(id) for id in batch.ids.tolist()]
        return {"norm": float(self.weight.norm())}

    def state_dict(self):
        return {"weight": self.weight, "seen": [self.rank, list(self.seen)]}

    def load_state_dict(self, state):
        self.weight, self.seen = state["weight"], list(state["seen"][1])

    def close(self):
        result = {"weight": self.weight.tolist(), "seen": self.seen}
        (self.run_dir / f"result-{self.rank}.json").write_text(json.dumps(result))
'''

RECIPE = """
groups:
  rollout: {ranks: 2, device_type: cpu, restartable: true}
  judge: {ranks: 1, device_type: cpu}
  train: {ranks: 2, device_type: cpu}
components:
  prompts: {_target_: parts.Prompts, group: train}
  sampler: {_target_: parts.Sampler, group: rollout}
  judge: {_target_: parts.Judge, group: judge}
  actor: {_target_: parts.Actor, group: train}
pipeline:
  batch: {call: prompts.next, samples: 6}
  rollouts: {call: sampler.sample, in: batch}
  scored: {call: judge.score, in: rollouts}
  metrics: {call: actor.update, in: [rollouts, scored]}
  publish: {sync: actor, to: sampler}
run: {steps: 12, dir: runs, checkpoint: {every: 4}, restarts: {times: 20}}
"""
SAMPLES = 6


def parts(setup_s: float = 0.0, step_s: float = 0.02, wide: int = 4) -> str:
    text = PARTS.replace("SETUP_S", str(setup_s)).replace("STEP_S", str(step_s))
    return text.replace("WIDE", str(wide))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("group"), RECIPE, parts())


def launched(folder: Path, name: str, *words: str, deaths: Sequence[str] = ()) -> tuple[RunDir, Done]:
    """Runs the recipe. Each of `deaths` is PLACE-RANK-STEP of a sampler that is killed there."""
    for death in deaths:
        (folder / f"die-{name}-{death}").touch()
    done = call(folder, "launch", "recipe.yaml", f"name={name}", *words)
    [run] = runs_in(folder, name)
    return run, done


def pids(run: RunDir, group: str) -> list[int]:
    return [int(event.value["pid"]) for event in events_of(run, "started") if event.group == group]


def results_of(run: RunDir) -> list[dict[str, list[object]]]:
    return [json.loads((run.path / f"result-{rank}.json").read_text()) for rank in (0, 1)]


def seen_in(run: RunDir) -> list[str]:
    return sorted(str(id) for result in results_of(run) for id in result["seen"])


@pytest.fixture(scope="module")
def whole(folder: Path) -> RunDir:
    """An uninterrupted run."""
    run, done = launched(folder, "whole")
    assert done.returncode == 0, done
    return run


def test_a_group_restarts_alone_after_a_death_in_a_call(folder: Path, whole: RunDir) -> None:
    run, done = launched(folder, "call", deaths=["call-1-5"])
    assert done.returncode == 0, done
    [restarted] = events_of(run, "restarted")
    assert (restarted.value["group"], restarted.value["generation"]) == ("rollout", 1)
    assert len(events_of(run, "launched")) == 1
    assert [len(pids(run, group)) for group in ("rollout", "judge", "train")] == [4, 1, 2]
    assert results_of(run) == results_of(whole)
    assert rows_of(run) == rows_of(whole)
    assert seen_in(run) == seen_in(whole)
    assert not any(map(alive, pids(run, "train")))


EACH_ON_A_NODE = ["+cluster.nodes=3"]
EACH_ON_A_NODE += [
    f"+groups.{group}.nodes=[{node}]" for node, group in enumerate(("train", "rollout", "judge"))
]


def check_nodes(run: RunDir, whole: RunDir) -> None:
    """Checks a run of three nodes, one for each group, in which a sampler has died, and later the node of the
    samplers: they restart alone, and then with all others on nodes of which one was started again."""
    alone, together = events_of(run, "restarted")
    assert (alone.value["group"], alone.value["generation"]) == ("rollout", 1)
    assert "group" not in together.value and len(events_of(run, "launched")) == 2
    assert [len(pids(run, group)) for group in ("rollout", "judge", "train")] == [6, 2, 4]
    assert results_of(run) == results_of(whole)
    assert rows_of(run) == rows_of(whole)


def compare(folder: Path, whole: RunDir, name: str, *deaths: str, words: Sequence[str] = ()) -> RunDir:
    """Runs the recipe with deaths, and compares it with the uninterrupted run."""
    run, done = launched(folder, name, *words, deaths=deaths)
    assert done.returncode == 0, done
    left = list(folder.glob(f"die-{name}-*"))
    assert not left, f"{left}: nobody died there"
    assert results_of(run) == results_of(whole)
    return run


def check(folder: Path, whole: RunDir, name: str, *deaths: str) -> RunDir:
    """Does what `compare` does with deaths of samplers, which are no reason to restart other groups."""
    run = compare(folder, whole, name, *deaths)
    assert len(events_of(run, "launched")) == 1, [event.value for event in events_of(run, "restarted")]
    assert [len(pids(run, group)) for group in ("judge", "train")] == [1, 2]
    assert rows_of(run) == rows_of(whole)
    return run


@pytest.mark.slow_suite
@pytest.mark.parametrize(
    "deaths",
    [
        ("sync-0-3",),
        ("sync-1-4",),
        ("call-0-1",),
        ("call-0-3", "call-1-3"),
        ("call-0-2", "call-1-5", "sync-0-7", "call-0-11"),
        ("call-1-12",),
        ("agreement-0-6",),
    ],
    ids="-and-".join,
)
def test_where_a_sampler_may_die(folder: Path, whole: RunDir, deaths: tuple[str, ...]) -> None:
    run = check(folder, whole, "-".join(deaths), *deaths)
    assert events_of(run, "restarted")[-1].value["generation"] == len(events_of(run, "restarted"))


@pytest.mark.slow_suite
def test_a_group_that_dies_while_it_restarts_restarts_again(folder: Path, whole: RunDir) -> None:
    run = check(folder, whole, "again", "call-1-5", "setup-0-0")
    assert [event.value["generation"] for event in events_of(run, "restarted")] == [1, 2]
    run = check(folder, whole, "once-more", "call-1-5", "setup-0-0", "load-1-1")
    assert [event.value["generation"] for event in events_of(run, "restarted")] == [1, 2, 3]


@pytest.mark.slow_suite
def test_deaths_of_two_groups_restart_the_whole_run(folder: Path, whole: RunDir) -> None:
    run = compare(folder, whole, "two", "call-1-6", "judge-0-5")
    assert len(events_of(run, "launched")) == 2
    assert rows_of(run) == rows_of(whole)


@pytest.mark.slow_suite
@pytest.mark.parametrize(
    ("deaths", "generations"),
    [
        (("judge-0-5",), ["judge"]),
        (("judge-0-3", "call-1-6", "judge-0-9"), ["judge", "rollout", "judge"]),
    ],
    ids=["one", "in turn"],
)
def test_several_groups_may_restart_alone(
    folder: Path, whole: RunDir, deaths: tuple[str, ...], generations: list[str]
) -> None:
    words = ["+groups.judge.restartable=true"]
    run = compare(folder, whole, f"both-{len(deaths)}", *deaths, words=words)
    assert [event.value["group"] for event in events_of(run, "restarted")] == generations
    assert len(pids(run, "train")) == 2
    assert rows_of(run) == rows_of(whole)


@pytest.mark.slow_suite
def test_weights_of_earlier_steps_are_those_that_the_steps_had(folder: Path) -> None:
    words = ["+pipeline.publish.max_staleness=2"]
    late, done = launched(folder, "late", *words)
    assert done.returncode == 0, done
    for death in ("call-0-6", "sync-1-7"):
        run = compare(folder, late, f"late-{death}", death, words=words)
        assert len(events_of(run, "launched")) == 1
        assert rows_of(run) == rows_of(late)


@on_hosts
def test_a_group_on_another_host_restarts_alone(folder: Path, whole: RunDir, hosts: Hosts) -> None:
    """The groups are on three hosts, with TCP between them."""
    run = compare(folder, whole, "hosts", "call-1-5", "sync-0-8", words=[*EACH_ON_A_NODE, *hosts.options])
    assert events_of(run, "restarted")[0].value["group"] == "rollout"
    assert rows_of(run) == rows_of(whole)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("lag", [0, 1])
def test_samplers_that_die_at_random_moments(seed: int, lag: int) -> None:
    """Each of 50 kills restarts the group alone; one that falls into a restart may share it."""
    facts = survived(lag, 50, random.Random(seed))
    assert facts["kills"] == 50 and facts["attempts"] == 1, facts
    assert facts["same"], facts
