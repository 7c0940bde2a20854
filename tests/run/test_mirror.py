"""The copy of a run directory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshctl.run import mirror
from meshctl.run.directory import RunDir
from meshctl.run.mirror import Mirror, changes


@pytest.fixture
def runs(tmp_path: Path) -> tuple[RunDir, RunDir]:
    """Returns a run and the folder of its copy."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    return RunDir(tmp_path / "there"), RunDir(tmp_path / "here")


def write(run: RunDir, name: str, text: str) -> None:
    path = run.path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def answer(run: RunDir, copy: Mirror) -> Iterator[str]:
    return map(json.dumps, changes(run, copy.known()))


def copied(run: RunDir) -> dict[str, str]:
    return {str(name): (run.path / name).read_text() for name in Mirror(run).known()}


def test_only_what_is_new_is_sent(runs: tuple[RunDir, RunDir]) -> None:
    there, here = runs
    copy = Mirror(here)
    for name in ("state.json", "metrics.jsonl", "events/a.jsonl", "logs/g/0.log", "media/step-1/x"):
        write(there, name, f"{name}\n")
    for name in (".token", "plan.json", "checkpoints/step-1/x", "logs/.hidden"):
        write(there, name, "not copied")
    assert copy.apply(answer(there, copy))
    assert copied(here) == {name: f"{name}\n" for name in copied(here)} and len(copied(here)) == 5
    assert [json.loads(line) for line in answer(there, copy)] == [{"end": True}]
    with (there.path / "metrics.jsonl").open("a") as file:
        file.write("more\n")
    first, *_ = map(json.loads, answer(there, copy))
    assert (first["file"], first["at"]) == ("metrics.jsonl", len("metrics.jsonl\n"))
    copy.apply(answer(there, copy))
    assert copied(here)["metrics.jsonl"] == "metrics.jsonl\nmore\n"


def test_files_that_were_written_anew_or_deleted(runs: tuple[RunDir, RunDir]) -> None:
    there, here = runs
    copy = Mirror(here)
    write(there, "events/a.jsonl", "one\n")
    write(there, "metrics.jsonl", "long line\n")
    copy.apply(answer(there, copy))
    (there.path / "events/a.jsonl").unlink()
    write(there, "events/part", "two\n")
    (there.path / "events/part").rename(there.path / "events/b.jsonl")
    write(there, "metrics.jsonl", "short\n")
    copy.apply(answer(there, copy))
    assert copied(here) == {"events/b.jsonl": "two\n", "metrics.jsonl": "short\n"}


@pytest.mark.parametrize("name", ["state.json", "metrics.jsonl"])
@pytest.mark.parametrize("text", ["new", "new and longer"])
def test_a_file_that_was_written_anew_in_the_inode_of_the_old_one(
    runs: tuple[RunDir, RunDir], name: str, text: str
) -> None:
    there, here = runs
    write(there, name, "old")
    Mirror(here).apply(answer(there, Mirror(here)))
    inode = (there.path / name).stat().st_ino
    write(there, name, text)
    assert (there.path / name).stat().st_ino == inode
    Mirror(here).apply(answer(there, Mirror(here)))
    assert copied(here) == {name: text}


def test_a_large_file_arrives_in_several_answers(
    runs: tuple[RunDir, RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = runs
    monkeypatch.setattr(mirror, "CHUNK_BYTES", 4)
    write(there, "metrics.jsonl", "0123456789")
    for size in (4, 8, 10, 10):
        Mirror(here).apply(answer(there, Mirror(here)))
        assert copied(here)["metrics.jsonl"] == "0123456789"[:size]


def test_a_broken_answer_keeps_what_came_before(runs: tuple[RunDir, RunDir]) -> None:
    there, here = runs
    copy = Mirror(here)
    write(there, "state.json", "{}")
    write(there, "events/a.jsonl", "one\n")
    lines = list(answer(there, copy))
    with pytest.raises(ValueError):
        copy.apply([lines[0], lines[1][:-5]])
    assert list(copied(here)) == ["events/a.jsonl"]
    assert not copy.apply(lines[:-1]) and len(copied(here)) == 2


@pytest.mark.parametrize("name", ["../x", "plan.json", "events/../../x", "/etc/x", "events", ".token"])
def test_an_answer_writes_nothing_else(runs: tuple[RunDir, RunDir], name: str) -> None:
    _, here = runs
    with pytest.raises(ValueError):
        Mirror(here).apply([json.dumps({"file": name, "at": 0, "data": ""})])
    assert not (here.path.parent / "x").exists()


def test_the_published_checkpoint_is_known(runs: tuple[RunDir, RunDir]) -> None:
    there, here = runs
    there.checkpoint(4).mkdir(parents=True)
    there.publish_checkpoint(4)
    Mirror(here).apply(answer(there, Mirror(here)))
    assert here.saved() == 4


def test_one_process_copies_at_a_time(runs: tuple[RunDir, RunDir]) -> None:
    _, here = runs
    assert Mirror(here).lock() is not None
    assert Mirror(here).lock() is None
