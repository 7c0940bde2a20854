"""The recipe whose keys are completed, and lines that are completed as bash does."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshctl.cli.completion.line import answer, candidates

RECIPE = """\
defaults:
  - layout@components.actor.parallel: fsdp
  - data@_global_: small
  - _self_
groups:
  rollout: {ranks: 2, device_type: cpu}
  train: {ranks: 8, device_type: cuda, env: {A: 1}}
components:
  prompts: {_target_: arithmetic.Prompts, group: rollout}
  sampler: {_target_: arithmetic.Sampler, group: rollout, args: {max_new_tokens: 16}}
  actor: {_target_: arithmetic.Actor, group: train}
pipeline:
  batch: {call: prompts.next, samples: 64}
  rollouts: {call: sampler.sample, in: batch}
  metrics: {call: actor.update, in: rollouts}
  publish: {sync: actor, to: sampler}
run: {steps: 170, checkpoint: {every: 50}}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a recipe and its config group."""
    files = {"grpo.yaml": RECIPE, "my runs/a recipe.yaml": RECIPE}
    files |= {"notes.txt": "", ".hidden.yaml": ""}
    files |= {f"conf/data/{size}.yaml": f"# {size}\nvars: {{{size}: 1}}\n" for size in ("small", "large")}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def bash(line: str, point: int | None = None) -> list[str]:
    end = len(line.encode()) if point is None else point
    return list(answer("bash", [], {"COMP_LINE": line, "COMP_POINT": str(end)}))


def texts(line: str) -> list[str]:
    """Returns the whole words, as for zsh and fish."""
    *before, word = line.split(" ")
    return [one.text for one in candidates(before, word) if one.text.startswith(word)]
