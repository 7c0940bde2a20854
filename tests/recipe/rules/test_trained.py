"""The rules about components that are trained: they are saved, not too late, and their samplers follow them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recipe.rules import facts

PARTS = """\
from meshctl import Batch, Component, endpoint


class Source(Component):
    @endpoint
    def next(self, samples: range) -> Batch | None: ...


class Sampler(Component):
    def __init__(self, model: str = "") -> None: ...

    @endpoint
    def sample(self, batch: Batch) -> Batch: ...

    def load_weights(self, stream) -> None: ...


class Unsaved(Sampler):
    @endpoint(collect="mean")
    def update(self, batch: Batch) -> dict[str, float]:
        return self._learned(batch)

    @endpoint(collect="mean")
    def exam(self, batch: Batch) -> dict[str, float]:
        seen = {}
        seen.update(batch)
        return seen

    def _learned(self, batch):
        self.model(batch).sum().backward()
        return {"loss": 1.0}

    def weights(self): ...


class Actor(Unsaved):
    def state_dict(self): ...

    def load_state_dict(self, state) -> None: ...
"""
RECIPE = """\
groups:
  train: {ranks: 2, device_type: cpu}
components:
  source: {_target_: parts.Source, group: train}
  sampler: {_target_: parts.Sampler, group: train, args: {model: a/b}}
  actor: {_target_: parts.Actor, group: train, args: {model: a/b}}
pipeline:
  batch: {call: source.next, samples: 8}
  answers: {call: sampler.sample, in: batch}
  metrics: {call: actor.update, in: answers}
  exam: {call: actor.exam, in: answers}
  publish: {sync: actor, to: sampler}
run: {steps: 4, checkpoint: {every: 2}}
"""
ACTOR = "_target_: parts.Actor, group: train, args: {model: a/b}"
FROZEN, SYNC = f"{ACTOR}, frozen: true", "  publish: {sync: actor, to: sampler}\n"
OTHER = ACTOR.replace("a/b", "c/d")


def found(folder: Path, *changes: tuple[str, str]) -> list[str]:
    """Returns the code, the severity and the line of each report about a changed recipe."""
    recipe = RECIPE
    for old, new in changes:
        assert old in recipe
        recipe = recipe.replace(old, new)
    return [
        f"{one.code} {one.severity} {facts.lines(one)[0]}"
        for one in facts.reported(folder, recipe, parts=PARTS)
    ]


@pytest.mark.parametrize(
    ("changes", "reports"),
    [
        ([], []),
        ([(ACTOR, FROZEN)], ["MC558 error 6"]),
        ([(ACTOR, FROZEN), (SYNC, "")], ["MC586 warning 5", "MC558 error 6"]),
        ([(ACTOR, FROZEN), ("actor.update", "actor.exam")], ["MC558 error 6"]),
        ([(ACTOR, FROZEN), ("actor.update", "actor.exam"), ("to: sampler", "to: sampler, when: start")], []),
        ([("parts.Actor", "parts.Unsaved")], ["MC559 warning 6"]),
        ([("parts.Actor", "parts.Unsaved"), (", checkpoint: {every: 2}", "")], []),
        ([("in: batch}", "in: batch, when: end}")], ["MC548 warning 10"]),
        ([("in: batch}", "in: batch, when: end}"), ("update, in: answers", "update, in: batch")], []),
        ([("in: batch}", "in: batch, when: end}"), ("in: answers}", "in: answers, when: end}")], []),
        ([(SYNC, "")], ["MC586 warning 5"]),
        ([(SYNC, ""), ("parts.Sampler, group: train", "parts.Sampler, group: train, frozen: true")], []),
        ([(SYNC, ""), (ACTOR, OTHER)], []),
        ([(SYNC, ""), (", args: {model: a/b}", "")], ["MC586 note 5"]),
    ],
)
def test_reports(tmp_path: Path, changes: list[tuple[str, str]], reports: list[str]) -> None:
    assert found(tmp_path, *changes) == reports
