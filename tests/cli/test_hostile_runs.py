"""Run directories that contain anything: reading one follows no link out of it, opens no pipe or device, ends
soon, and harms no other run's listing."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest

from meshctl.cli.load import check
from meshctl.cli.report import report
from meshctl.cli.status import logs, runs, status, watch
from meshctl.engines.supervise.attempt import lock
from meshctl.run.checkpoints import FILE as MANIFEST
from meshctl.run.checkpoints import Manifest, NoWholeCheckpoint, describe, newest_whole_checkpoint
from meshctl.run.directory import RunDir
from meshctl.run.events import Journal
from meshctl.run.launcher import record_launch
from meshctl.view.live.listing import row_of
from meshctl.view.live.seen_run import plan_of_run
from meshctl.view.live.state_file import as_text, data_of, folded_state
from tests.cli.commands import code_of
from tests.contract.launches import old_runs
from tests.contract.pinned import DATA

OUTSIDE = "what-is-outside"
FILES = (
    ("plan.json",),
    ("recipe.yaml",),
    ("start.json",),
    ("state.json", "launches.jsonl", "job.json", ".lock", "git.txt"),
    ("metrics.jsonl", "events/launcher.jsonl", "events/train-0.jsonl", "logs/train/0.log"),
    ("checkpoints/best.json", "report.html", "media/step-1/metrics.x.table.json"),
)
"""The files of a run. Those of one row are broken together: none of them keeps a command from reading the others."""
FOLDERS = ("events", "logs", "logs/train", "checkpoints", "checkpoints/step-3", "media")
DEEP = '{"a":' * 5000 + "1" + "}" * 5000
WRONG = (
    '{"time":"now","step":"x"}',
    '{"time":1e999,"step":1}',
    '{"format":1,"times":{"launched":"x"}}',
    "[]",
    '{"name":"launched","value":{"workers":3,"attempt":[]},"time":1}',
    '{"name":[],"time":2}',
    "null",
    '{"name":"over","value":[],"time":3}',
    '{"name":"stall","value":{"workers":4},"time":4}',
    '{"step":{}}',
    '{"name":"step","rank":{},"time":5}',
    '{"name":"restarted","value":{"sizes":[1]},"time":6}',
    "1" * 5000,
)


def _link(path: Path) -> None:
    target = Path.cwd() / f"outside-{path.name}"
    target.write_text(path.read_text(errors="replace") + f"\n{OUTSIDE}\n" if path.exists() else OUTSIDE)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def _replaced(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink(missing_ok=True)
    make(path)


MAKE: dict[str, Callable[[Path], object]] = {
    "link": _link,
    "device": lambda path: _replaced(path, lambda path: path.symlink_to("/dev/zero")),
    "pipe": lambda path: _replaced(path, os.mkfifo),
    "folder": lambda path: _replaced(path, Path.mkdir),
    "deep": lambda path: path.write_text(DEEP + "\n" + DEEP),
    "types": lambda path: path.write_text("\n".join(WRONG) + "\n"),
    "bytes": lambda path: path.write_bytes(bytes(range(256)) * 10),
    "huge": lambda path: os.truncate(path, 1 << 40),
}


@pytest.fixture(scope="module")
def state() -> str:
    """The state of the run, as its launcher writes it."""
    run = RunDir(DATA / "runs" / old_runs()[0])
    return as_text(data_of(folded_state(plan_of_run(run), run), None))


@pytest.fixture
def run(state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A run that has all files, beside another one."""
    monkeypatch.chdir(tmp_path)
    for name in ("other", "one"):
        run = RunDir(tmp_path / "runs" / "contract" / name)
        shutil.copytree(DATA / "runs" / old_runs()[0], run.path, symlinks=True)
        run.state.write_text(state)
        for file in (file for row in FILES for file in row):
            (run.path / file).parent.mkdir(parents=True, exist_ok=True)
            (run.path / file).touch()
    return run


def outside() -> dict[Path, str]:
    return {path: path.read_text() for path in Path.cwd().glob("outside-*")}


COMMANDS: dict[str, Callable[[], int]] = {
    "runs": lambda: runs("runs", "text"),
    "status": lambda: status("contract/one", "runs", "text"),
    "status as json": lambda: status("contract/one", "runs", "json"),
    "logs": lambda: logs(["contract/one"], False, "", "", "runs", "text"),
    "watch": lambda: watch("contract/one", "runs", "text"),
    "report": lambda: report(["contract/one"], "runs", ""),
}


def _all_commands(capfd: pytest.CaptureFixture[str]) -> None:
    for name, command in COMMANDS.items():
        code = code_of(command)
        out, err = capfd.readouterr()
        problem = f"{name}: {code} {out[:400]} {err[:400]}"
        assert code in (0, 1, 2, 3, 5) and OUTSIDE not in out + err, problem
        if name == "runs":
            assert code == 0 and "contract/other" in out, problem
        if code == 3:
            assert err.startswith("error: ") and err.count("\n") == 1, problem


@pytest.mark.parametrize("content", MAKE)
@pytest.mark.parametrize("files", FILES, ids=lambda row: row[0])
def test_files_of_a_run(
    files: tuple[str, ...], content: str, run: RunDir, capfd: pytest.CaptureFixture[str]
) -> None:
    for file in files:
        MAKE[content](run.path / file)
    before, page = outside(), run.path / "report.html"
    _all_commands(capfd)
    assert not page.is_file() or OUTSIDE not in page.read_text()
    assert outside() == before


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_of_a_run_that_is_a_link(
    folder: str, run: RunDir, capfd: pytest.CaptureFixture[str]
) -> None:
    path, away = run.path / folder, Path.cwd() / "away"
    path.rename(away)
    path.symlink_to(away)
    for file in away.rglob("*.log"):
        file.write_text(OUTSIDE)
    _all_commands(capfd)


@pytest.mark.parametrize("content", ["link", "pipe", "deep", "types", "bytes"])
@pytest.mark.parametrize("file", [MANIFEST, "trainer/weights"])
def test_a_file_of_a_checkpoint(file: str, content: str, run: RunDir) -> None:
    folder = run.checkpoint(3)
    (folder / "trainer" / "weights").touch()
    Manifest(3, describe(folder, [folder / "trainer" / "weights"])).write(folder)
    assert newest_whole_checkpoint(run).step == 3
    MAKE[content](folder / file)
    with pytest.raises(NoWholeCheckpoint, match=file):
        newest_whole_checkpoint(run)


def test_a_state_of_other_types(run: RunDir, capfd: pytest.CaptureFixture[str]) -> None:
    """Each value of the state in turn is of another type: the events have the state."""
    whole = json.loads(run.state.read_text())
    for key, wrong in product(whole, ("text", {"a": [{}]}, 1e400)):
        run.state.write_text(as_text({**whole, key: wrong}))
        assert row_of(run, 0.0).to_data(), (key, wrong)
    assert COMMANDS["runs"]() == 0
    assert "contract/other" in capfd.readouterr().out


@pytest.mark.parametrize("content", ["link", "pipe"])
def test_a_run_is_not_continued_through_links_and_pipes(content: str, run: RunDir) -> None:
    for path in (run.launches, run.lock, run.journal("launcher")):
        MAKE[content](path)
    before = outside()
    record_launch(run, [])
    for write in (lambda: lock(run), lambda: Journal(run.journal("launcher"))):
        with suppress(OSError):
            write()
    assert outside() == before
    MAKE[content](run.recipe)
    done = check("runs/contract/one", [])
    assert done.code == 3 and "it has no `recipe.yaml`" in done.report.diagnostics[0].message
