"""Tokens per second and MFU of `hf.Model` on GPUs, beside a loop written by hand with FSDP2.

    python benchmarks/hf_gpu_step.py [--rounds 25] [--tiny]

One rank for each GPU of this node trains the shape of Qwen3-0.6B with random weights: bfloat16 computation,
weights and AdamW in fp32, flash attention, texts of one length. The sides alternate step by step. The model
FLOPs utilization (MFU) counts 6 FLOPs for each weight and token and those of attention, and divides by the
peak of the device. Without a GPU the benchmark says so and measures nothing. With `--tiny`, the same code
runs a tiny model on two CPU ranks, which checks the code and is no measurement.
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

import torch

ROOT = Path(__file__).resolve().parent.parent
WORKER = Path(__file__).resolve().parent / "peers" / "hf_gpu_sides.py"
GOAL = 1.03
"""The largest ratio of the time of a step of `hf.Model` to that of the loop written by hand."""
OURS, BY_HAND = "hf.Model", "by hand"
PEAK_FLOPS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12}
"""A part of the device's name -> its dense FLOPs per second in bfloat16."""
CLOSE = 5e-2
"""The largest relative difference between the losses of both sides in a round."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--tiny", action="store_true", help="a tiny model on two CPU ranks")
    args = parser.parse_args()
    gpus = torch.cuda.device_count()
    if not gpus and not args.tiny:
        print("skipped: torch sees no CUDA device")
        nothing = {"name": "hf_gpu_step", "value": None, "goal": GOAL, "ok": None}
        return print(json.dumps({**nothing, "device": None, "skipped": True}))
    ranks = 2 if args.tiny else gpus
    found = measured(ranks, args.rounds, args.tiny)
    rounds = found["rounds"]
    for ours, theirs in zip(rounds[OURS], rounds[BY_HAND], strict=True):
        if abs(ours["loss"] - theirs["loss"]) > CLOSE * theirs["loss"]:
            sys.exit(f"the losses are {ours['loss']} and {theirs['loss']}")
    print(f"{found['attention']} attention on {ranks} x {found['device']}")
    print(f"{'':<10} {'ms':>9} {'tokens/s':>10} {'MFU':>7}")
    for side in (BY_HAND, OURS):
        seconds = statistics.median(one["time"] for one in rounds[side])
        utilization = mfu(found, seconds, ranks)
        print(f"{side:<10} {seconds * 1e3:>9.1f} {found['tokens'] / seconds:>10.0f} {utilization:>7}")
    pairs = zip(rounds[OURS], rounds[BY_HAND], strict=True)
    ratio = statistics.median(ours["time"] / theirs["time"] for ours, theirs in pairs)
    line = {"name": "hf_gpu_step", "value": round(ratio, 3), "goal": GOAL, "ok": ratio <= GOAL}
    print(json.dumps({**line, "device": found["device"], "skipped": False}))


def measured(ranks: int, rounds: int, is_tiny: bool) -> dict[str, Any]:
    """Returns what rank 0 of the workers writes: the rounds of each side, and what is equal in all."""
    with tempfile.TemporaryDirectory() as name:
        wanted = {"rounds": rounds, "tiny": is_tiny, "folder": name}
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [*command, str(WORKER), json.dumps(wanted)], env=environ, capture_output=True, text=True
        )
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
        found: dict[str, Any] = json.loads(Path(name, "rounds.json").read_text())
    return found


def mfu(found: dict[str, Any], seconds: float, ranks: int) -> str:
    """Returns the utilization as a text; a dash for a device whose peak is unknown."""
    peaks = [peak for name, peak in PEAK_FLOPS.items() if name in found["device"]]
    return f"{found['flops'] / seconds / (ranks * peaks[0]):.1%}" if peaks else "-"


if __name__ == "__main__":
    main()
