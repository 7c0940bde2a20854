"""The rule about texts that look as if something in them were replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshctl.recipe.load import load

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


def helps(folder: Path, **texts: str) -> list[str]:
    """Returns the help of each report about a recipe with these texts."""
    (folder / "mine.py").write_text(CLASSES)
    (folder / "serve.py").write_text("")
    (folder / "recipe.yaml").write_text(RECIPE.format(**(PLAIN | texts)))
    found = load("recipe.yaml", [], folder, environ={"HOME": "/"}).report.diagnostics
    assert {one.code for one in found} <= {"MC579"}, found
    return [one.help for one in found]


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
        ("text", "\u201cdata/train.jsonl\u201d", "use straight quotes"),
        ("argument", "--port 8000", "write two: --port, 8000"),
        ("text", "~/data", 'write "${oc.env:HOME}/data"'),
        ("argument", '"~"', 'write "${oc.env:HOME}"'),
    ],
)
def test_a_text_that_looks_replaced_is_reported_once(
    tmp_path: Path, place: str, text: str, help: str
) -> None:
    assert helps(tmp_path, **{place: text}) == [help]


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("text", '"$question"'),
        ("text", "<eos>"),
        ("text", "~5"),
        ("text", '"{run_dir}"'),
        ("text", '"costs $A"'),
        ("text", '"${oc.env:HOME}"'),
        ("text", "--port 8000"),
        ("argument", "--title=two words"),
        ("argument", "two words"),
        ("text", "\u201cno\u201d he said"),
    ],
)
def test_other_texts_are_not(tmp_path: Path, place: str, text: str) -> None:
    assert helps(tmp_path, **{place: text}) == []
