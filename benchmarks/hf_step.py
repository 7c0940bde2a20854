"""The cost of a training step of `hf.Model`, against a loop written by hand and transformers' `Trainer`.

    python benchmarks/hf_step.py [--rounds 25] [--micro-batches 1]

All sides train the same small Qwen3 in fp32 on two ranks of one torchrun, from the same weights and on the
same micro-batches, with AdamW and clipping. They alternate: one step of each side is a round. The median over
rounds of the ratio of the CPU times of both ranks is judged, and the ratio of the times is shown as well.
The losses of all sides must agree in every round. `Trainer` shards its model with
`from_pretrained(distributed_config=DistributedConfig(fsdp_size=2))`, since its option `fsdp` runs DDP on CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WORKER = Path(__file__).resolve().parent / "peers" / "hf_step_sides.py"
RANKS = 2
GOALS = {"by hand": 1.03, "Trainer": 1.0}
"""Side -> the largest ratio of the CPU time of `hf.Model` to that of the side."""
OURS = "hf.Model"
CLOSE = 1e-5
"""The largest relative difference between the losses of two sides in a round."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--micro-batches", type=int, default=1, help="of an update")
    args = parser.parse_args()
    print(f"{'layout':<8} {'against':<10} {'theirs':>9} {'ours':>9} {'CPU':>7} {'time':>7} {'goal':>6}")
    cases = []
    for layout in ("fsdp", "tp"):
        found = measured(layout, args.rounds, args.micro_batches)
        for side in found:
            if side != OURS:
                cases.append(judged(layout, side, found))
    [first, *others] = cases
    ok = all(case["ok"] for case in cases)
    print(json.dumps({"name": "hf_step", **first, "ok": ok, "load": os.getloadavg()[0], "others": others}))


def measured(layout: str, rounds: int, micro_batches: int) -> dict[str, list[dict[str, float]]]:
    """Returns the rounds of each side, with the keys `cpu` (seconds of all ranks), `time` and `loss`."""
    with tempfile.TemporaryDirectory() as name:
        wanted = {"layout": layout, "rounds": rounds, "micro_batches": micro_batches, "folder": name}
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [*command, str(WORKER), json.dumps(wanted)], env=environ, capture_output=True, text=True
        )
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
        found: dict[str, list[dict[str, float]]] = json.loads(Path(name, "rounds.json").read_text())
    return found


def judged(layout: str, side: str, found: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Compares `hf.Model` with another side, prints a row, and returns the case."""
    pairs = list(zip(found[OURS], found[side], strict=True))
    for number, (ours, theirs) in enumerate(pairs, 1):
        if abs(ours["loss"] - theirs["loss"]) > CLOSE * theirs["loss"]:
            sys.exit(f"round {number}: the losses are {ours['loss']} and {theirs['loss']} ({side}, {layout})")
    cpu = statistics.median(ours["cpu"] / theirs["cpu"] for ours, theirs in pairs)
    time = statistics.median(ours["time"] / theirs["time"] for ours, theirs in pairs)
    own = statistics.median(ours["cpu"] for ours, _ in pairs) * 1e3
    other = statistics.median(theirs["cpu"] for _, theirs in pairs) * 1e3
    goal = GOALS[side]
    times = f"{other:>6.1f} ms {own:>6.1f} ms"
    print(f"{layout:<8} {side:<10} {times} {cpu:>7.3f} {time:>7.3f} {goal:>6}", flush=True)
    case = {"what": f"{layout} 2, against {side}", "value": round(cpu, 3), "goal": goal, "ok": cpu <= goal}
    return {**case, "time": round(time, 3)}


if __name__ == "__main__":
    main()
