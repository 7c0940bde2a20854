"""The cost of a sample of GRPO, against TRL's `GRPOTrainer`.

    python benchmarks/grpo_end_to_end.py [--rounds 20]

Both sides train the same small Qwen3 in fp32 in one process on one core: the same prompts, rewards, group
size, number of tokens, learning rate and loss. They alternate step by step. A step of meshctl calls the
components of a recipe, all in this process: `Prompts`, `hf.Sampler`, `rewards.Function`, `hf.Model`, and a
copy of the weights. The loop and the launcher are not part of it (`empty_step` measures them). The median
over rounds of the ratio of CPU times is judged. The ratio of the times and the last mean rewards are shown.
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
    found = measured(args.rounds)
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
    case = {"what": "CPU time of a step, TRL / meshctl", "value": round(ratios["cpu"], 2), "goal": GOAL}
    result = {**case, "ok": ratios["cpu"] >= GOAL, "time": round(ratios["time"], 2)}
    print(json.dumps({"name": "grpo_end_to_end", **result, "load": os.getloadavg()[0], "others": others}))


def measured(rounds: int) -> dict[str, list[dict[str, float]]]:
    """Returns the rounds of each side, with the keys `cpu` (seconds), `time` and `reward`."""
    with tempfile.TemporaryDirectory() as name:
        wanted = json.dumps({"rounds": rounds, "folder": name})
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, str(WORKER), wanted], env=environ, capture_output=True, text=True
        )
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
        found: dict[str, list[dict[str, float]]] = json.loads(Path(name, "rounds.json").read_text())
    return found


if __name__ == "__main__":
    main()
