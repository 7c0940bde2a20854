"""Sources in real runs: a resume on another number of ranks sees every sample once, and bad data end a run with
one message."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from tests.cli.commands import meshctl

pytestmark = pytest.mark.slow

SINK = """
import json
from meshctl import Batch, Component, endpoint

class Sink(Component):
    @endpoint(collect="sum")
    def take(self, batch: Batch) -> dict[str, float]:
        rows = [row.tolist() for row in batch["input_ids"].rows()]
        with open("seen.jsonl", "a") as file:
            for id, row in zip(batch.ids[:, 0].tolist(), rows):
                file.write(json.dumps([id, row]) + "\\n")
        return {"tokens": float(batch["input_ids"].lengths.sum())}
"""
RECIPE = """
name: data
groups:
  train: {ranks: 2, device_type: cpu}
components:
  texts:
    _target_: meshctl.data.Text
    group: train
    args: {path: texts.jsonl, tokenizer: byte, max_length: 24, pack: true, workers: 1}
  sink: {_target_: sink.Sink, group: train}
pipeline:
  batch: {call: texts.next, samples: 4}
  out: {call: sink.take, in: batch, dispatch: {allow_empty: true}}
run: {dir: runs, checkpoint: {every: 100}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sink.py").write_text(SINK)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    rows = [{"text": chr(97 + n) * (n + 1)} for n in range(20)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def seen(folder: Path) -> dict[int, list[int]]:
    found = [json.loads(line) for line in (folder / "seen.jsonl").read_text().splitlines()]
    assert len({id for id, _ in found}) == len(found), "each sample once"
    return dict(found)


def test_a_resume_on_another_mesh_sees_every_sample_once(folder: Path) -> None:
    first = meshctl(folder, "launch", "recipe.yaml", "run.steps=2")
    assert first.returncode == 0, first.stderr
    assert sorted(seen(folder)) == list(range(8))
    [run] = folder.glob("runs/data/*")
    options = ("groups.train.ranks=1", "run.steps=99", "run.epochs=2")
    second = meshctl(folder, "launch", str(run), *options)
    assert second.returncode == 0, second.stderr
    packs = seen(folder)
    assert sorted(packs) == list(range(len(packs)))
    epochs = [[packs[id] for id in range(start, start + len(packs) // 2)] for start in (0, len(packs) // 2)]
    for epoch in epochs:
        tokens = sorted(token for pack in epoch for token in pack if token < 256)
        assert bytes(tokens).decode() == "".join(chr(97 + n) * (n + 1) for n in range(20))
    assert epochs[0] != epochs[1]


@pytest.mark.slow_suite
def test_a_bad_row_ends_the_run_with_its_place(folder: Path) -> None:
    with (folder / "texts.jsonl").open("a") as file:
        file.write('{"text": ["not", "a", "text"]}\n')
    done = meshctl(folder, "launch", "recipe.yaml")
    assert done.returncode == 5
    expected = "texts.jsonl:21: `text` is ['not', 'a', 'text'], not a text"
    assert [line for line in done.stderr.splitlines() if line.startswith("error: ") and expected in line]
    assert "Traceback" not in done.stderr
