"""Tokens per second of `hf.Model` in each layout of two ranks, beside the same layout by hand in torch.

    python benchmarks/dims.py [--rounds 10]

All sides train the same small Llama, or Qwen3 with experts, in fp32 on CPU over gloo. A layout that is
short in torch, as torchtitan writes it, is compared: one step of each side is a round, and the median over
rounds of the ratio of the CPU times of both ranks is judged. The losses of both sides must agree. The memory
of a rank is that of weights, gradients and optimizer state. It stands beside the estimate of `show-topology`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from meshctl.recipe.load import load
from meshctl.recipe.rules.memory import memory_of

ROOT = Path(__file__).resolve().parent.parent
WORKER = Path(__file__).resolve().parent / "peers" / "dims_sides.py"
GOAL = 1.05
"""The largest ratio of the CPU time of `hf.Model` to that of the same layout by hand."""
CLOSE = 1e-4
"""The largest relative difference between the losses of both sides in a round."""
MEMORY_GOAL = 0.1
"""The largest relative difference between the memory of a rank and its estimate."""
LLAMA = {
    "model_type": "llama",
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "tie_word_embeddings": False,
}
EXPERTS = {
    **LLAMA,
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
}


@dataclass(frozen=True)
class Case:
    name: str
    sizes: dict[str, int]
    by_hand: bool = False
    model: str = "llama"


CASES = (
    Case("fsdp 2", {"fsdp": 2}, by_hand=True),
    Case("tp 2", {"tp": 2}, by_hand=True),
    Case("tp 2, sequence parallel", {"tp": 2, "sequence_parallel": True}, by_hand=True),
    Case("cp 2", {"cp": 2}),
    Case("ulysses 2", {"fsdp": 2, "ulysses": 2}),
    Case("pp 2", {"pp": 2}),
    Case("fsdp 2 of experts", {"fsdp": 2}, model="experts"),
    Case("fsdp 2 x ep 2", {"fsdp": 2, "ep": 2}, model="experts"),
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args()
    print(f"{'layout':<24} {'tokens/s':>9} {'by hand':>9} {'CPU':>6} {'MB a rank':>10} {'estimate':>9}")
    rows = [row(case, args.rounds) for case in CASES]
    worst = max(one["cpu"] for one in rows if one["cpu"])
    is_close = all(one["memory_ok"] for one in rows)
    found = {"value": worst, "goal": GOAL, "ok": worst <= GOAL and is_close, "layouts": rows}
    print(json.dumps({"name": "dims", **found, "load": os.getloadavg()[0]}))


def row(case: Case, rounds: int) -> dict[str, Any]:
    """Measures a case, prints its row, and returns it."""
    found = measured(case, rounds)
    sides = found["rounds"]
    speed = {
        name: statistics.median(one["tokens"] / one["time"] for one in own) for name, own in sides.items()
    }
    ours, theirs = sides["hf.Model"], sides.get("by hand", [])
    for one, other in zip(ours, theirs, strict=False):
        if abs(one["loss"] - other["loss"]) > CLOSE * other["loss"]:
            sys.exit(f"{case.name}: the losses are {one['loss']} and {other['loss']} (by hand)")
    pairs = zip(ours, theirs, strict=True) if theirs else ()
    cpu = statistics.median(own["cpu"] / other["cpu"] for own, other in pairs) if theirs else None
    own = sum(found[key] for key in ("weights", "gradients", "optimizer"))
    estimate = estimated(case)
    hand = f"{speed['by hand']:>9.0f}" if theirs else f"{'-':>9}"
    ratio = f"{cpu:>6.3f}" if cpu else f"{'-':>6}"
    shown = f"{estimate / 1e6:>9.2f}" if estimate else f"{'unknown':>9}"
    print(f"{case.name:<24} {speed['hf.Model']:>9.0f} {hand} {ratio} {own / 1e6:>10.2f} {shown}", flush=True)
    return {
        "layout": case.name,
        "tokens_per_s": round(speed["hf.Model"]),
        "by_hand": round(speed["by hand"]) if theirs else None,
        "cpu": round(cpu, 3) if cpu else None,
        "bytes": own,
        "estimate": estimate,
        "memory_ok": not estimate or abs(own - estimate) <= MEMORY_GOAL * estimate,
    }


def measured(case: Case, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        file = Path(name, "found.json")
        wanted = {
            "sizes": case.sizes,
            "model": LLAMA if case.model == "llama" else EXPERTS,
            "experts": None if case.model == "llama" else "eager",
            "by_hand": case.by_hand,
            "rounds": rounds,
            "file": str(file),
        }
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [*command, str(WORKER), json.dumps(wanted)], env=environ, capture_output=True, text=True
        )
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
        found: dict[str, Any] = json.loads(file.read_text())
        return found


def estimated(case: Case) -> int:
    """Returns the bytes that `show-topology` shows for a rank; 0 if they are unknown."""
    parallel = {
        key if key == "sequence_parallel" else f"{key}_size": size for key, size in case.sizes.items()
    }
    actor = {
        "_target_": "meshctl.hf.Model",
        "group": "train",
        "parallel": parallel,
        "args": {"model": LLAMA if case.model == "llama" else EXPERTS},
    }
    recipe = {
        "groups": {"train": {"ranks": 2, "device_type": "cpu"}},
        "components": {"actor": actor},
        "pipeline": {"metrics": {"call": "actor.update", "samples": 8}},
    }
    with tempfile.TemporaryDirectory() as name:
        Path(name, "recipe.yaml").write_text(yaml.safe_dump(recipe))
        facts = load("recipe.yaml", [], Path(name), environ={}).facts
    [memory] = memory_of(facts).components if facts else [None]
    return memory.total if memory and memory.is_complete else 0


if __name__ == "__main__":
    main()
