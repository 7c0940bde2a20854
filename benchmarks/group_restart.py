"""A group that restarts alone: the time from the kill of a worker to the next step, against a restart of the
whole run, and what remains of a run after many kills.

    python benchmarks/group_restart.py [--rounds 3] [--kills 100] [--seed 0]

The other two groups of the run take 5 s to set up. In each round a worker of the group without state is
killed (SIGKILL), once with `restartable: true` and once without, and the time is taken until all workers have
ended the first step that its successor ends. Then workers of the group are killed at random moments, also
while it restarts, half of them in a run with `max_staleness: 1`. The run is ended by SIGTERM, and compared
with an uninterrupted one of as many steps: the ids of all samples, the weights digit for digit, and the pids
of the other groups.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

GOAL = 0.3
SETUP_S = 5.0
WORKERS = 5
TIMEOUT_S = 120.0
POLL_S = 0.02

COMPONENTS = """
import json
import time

import torch
from meshctl import Batch, Component, endpoint


class Prompts(Component):
    def __len__(self):
        return 1 << 40

    @endpoint
    def next(self, samples: range) -> Batch:
        time.sleep(0.005)
        return Batch({"x": torch.rand(len(samples)) + torch.tensor(samples) % 1000})


class Sampler(Component):
    def setup(self):
        self.weight = torch.zeros(1000, dtype=torch.float64)

    def weights(self):
        yield "weight", self.weight

    def load_weights(self, stream):
        for _, tensor in stream:
            self.weight = tensor.clone()

    @endpoint
    def sample(self, batch: Batch) -> Batch:
        many = batch.repeat(2)
        noise = torch.rand(len(batch), dtype=torch.float64).repeat_interleave(2)
        answer = torch.sin(self.weight[:1] + many["x"].double()) + noise
        return many.with_columns(answer=answer, wide=torch.ones(len(many), 20_000))


class Judge(Component):
    def __init__(self, setup_s: float) -> None:
        self.setup_s = setup_s

    def setup(self):
        time.sleep(self.setup_s)

    @endpoint
    def score(self, batch: Batch) -> Batch:
        return Batch({"score": batch["answer"] * 2}, ids=batch.ids)


class Actor(Component):
    def __init__(self, setup_s: float) -> None:
        self.setup_s = setup_s

    def setup(self):
        time.sleep(self.setup_s)
        self.weight, self.seen = torch.zeros(1000, dtype=torch.float64), []

    def weights(self):
        yield "weight", self.weight

    @endpoint(collect="mean")
    def update(self, batch: Batch) -> dict[str, float]:
        step = torch.sin(self.weight + batch["answer"].sum() + batch["score"].sum())
        self.weight = self.weight + self.collective("dp").all_reduce(step)
        self.seen += [str(id) for id in batch.ids.tolist()]
        return {"norm": float(self.weight.norm())}

    def state_dict(self):
        return {"weight": self.weight, "seen": [self.rank, list(self.seen)]}

    def load_state_dict(self, state):
        self.weight, self.seen = state["weight"], list(state["seen"][1])

    def close(self):
        result = {"weight": self.weight.tolist(), "seen": self.seen, "step": self.step}
        (self.run_dir / f"result-{self.rank}.json").write_text(json.dumps(result))
"""

RECIPE = """
groups:
  rollout: {ranks: 2, device_type: cpu, restartable: RESTARTABLE}
  judge: {ranks: 1, device_type: cpu}
  train: {ranks: 2, device_type: cpu}
components:
  prompts: {_target_: parts.Prompts, group: train}
  sampler: {_target_: parts.Sampler, group: rollout}
  judge: {_target_: parts.Judge, group: judge, args: {setup_s: SETUP_S}}
  actor: {_target_: parts.Actor, group: train, args: {setup_s: SETUP_S}}
pipeline:
  batch: {call: prompts.next, samples: 6}
  rollouts: {call: sampler.sample, in: batch}
  scored: {call: judge.score, in: rollouts}
  metrics: {call: actor.update, in: [rollouts, scored]}
  publish: {sync: actor, to: sampler, max_staleness: LAG}
run: {steps: 1000000, dir: runs, checkpoint: {every: 20}, restarts: {times: 100000}}
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    alone = [restart_s(is_alone=True) for _ in range(asked.rounds)]
    whole = [restart_s(is_alone=False) for _ in range(asked.rounds)]
    ratio = statistics.median(alone) / statistics.median(whole)
    print("alone", *(f"{one:.2f} s" for one in alone), "  whole run", *(f"{one:.2f} s" for one in whole))
    found = [survived(lag, asked.kills // 2, random.Random(asked.seed + lag)) for lag in (0, 1)]
    for lag, one in enumerate(found):
        print(f"max_staleness {lag}: {json.dumps(one)}")
    is_equal = all(one["same"] for one in found)
    line = {
        "name": "group_restart",
        "value": round(ratio, 3),
        "goal": GOAL,
        "ok": ratio <= GOAL and is_equal,
        "kills": sum(one["kills"] for one in found),
        "same": is_equal,
    }
    print(json.dumps(line))


@contextmanager
def launched(
    folder: Path, *, is_alone: bool = True, lag: int = 0, setup_s: float = 0.0, steps: int = 0
) -> Any:
    """Launches a run in a folder; ends it, unless it ends by itself after `steps`."""
    (folder / "parts.py").write_text(COMPONENTS)
    text = RECIPE.replace("RESTARTABLE", str(is_alone).lower()).replace("LAG", str(lag))
    (folder / "recipe.yaml").write_text(text.replace("SETUP_S", str(setup_s)))
    command = [str(Path(sys.executable).with_name("meshctl")), "launch", "recipe.yaml"]
    command += [f"run.steps={steps}"] if steps else []
    with (folder / "out.txt").open("w") as out:
        launcher = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out, start_new_session=True)
    try:
        yield launcher
        if not steps:
            launcher.send_signal(signal.SIGTERM)
        launcher.wait(TIMEOUT_S)
    finally:
        launcher.kill()
        launcher.wait()


def events_of(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in folder.glob("runs/*/*/events/*.jsonl")
        for line in path.read_bytes().decode().rpartition("\n")[0].splitlines()
    ]


def named(folder: Path, name: str) -> list[dict[str, Any]]:
    return sorted((one for one in events_of(folder) if one["name"] == name), key=lambda one: one["time"])


def wait(condition: Any, what: str) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > end:
            sys.exit(f"waited in vain for {what}")
        time.sleep(POLL_S)


def samplers(folder: Path) -> list[int]:
    """Returns the pids of the living workers of the group without state."""
    started = [one["value"]["pid"] for one in named(folder, "started") if one["group"] == "rollout"]
    return [pid for pid in started if pid and Path(f"/proc/{pid}").exists()]


def restart_s(is_alone: bool) -> float:
    """Returns the seconds from a kill to the end of the next step on all workers."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with launched(folder, is_alone=is_alone, setup_s=SETUP_S):
            wait(lambda: named(folder, "checkpoint"), "a checkpoint")
            killed = time.time()
            os.kill(samplers(folder)[0], signal.SIGKILL)
            wait(lambda: step_after(folder, killed), "a step after the kill")
            return step_after(folder, killed) - killed


def step_after(folder: Path, killed: float) -> float:
    """Returns when all workers have ended the first step of the successors of a killed worker; 0 before."""
    begun = [one["time"] for one in named(folder, "ready") if one["group"] == "rollout"]
    begun = [time for time in begun if time > killed]
    if not begun:
        return 0.0
    steps = [one for one in named(folder, "step") if one["time"] > begun[0]]
    first = next((one["step"] for one in steps if one["group"] == "rollout"), 0)
    ends: dict[tuple[str, int], float] = {}
    for one in steps if first else ():
        if one["step"] >= first:
            ends.setdefault((one["group"], one["rank"]), one["time"])
    return max(ends.values()) if len(ends) == WORKERS else 0.0


def survived(lag: int, kills: int, chosen: random.Random) -> dict[str, Any]:
    """Kills workers at random moments, and compares the run with an uninterrupted one."""
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as other:
        folder, whole = Path(name), Path(other)
        with launched(folder, lag=lag) as launcher:
            wait(lambda: named(folder, "checkpoint"), "a checkpoint")
            count = 0
            while count < kills and launcher.poll() is None:
                time.sleep(chosen.uniform(0.0, 1.2))
                if living := samplers(folder):
                    with suppress(ProcessLookupError):
                        os.kill(chosen.choice(living), signal.SIGKILL)
                        count += 1
            wait(lambda: is_settled(folder) or launcher.poll() is not None, "the last restart")
            time.sleep(1.0)
        found = results_of(folder)
        steps = max((one["step"] for one in named(folder, "done")), default=0)
        with launched(whole, lag=lag, steps=steps or 1):
            pass
        expected = results_of(whole)
        pids = {
            group: len([one for one in named(folder, "started") if one["group"] == group])
            for group in ("judge", "train")
        }
        facts = {
            "kills": count,
            "restarts": len(named(folder, "restarted")),
            "attempts": len(named(folder, "launched")),
            "steps": steps,
            "ids": found is not None
            and seen(found) == seen(expected)
            and len({*seen(found)}) == len(seen(found)),
            "weights": bool(found)
            and [one["weight"] for one in found] == [one["weight"] for one in expected],
            "pids": pids == {"judge": 1, "train": 2},
        }
        facts["same"] = facts["ids"] and facts["weights"] and facts["pids"]
        if not facts["same"]:
            print((folder / "out.txt").read_text()[-2000:], file=sys.stderr)
        return facts


def is_settled(folder: Path) -> bool:
    """Whether the workers of the group that were started last are ready."""
    ready = {(one["group"], one["rank"]): one["time"] for one in named(folder, "ready")}
    started = {one["rank"]: one["time"] for one in named(folder, "started") if one["group"] == "rollout"}
    restarted = [one["time"] for one in named(folder, "restarted")]
    newest = max([*started.values(), *restarted])
    return bool(samplers(folder)) and all(ready.get(("rollout", rank), 0.0) > newest for rank in (0, 1))


def results_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("runs/*/*/result-*.json"))]


def seen(results: list[dict[str, Any]]) -> list[str]:
    return sorted(id for one in results for id in one["seen"])


if __name__ == "__main__":
    main()
