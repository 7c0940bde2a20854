"""The cost of a sample of GRPO, against TRL's `GRPOTrainer`.

    python benchmarks/grpo_end_to_end.py [--rounds 20]

Both sides train the same small Qwen3 in fp32 in one process on one core: the same prompts, rewards, group
size, number of tokens, learning rate and loss. They alternate step by step. A step of meshctl calls the
components of a recipe, all in this process: `Prompts`, `hf.Sampler`, `rewards.Function`, `hf.Model`, and a
copy of the weights. The loop and the launcher are not part of it (`empty_step` measures them). The median
over rounds of the ratio of CPU times is judged. The ratio of the times and the last mean rewards are shown.
Beside them stand two runs of `meshctl launch`, where the sampler is in a group of its own, without and with
`max_staleness: 1`: the CPU time of both workers, and the time of a step. With it, the actor also computes
`old_logprobs`.
TRL 1.16 must be installed; without it the benchmark says so and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.peers.grpo_setup import WARMUP, recipe

ROOT = Path(__file__).resolve().parent.parent
WORKER = Path(__file__).resolve().parent / "peers" / "grpo_sides.py"
GOAL = 1.5
"""The least ratio of TRL's CPU time to ours."""
LAST = 5
"""The rounds whose mean reward is shown."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    if not find_spec("trl"):
        print("grpo_end_to_end needs TRL: pip install trl==1.16.0")
        return
    found, groups = measured(args.rounds)
    ratios = {
        key: statistics.median(
            theirs[key] / ours[key] for ours, theirs in zip(found["meshctl"], found["TRL"], strict=True)
        )
        for key in ("cpu", "time")
    }
    others: list[dict[str, Any]] = []
    for side, rounds in found.items():
        cpu = statistics.median(one["cpu"] for one in rounds)
        reward = statistics.fmean(one["reward"] for one in rounds[-LAST:])
        first = statistics.fmean(one["reward"] for one in rounds[:LAST])
        print(f"{side:<8} {cpu * 1e3:>7.1f} ms CPU a step; mean reward {first:.3f} -> {reward:.3f}")
        others.append({"what": side, "value": round(reward, 3)})
    trl = {key: statistics.median(one[key] for one in found["TRL"]) for key in ("cpu", "time")}
    for what, one in groups.items():
        print(
            f"{what:<28} {one['cpu'] * 1e3:>7.1f} ms CPU and {one['time'] * 1e3:.1f} ms a step; "
            f"mean reward {one['reward']:.3f}"
        )
        times = round(trl["time"] / one["time"], 2)
        others.append({"what": what, "value": round(trl["cpu"] / one["cpu"], 2), "time": times})
    case = {"what": "CPU time of a step, TRL / meshctl", "value": round(ratios["cpu"], 2), "goal": GOAL}
    result = {**case, "ok": ratios["cpu"] >= GOAL, "time": round(ratios["time"], 2)}
    print(json.dumps({"name": "grpo_end_to_end", **result, "load": os.getloadavg()[0], "others": others}))


def measured(rounds: int) -> tuple[dict[str, list[dict[str, float]]], dict[str, dict[str, float]]]:
    """Returns the rounds of each side, and the medians of the runs with two groups, with the keys `cpu`
    (seconds), `time` and `reward`."""
    with tempfile.TemporaryDirectory() as name:
        wanted = json.dumps({"rounds": rounds, "folder": name})
        _run([str(WORKER), wanted])
        found: dict[str, list[dict[str, float]]] = json.loads(Path(name, "rounds.json").read_text())
        groups = {
            f"two groups, max_staleness {staleness}": launched(Path(name), rounds + WARMUP, staleness)
            for staleness in (0, 1)
        }
    return found, groups


def _run(arguments: list[str]) -> None:
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)


def launched(folder: Path, steps: int, staleness: int) -> dict[str, float]:
    """Returns the means of a run with two groups, from the end of the last step that is not counted."""
    file = folder / f"staleness-{staleness}.yaml"
    file.write_text(recipe(folder, steps, staleness))
    _run(["-m", "meshctl", "launch", str(file)])
    [run] = (folder / f"runs-{staleness}").glob("*/*")
    cpu = 0.0
    for name in ("sampler", "actor"):
        rows = [json.loads(line) for line in (run / f"{name}.jsonl").read_text().splitlines()]
        (first, began, cpu_before), (last, ended, cpu_after) = rows[WARMUP - 1], rows[-1]
        cpu += (cpu_after - cpu_before) / (last - first)
        seconds = (ended - began) / (last - first)  # at the end, those of the actor
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    reward = statistics.fmean(row["scored.reward"] for row in metrics[-LAST:])
    return {"cpu": cpu, "time": seconds, "reward": reward}


if __name__ == "__main__":
    main()
