"""The time from the command to the first update of models of transformers, against two torchruns.

    python benchmarks/hf_launch.py [--rounds 5]

Both start two groups of two CPU workers, alternately. Each group builds a tiny Qwen3 from a config, shards it
with FSDP2 and updates it once. The time of torchrun ends when the last worker of both groups has finished its
update. The time of meshctl ends when the last worker has finished step 1, in which one group also makes the
batch and sends it to the other group. The CPU time of all processes is shown as well.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GOAL = 0.5
"""The largest ratio of the times."""
WORKERS = 2
"""The workers of a group."""
ROWS, LENGTH = 8, 32
"""The texts of a rank, and the tokens of a text."""
SHAPE = {
    "model_type": "qwen3",
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}

COMPONENTS = f"""
import torch

from meshctl import Batch, Component, endpoint
from meshctl.runtime.batch.batch import Ragged


class Texts(Component):
    @endpoint
    def next(self, samples: range) -> Batch:
        rows = [torch.arange({LENGTH}) + number for number in samples]
        return Batch({{"input_ids": Ragged.of(rows)}})
"""

RECIPE = f"""
name: hf-launch
groups:
  one: {{ranks: {WORKERS}, device_type: cpu}}
  two: {{ranks: {WORKERS}, device_type: cpu}}
components:
  texts: {{_target_: parts.Texts, group: one}}
  first: {{_target_: meshctl.hf.Model, group: one, parallel: LAYOUT, args: {{model: MODEL}}}}
  second: {{_target_: meshctl.hf.Model, group: two, parallel: LAYOUT, args: {{model: MODEL}}}}
pipeline:
  batch: {{call: texts.next, samples: {ROWS * WORKERS}}}
  one: {{call: first.update, in: batch}}
  two: {{call: second.update, in: batch}}
run: {{steps: 1, dir: runs}}
""".replace("MODEL", json.dumps(SHAPE)).replace("LAYOUT", f"{{fsdp_size: {WORKERS}}}")

SCRIPT = f"""
import os, sys, time
import torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from transformers import AutoConfig, AutoModelForCausalLM

dist.init_process_group("gloo")
torch.manual_seed(0)
model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**{SHAPE!r}))
for layer in model.model.layers:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
ids = torch.arange({LENGTH})[None] + dist.get_rank() * {ROWS} + torch.arange({ROWS})[:, None]
model(input_ids=ids, labels=ids).loss.backward()
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
optimizer.step()
with open(f"{{sys.argv[1]}}/{{os.environ['RANK']}}", "w") as file:
    file.write(str(time.time()))
dist.destroy_process_group()
"""

Measured = tuple[float, float]
"""The seconds from the command to the end of the first update, and the CPU seconds of all processes."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    pairs = [(torchrun(), meshctl()) for _ in range(rounds)]
    print(f"{'':<6} {'torchrun':>10} {'meshctl':>10} {'ratio':>7} {'goal':>6}")
    found = {}
    for kind, name in enumerate(("time", "CPU")):
        ratio = statistics.median(ours[kind] / theirs[kind] for theirs, ours in pairs)
        theirs, ours = (statistics.median(one[kind] for one in side) for side in zip(*pairs, strict=True))
        found[name] = round(ratio, 3)
        print(f"{name:<6} {theirs:>8.2f} s {ours:>8.2f} s {ratio:>7.2f} {GOAL:>6}")
    value = found["time"]
    load = os.getloadavg()[0]
    line = {"name": "hf_launch", "value": value, "goal": GOAL, "ok": value <= GOAL, "cpu": found["CPU"]}
    print(json.dumps({**line, "load": load}))


def torchrun() -> Measured:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "script.py").write_text(SCRIPT)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={WORKERS}", str(folder / "script.py")]
        begin, used, running = time.time(), cpu_of_children(), []
        for group in ("one", "two"):
            (folder / group).mkdir()
            running.append(subprocess.Popen([*command, str(folder / group)], stderr=subprocess.DEVNULL))
        for process in running:
            if process.wait() != 0:
                sys.exit("torchrun failed")
        ends = [float(path.read_text()) for group in ("one", "two") for path in (folder / group).iterdir()]
        return max(ends) - begin, cpu_of_children() - used


def meshctl() -> Measured:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "parts.py").write_text(COMPONENTS)
        (folder / "recipe.yaml").write_text(RECIPE)
        command = [str(Path(sys.executable).with_name("meshctl")), "launch", "recipe.yaml"]
        begin, used = time.time(), cpu_of_children()
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stdout + done.stderr)
        lines = [
            line for path in folder.glob("runs/*/*/events/*.jsonl") for line in path.read_text().splitlines()
        ]
        events = [json.loads(line) for line in lines]
        steps = [event["time"] for event in events if event["name"] == "step" and event["step"] == 1]
        assert len(steps) == 2 * WORKERS
        return max(steps) - begin, cpu_of_children() - used


def cpu_of_children() -> float:
    """Returns the CPU seconds of all descendants that have ended and were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
