from __future__ import annotations

import math
import shutil
import subprocess
import sys

import pytest

import meshctl
from meshctl.run.directory import RunDir, Start, write_whole
from meshctl.run.logs import LogFile
from meshctl.view.live.state_file import StateFile
from tests.contract.launches import old_runs
from tests.contract.pinned import DATA
from tests.paths import ROOT
from tests.view.recorded import Recorded

OLD = DATA / "runs" / old_runs()[0]


@pytest.fixture
def written(recorded: Recorded, run: RunDir) -> RunDir:
    """A whole run on disk, with its state."""
    recorded.write(run)
    run.write_start(Start(()))
    write_whole(run.plan, recorded.plan.to_json())
    write_whole(run.recipe, "name: arithmetic\n")
    view = StateFile(recorded.plan, run)
    recorded.feed(view)
    view.on_end(0, "")
    for rank in (0, 1):
        path = run.log("train", rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        LogFile(path, now=lambda: float(rank)).write(f"hello {rank}\n".encode())  # noqa: B023
    for step in (6, 12):
        run.checkpoint(step).mkdir(parents=True)
    run.publish_checkpoint(12)
    return run


def test_what_a_run_knows(written: RunDir) -> None:
    run = meshctl.open_run(written.path)
    assert (run.state, run.code, run.step, run.steps, run.reason) == ("done", 0, 12, 12, "")
    assert run.path == written.path and run.recipe == "name: arithmetic\n" and run.plan.name == "arithmetic"
    assert run.seconds == pytest.approx(6.5)
    assert [each.step for each in run.checkpoints] == [6, 12]
    assert {event.name for event in run.events()} >= {"launched", "step", "over"}
    assert [line.text for line in run.logs()] == ["hello 0", "hello 1"]
    assert [line.worker for line in run.logs("train", 1)] == ["train:1"]
    assert repr(run) == f"<run {run.name}: done, step 12>"


def test_metrics_are_columns_of_equal_length(written: RunDir) -> None:
    metrics = meshctl.open_run(written.path).metrics
    assert list(metrics) == ["step", "time", "metrics.loss", "metrics.lr", "exam.reward"]
    assert {len(column) for column in metrics.values()} == {12} and metrics["step"] == list(range(1, 13))
    assert metrics["exam.reward"][:3] == [None, None, 0.3]
    loss = metrics["metrics.loss"][6]
    assert loss is not None and math.isnan(loss)


def test_metrics_as_a_frame(written: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = meshctl.open_run(written.path).metrics
    pytest.importorskip("pandas")
    frame = metrics.to_pandas()
    assert frame.index.name == "step" and frame["exam.reward"].count() == 4
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"^to_pandas needs pandas: pip install pandas$"):
        metrics.to_pandas()


def test_what_changes_is_read_again(written: RunDir) -> None:
    run = meshctl.open_run(str(written.path))
    assert len(run.metrics["step"]) == 12
    with written.metrics.open("a") as file:
        file.write('{"step":13,"time":7.0}\n')
    assert len(run.metrics["step"]) == 12
    run.refresh()
    assert len(run.metrics["step"]) == 13
    shutil.rmtree(written.path)
    with pytest.raises(ValueError, match="does not exist"):
        run.refresh()


def test_runs_of_an_earlier_version_and_with_a_damaged_state(written: RunDir) -> None:
    run = meshctl.open_run(OLD)
    assert (run.state, run.step) == ("failed", 4) and run.metrics["metrics.updates"][-1] == 4
    written.state.write_text("{")
    assert meshctl.open_run(written.path).state == "done"


def test_a_folder_or_a_worker_that_does_not_exist(written: RunDir) -> None:
    with pytest.raises(ValueError, match="is a folder but not a run"):
        meshctl.open_run(written.path.parent)
    run = meshctl.open_run(written.path)
    with pytest.raises(ValueError, match="the group `trian` does"):
        run.logs("trian")
    with pytest.raises(ValueError, match="the rank `train:2` does"):
        run.logs("train", 2)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("plan.json", "{", "plan.json cannot be read: it is damaged"),
        ("plan.json", '{"format": 1}', "the plan has format 1, but this meshctl reads"),
        ("state.json", '{"format": 99, "meshctl": "9.1"}', "was written by meshctl 9.1 in format 99"),
    ],
)
def test_what_cannot_be_read_is_one_message(file: str, text: str, message: str, written: RunDir) -> None:
    (written.path / file).write_text(text)
    with pytest.raises(ValueError) as caught:
        meshctl.open_run(written.path)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_it_loads_nothing_heavy(written: RunDir) -> None:
    code = (
        f"import sys, meshctl; run = meshctl.open_run({str(written.path)!r}); run.metrics; list(run.events())\n"
        "print({'torch', 'numpy', 'rich', 'yaml', 'hydra'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "set()\n", done.stderr
