"""`run.record`, and `meshctl launch --only GROUP --replay ROUTE=DIR`, as a user calls them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.commands import meshctl
from tests.cli.small_launch import rows, wait_for_processes
from tests.log_text import output_of, own_lines

PARTS = """
import torch
from meshctl import Batch, Component, Ragged, endpoint

class Maker(Component):
    def __init__(self) -> None:
        self.scale = 0

    @endpoint
    def next(self, samples: range) -> Batch:
        rows = Ragged.of([torch.full((n % 3,), n) for n in samples])
        return Batch({"x": torch.rand(len(samples)), "rows": rows, "text": [str(n) for n in samples]})

    @endpoint
    def made(self, batch: Batch) -> Batch:
        return batch.repeat(2)

    def load_weights(self, stream) -> None:
        self.scale = sum(float(tensor) for _, tensor in stream)

class Trainer(Component):
    def __init__(self, mood: str = "") -> None:
        self.mood, self.sum = mood, torch.zeros(())

    def weights(self):
        yield "sum", self.sum

    @endpoint
    def seen(self, batch: Batch) -> Batch:
        if self.mood == "raises" and self.step == 3:
            raise ValueError("boom")
        print("SEEN", self.step, batch.ids.tolist(), batch.group_depth, batch["x"].tolist(), batch["rows"].lengths.tolist(),
              batch["text"], batch["@version"].tolist(), flush=True)
        return batch

    @endpoint(collect="mean")
    def update(self, batch: Batch) -> dict[str, float]:
        self.sum = self.sum + batch["x"].sum()
        return {"x": float(batch["x"].mean())}
"""

RECIPE = """
name: small
groups:
  one: {ranks: 2, device_type: cpu}
  two: {ranks: 2, device_type: cpu}
components:
  maker: {_target_: parts.Maker, group: one}
  trainer: {_target_: parts.Trainer, group: two}
pipeline:
  batch: {call: maker.next, samples: 4}
  made: {call: maker.made, in: batch}
  seen: {call: trainer.seen, in: made}
  loss: {call: trainer.update, in: seen}
  publish: {sync: trainer, to: maker}
run: {steps: 4, dir: runs, record: [made]}
"""


def launch(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return meshctl(folder, "launch", *words)


def write(folder: Path) -> Path:
    (folder / "parts.py").write_text(PARTS)
    (folder / "recipe.yaml").write_text(RECIPE)
    return folder


def newest(folder: Path) -> Path:
    return max(folder.glob("runs/small/*"), key=lambda path: path.stat().st_mtime_ns)


def logged(run: Path) -> dict[str, list[str]]:
    logs = {log.stem: output_of(log).splitlines() for log in (run / "logs" / "two").glob("[0-9]*.log")}
    return {rank: [line for line in lines if line.startswith("SEEN")] for rank, lines in logs.items()}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe, and the run `whole` that has recorded its route."""
    folder = write(tmp_path_factory.mktemp("recorded"))
    done = launch(folder, "recipe.yaml")
    assert done.returncode == 0, done.stderr
    wait_for_processes(folder)
    newest(folder).rename(folder / "whole")
    files = {
        str(path.relative_to(folder / "whole" / "recorded")) for path in folder.glob("whole/recorded/**/*.*")
    }
    assert files == {f"made/step-{step}/{rank}-of-2.safetensors" for step in (1, 2, 3, 4) for rank in (0, 1)}
    return folder


@pytest.fixture
def folder(recorded: Path, tmp_path: Path) -> Path:
    """A copy of `recorded` that a test may change."""
    shutil.copytree(recorded / "whole", tmp_path / "whole")
    return write(tmp_path)


def test_a_group_alone_sees_the_same(folder: Path) -> None:
    done = launch(folder, "recipe.yaml", "--only", "two", "--replay", "made -> seen=whole")
    assert done.returncode == 0, done.stderr
    note = "note: group `two` runs alone; no weights are synced with others: `publish`"
    assert own_lines(done.stderr) == [note]
    run = newest(folder)
    assert logged(run) == logged(folder / "whole") and len(logged(run)["1"]) == 4
    assert rows(run) == rows(folder / "whole")
    assert not (run / "logs" / "one").exists()


def test_with_another_number_of_ranks_from_the_recording_itself(folder: Path) -> None:
    words = ("groups.two.ranks=1", "run.steps=3", "--only=two", "--replay=made=whole/recorded/made")
    done = launch(folder, "recipe.yaml", *words)
    assert done.returncode == 0, done.stderr
    whole, alone = rows(folder / "whole"), rows(newest(folder))
    assert [line["step"] for line in alone] == [1, 2, 3]
    assert [line["loss.x"] for line in alone] == pytest.approx([line["loss.x"] for line in whole[:3]])


def test_the_first_group_alone_sends_to_nobody(folder: Path) -> None:
    done = launch(folder, "recipe.yaml", "--only", "one")
    assert done.returncode == 0, done.stderr
    assert "note: group `one` runs alone; what it sends to others is dropped: `made -> seen`\n" in done.stderr
    assert [line["step"] for line in rows(newest(folder))] == [1, 2, 3, 4]


def test_a_run_that_fails_is_replayed_up_to_there_and_from_where_its_recording_begins(folder: Path) -> None:
    failed = launch(folder, "recipe.yaml", "components.trainer.args={mood: raises}")
    assert failed.returncode == 5 and "step 3: ValueError: boom" in failed.stderr
    run = newest(folder)
    shutil.rmtree(run / "recorded" / "made" / "step-1")
    calm = "components.trainer.args.mood=calm"
    done = launch(folder, str(run), calm, "--only", "two", "--replay", f"made={run}")
    assert done.returncode == 0, done.stderr
    assert newest(folder) != run
    assert [line["step"] for line in rows(newest(folder))][:2] == [2, 3]
    again = launch(folder, str(newest(folder)))
    refusal = "is a run of group `two` alone: launch it again with --only and --replay"
    assert again.returncode == 2 and refusal in again.stderr


def test_a_dry_run_shows_one_group(folder: Path) -> None:
    done = launch(folder, "recipe.yaml", "--dry-run", "--only", "two", "--replay", "made=whole")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("small: 1 group, 2 workers; plan ") and "--group one" not in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--replay", "made=whole"], 2, "--replay needs --only GROUP, the group to run"),
        (["--only", ""], 2, "group `` does not exist; available: `one` and `two`"),
        (["--only", "two"], 2, "group `two` takes `made -> seen` from other groups: give --replay ROUTE=DIR"),
        (["--only", "two", "--replay", "made -> sen=whole"], 2, "no route `made -> sen` comes from another group; did you mean `made -> seen`?"),
        (["--only", "two", "--replay", "seen=whole"], 2, "no route `seen` comes from another group; available: `made -> seen` and `made`"),
        (["--only", "two", "--replay", "made=a", "--replay", "made -> seen=b"], 2, "--replay names route `made -> seen` twice"),
        (["--only", "two", "--replay", "made=none"], 4, "`made -> seen` cannot be replayed: folder none does not exist"),
        (["--only", "two", "--replay", "made=."], 4, ". has no recording of `made`: start the run to be replayed with run.record=[made]"),
    ],
)  # fmt: skip
def test_what_is_refused(folder: Path, words: list[str], code: int, message: str) -> None:
    done = launch(folder, "recipe.yaml", *words)
    assert (done.returncode, done.stderr) == (code, f"error: {message}\n")
    assert not (folder / "runs").exists()


def test_recordings_that_do_not_fit(folder: Path) -> None:
    def refused(*words: str) -> str:
        done = launch(folder, "recipe.yaml", *words, "--dry-run", "--only", "two", "--replay", "made=whole")
        assert done.returncode == 4
        return done.stderr.removeprefix("error: ").rstrip("\n")

    made = folder / "whole" / "recorded" / "made"
    assert refused("pipeline.made.collect=first") == (
        f"`made -> seen` cannot be replayed from {made}: "
        "`made` was recorded with collect: flatten, but the recipe has first"
    )
    (made / "step-2" / "1-of-2.safetensors").unlink()
    assert refused() == f"the recording of `made -> seen` in {made} lacks step 2"
    shutil.rmtree(made / "step-1")
    shutil.rmtree(made / "step-2")
    assert refused("run.steps=2") == "the recordings begin at step 3, but the run has 2 steps"
    damaged = made / "step-3" / "0-of-2.safetensors"
    damaged.write_text("{")
    assert refused() == f"{damaged} is not a recording: it has no header of one"
