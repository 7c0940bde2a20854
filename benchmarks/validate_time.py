"""The CPU time of commands that check a recipe, each in a cold process.

    python benchmarks/validate_time.py [--rounds 9]

The first table has ratios; the two commands of a row run alternately. The second table has seconds. The
compared recipe is that of `make demo`. The broken recipe is the same with twenty mistakes, and the large one
has 500 components in about 5,000 lines. The misspelt one has 3,000 stages with a mistake in each.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
QUICKSTART = ROOT / "recipes" / "grpo_arithmetic.yaml"
MESHCTL = (sys.executable, "-m", "meshctl")
COMPOSE = (sys.executable, "-c", "from hydra import compose")
BROKEN = (
    *(
        "nmae: x",
        "seed: one",
        "groups.rollout.rank: 2",
        "groups.judge.ranks: 0",
        "groups.train.device_type: gpus",
    ),
    *(
        "components.problems._target_: meshctl.components.Cycles",
        "components.held_out.group: roll",
        "components.sampler.paralel: {}",
    ),
    *(
        "components.judge._target_: arithmetic.Juge",
        "components.actor.parallel.tp_size: 3",
        "components.actor.args.lrr: 1",
    ),
    *(
        "pipeline.questions.samples: -1",
        "pipeline.answers.call: sampler.anser",
        "pipeline.exam.in: answer",
        "pipeline.rollouts.in: [bach]",
    ),
    *(
        "pipeline.scored.dispatch: slise",
        "pipeline.metrics.every: 0",
        "pipeline.publish.to: smapler",
        "run.steps: 1e3",
        "run.grace: -1",
    ),
)
"""Key path and value of each mistake."""
STEP = """from meshctl import Batch, Component, endpoint


class Step(Component):
    @endpoint
    def run(self, batch: Batch) -> Batch: ...
"""
COMPONENTS = 500
STAGES = 3000


@dataclass(frozen=True)
class Case:
    what: str
    command: tuple[str, ...]
    against: tuple[str, ...]
    """The command to compare with; empty for a case that is measured in seconds."""
    goal: float


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as name:
        found = [measured(case, rounds) for case in cases(Path(name))]
    worst, *others = sorted(found, key=lambda case: float(case["value"]) / float(case["goal"]), reverse=True)
    print(
        json.dumps(
            {
                "name": "validate_time",
                **worst,
                "ok": float(worst["value"]) <= float(worst["goal"]),
                "others": others,
            }
        )
    )


def cases(folder: Path) -> list[Case]:
    valid = (*MESHCTL, "validate", str(QUICKSTART))
    return [
        Case("validate / from hydra import compose", valid, COMPOSE, 1.3),
        Case("20 mistakes / none", (*MESHCTL, "validate", str(broken(folder))), valid, 1.2),
        Case("validate, seconds", valid, (), 0.3),
        Case(f"{COMPONENTS} components, seconds", (*MESHCTL, "validate", str(large(folder))), (), 2.0),
        Case(f"{STAGES:,} mistakes, seconds", (*MESHCTL, "validate", str(misspelt(folder))), (), 3.0),
        Case("alias bomb of 1 MiB, seconds", (*MESHCTL, "validate", str(bomb(folder))), (), 0.2),
        Case("--help, seconds", (*MESHCTL, "--help"), (), 0.15),
        Case("explain, seconds", (*MESHCTL, "explain", "MC410"), (), 0.15),
        Case("schema, seconds", (*MESHCTL, "schema"), (), 0.15),
    ]


def measured(case: Case, rounds: int) -> dict[str, object]:
    """Returns the median of the seconds, or of the ratios of pairs of runs where there is a command to
    compare with."""
    cpu(case.command)  # fills the caches of bytecode and files
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(cpu(case.command))
        theirs.append(cpu(case.against) if case.against else 1.0)
    value = statistics.median(one / other for one, other in zip(ours, theirs, strict=True))
    seconds = f"{statistics.median(ours):.3f} s"
    if case.against:
        seconds += f" / {statistics.median(theirs):.3f} s"
    print(f"{case.what:<40} {seconds:>18} {value:>7.2f}   goal {case.goal:g}", flush=True)
    return {"what": case.what, "value": round(value, 3), "goal": case.goal}


def cpu(command: Sequence[str]) -> float:
    """Returns the seconds of user and system time of a process and its children."""
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "GITHUB_"))
    }
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environ
    ) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1, 3):
        sys.exit(f"{' '.join(command)} ended with {process.returncode}")
    return used.ru_utime + used.ru_stime


def broken(folder: Path) -> Path:
    """Writes the recipe of the demo with all mistakes at once, each at a plausible place."""
    import yaml

    (folder / "arithmetic").symlink_to(QUICKSTART.parent / "arithmetic")
    recipe = yaml.safe_load(QUICKSTART.read_text(encoding="utf-8"))
    for mistake in BROKEN:
        path, _, value = mistake.partition(": ")
        *outer, key = path.split(".")
        at = recipe
        for name in outer:
            at = at.setdefault(name, {})
        at[key] = yaml.safe_load(value)
    return written(folder / "broken.yaml", yaml.safe_dump(recipe, sort_keys=False))


def large(folder: Path) -> Path:
    """Writes a recipe of the demo's classes, with ten lines for each component and its stage."""
    parts = ["groups:\n  train: {ranks: 8, device_type: cpu}\ncomponents:\n"]
    for number in range(COMPONENTS):
        parts.append(
            f"  problems{number}:\n    _target_: meshctl.components.Cycle\n    group: train\n    "
            "parallel:\n      dp_size: 4\n"
            f"      tp_size: 2\n    args:\n      path: train.jsonl\n      seed: {number}\n"
        )
    parts.append(
        "pipeline:\n"
        + "".join(f"  batch{n}:\n    call: problems{n}.next\n    samples: 64\n" for n in range(COMPONENTS))
    )
    return written(folder / "large.yaml", "".join(parts) + "run: {steps: 1}\n")


def misspelt(folder: Path) -> Path:
    """Writes a recipe with a mistake in each stage: a misspelt input, component, method or key in turn."""
    mistakes = (
        "{{call: step.run, in: stgae{before}}}",
        "{{call: setp{number}.run, in: stage{before}}}",
        "{{call: step.rnu, in: stage{before}}}",
        "{{call: step.run, inn: stage{before}}}",
    )
    stages = [
        f"  stage{number}: {mistakes[number % 4].format(number=number, before=number - 1)}\n"
        for number in range(1, STAGES + 1)
    ]
    own = "  source: {_target_: meshctl.components.Cycle, group: train, args: {path: train.jsonl}}\n"
    groups = "groups: {train: {ranks: 2, device_type: cpu}}\n"
    head = f"{groups}components:\n{own}  step: {{_target_: steps.Step, group: train}}\n"
    (folder / "steps.py").write_text(STEP, encoding="utf-8")
    text = (
        f"{head}pipeline:\n  stage0: {{call: source.next, samples: 4}}\n{''.join(stages)}run: {{steps: 1}}\n"
    )
    return written(folder / "misspelt.yaml", text)


def bomb(folder: Path) -> Path:
    """Writes ten levels of nine YAML aliases each, padded with comments to one MiB."""
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    text = "\n".join(levels) + "\n"
    return written(folder / "bomb.yaml", text + "#" + "x" * (2**20 - len(text) - 2) + "\n")


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


if __name__ == "__main__":
    main()
