"""`validate --data` encodes every row of the sources, and runs no code of the recipe."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from tests.command_server import call

RECIPE = """
name: rows
groups:
  train: {{ranks: 1, device_type: cpu}}
components:
  chats: {{_target_: {target}, group: train, args: {{path: chats.jsonl, tokenizer: byte{more}}}}}
  trainer: {{_target_: parts.Trainer, group: train}}
pipeline:
  batch: {{call: chats.next, samples: 4}}
  metrics: {{call: trainer.step, in: batch}}
"""
PARTS = """
from meshctl import Batch, Component, endpoint
from meshctl.data import Chat

open("imported", "w").close()


class Own(Chat):
    pass


class Trainer(Component):
    @endpoint(collect="mean")
    def step(self, batch: Batch) -> dict[str, float]: ...
"""
GOOD = json.dumps({"prompt": "1 and 2", "completion": "3"})
LONG = json.dumps({"prompt": "a" * 99, "completion": "b"})
EMPTY = json.dumps({"prompt": "?", "completion": []})


def validated(
    folder: Path, rows: list[str], more: str = "", target: str = "meshctl.data.Chat"
) -> tuple[int, str]:
    (folder / "chats.jsonl").write_text("\n".join(rows))
    (folder / "parts.py").write_text(PARTS)
    (folder / "json.py").write_text("raise RuntimeError")  # a module that hides one of Python's
    (folder / "recipe.yaml").write_text(RECIPE.format(more=more, target=target))
    done = call(folder, "validate", "recipe.yaml", "--data")
    assert not done.stderr and not (folder / "imported").exists()
    return done.returncode, done.stdout


def test_rows_that_can_be_used(tmp_path: Path) -> None:
    code, out = validated(tmp_path, [GOOD] * 5, ", max_length: 60")
    assert code == 0
    assert out.startswith("ok: rows: ") and out.endswith("; each row was encoded, without code of yours\n")


@pytest.mark.parametrize("kind", ["Chat", "ChatStream"])
def test_all_rows_that_cannot_be_used_are_reported_at_once(tmp_path: Path, kind: str) -> None:
    code, out = validated(
        tmp_path, [GOOD, '{"a', LONG, EMPTY, GOOD], ", max_length: 60", f"meshctl.data.{kind}"
    )
    assert code == 1 and "error[MC447]: 3 of 5 rows of `chats` cannot be used" in " ".join(out.split())
    flat = "".join(out.split())
    for number, problem in (
        (2, "Unterminatedstring"),
        (3, "therowhas"),
        (4, "`completion`isnotalistofmessages"),
    ):
        assert f"chats.jsonl:{number}:{problem}" in flat, out


def test_skipped_rows_are_a_warning(tmp_path: Path) -> None:
    code, out = validated(tmp_path, [GOOD, EMPTY], ", bad_rows: skip")
    assert code == 0 and "warning[MC447]: 1 of 2 rows of `chats` cannot be used" in " ".join(out.split())


def test_a_class_of_the_user_is_not_imported(tmp_path: Path) -> None:
    code, out = validated(tmp_path, [GOOD, EMPTY], target="parts.Own")
    assert code == 0 and "note[MC449]: the rows of `chats` are not examined" in " ".join(out.split())
