"""The rule about texts that look as if something in them were replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recipe.rules import facts

RECIPE = """
groups:
  served: {{ranks: 1, device_type: cpu, program: serve.py, args: [{argument}], env: {{A: {value}}}}}
  train: {{ranks: 1, device_type: cpu}}
vars: {{lr: 1, data: {variable}}}
components:
  trainer: {{_target_: mine.Trainer, group: train, args: {{one: {text}, two: "${{vars.data}}", three: ["${{vars.data}}"]}}}}
pipeline: {{metrics: {{call: trainer.update, samples: 8}}}}
run: {{steps: 3}}
"""
CLASSES = """
from meshctl import Component, endpoint
class Trainer(Component):
    def __init__(self, **options): ...
    @endpoint(collect="mean")
    def update(self, samples: range) -> dict[str, float]: ...
"""
PLAIN = {"argument": "--port=8000", "value": "a", "variable": "a", "text": "a"}


@pytest.mark.parametrize(
    ("place", "text", "help"),
    [
        ("text", "$DATA", 'write "${oc.env:DATA}"'),
        ("text", '"$HOME/data"', 'write "${oc.env:HOME}/data"'),
        ("variable", "$DATA", 'write "${oc.env:DATA}"'),
        ("value", "$DATA", 'write "${oc.env:DATA}"'),
        ("argument", "$DATA", 'write "${oc.env:DATA}"'),
        ("text", '"{{ vars.lr }}"', 'write "${vars.lr}"'),
        ("argument", "$(run.steps)", 'write "${run.steps}"'),
        ("text", "~/data", 'write "${oc.env:HOME}/data"'),
        ("argument", '"~"', 'write "${oc.env:HOME}"'),
        *[
            ("text", text, "")
            for text in (
                '"$question"',
                "<eos>",
                "~5",
                '"{run_dir}"',
                '"costs $A"',
                '"${oc.env:HOME}"',
            )
        ],
    ],
)
def test_a_text_that_looks_replaced_is_reported_once(
    tmp_path: Path, place: str, text: str, help: str
) -> None:
    recipe = RECIPE.format(**(PLAIN | {place: text}))
    found = facts.reported(tmp_path, recipe, environ={"HOME": "/"}, mine=CLASSES, serve="")
    assert [(one.code, one.help) for one in found] == [("MC579", help)] * bool(help)
