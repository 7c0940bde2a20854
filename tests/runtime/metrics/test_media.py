"""Images, histograms and tables of `self.log`."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import meshctl
from meshctl.run.directory import RunDir
from meshctl.run.events import Event, StepReport
from meshctl.run.media import media_of, size_of
from meshctl.runtime.loop_context import StepState
from meshctl.runtime.metrics import media
from meshctl.runtime.metrics.stage_metrics import StageMetrics
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import EXECUTE
from tests.runtime.in_process import KeptEvents
from tests.runtime.plans import call


def pixels(content: bytes) -> tuple[tuple[int, int, int], list[int]]:
    """Returns height, width, channels and the values of a PNG file without filters."""
    (width, height), data = size_of(content), content[content.index(b"IDAT") + 4 :]
    rows = zlib.decompressobj().decompress(data)
    line = len(rows) // height
    assert not any(rows[::line]), "no row has a filter"
    values = [value for n in range(height) for value in rows[n * line + 1 : (n + 1) * line]]
    return (height, width, (line - 1) // width), values


RAMP = torch.arange(24, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("data", "shape", "values"),
    [
        (RAMP.view(2, 4, 3), (2, 4, 3), RAMP),
        (RAMP.view(3, 4, 2), (4, 2, 3), RAMP.view(3, 4, 2).permute(1, 2, 0)),
        (RAMP.view(4, 6), (4, 6, 1), RAMP),
        (RAMP.view(1, 4, 6), (4, 6, 1), RAMP),
        (np.arange(24, dtype=np.uint8).reshape(3, 2, 4)[:, ::-1], (3, 2, 4), RAMP.view(3, 2, 4).flip(1)),
        (torch.tensor([[0.0, 0.5], [1.0, torch.nan]]), (2, 2, 1), torch.tensor([0, 128, 255, 0])),
        (torch.tensor([[True, False]]), (1, 2, 1), torch.tensor([255, 0])),
        (torch.ones(2, 2, dtype=torch.bfloat16, requires_grad=True), (2, 2, 1), torch.full((4,), 255)),
    ],
)
def test_images(data: Any, shape: tuple[int, ...], values: torch.Tensor) -> None:
    content, warning = meshctl.Image(data, "ü").content()
    assert pixels(content) == (shape, values.flatten().tolist()) and not warning


def test_histograms() -> None:
    values = torch.tensor([0.0, 1.0, 1.0, 4.0, torch.nan, torch.inf])
    found = json.loads(meshctl.Histogram(values, bins=4).content()[0])
    assert found == {
        **{"counts": [1, 2, 0, 1], "edges": [0.0, 1.0, 2.0, 3.0, 4.0], "not_finite": 2},
        **{"sum": 6.0, "sum_of_squares": 18.0},
    }
    for odd in (torch.zeros(0), torch.full((3,), 7), np.ones((2, 2), np.int64), torch.tensor([torch.nan])):
        found = json.loads(meshctl.Histogram(odd).content()[0])
        assert len(found["counts"]) == 64 and len(found["edges"]) == 65
        assert sum(found["counts"]) == int(torch.as_tensor(odd).isfinite().sum())


def test_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [["hello", 1, 0.5], [None, True, torch.tensor(2.0)], ["ü\n", np.float32(1), float("nan")]]
    found = json.loads(meshctl.Table(["text", "n", "x"], rows).content()[0])
    assert found == {
        "columns": ["text", "n", "x"],
        "rows": [["hello", 1, 0.5], [None, True, 2.0], ["ü\n", 1.0, "nan"]],
    }
    monkeypatch.setattr(media, "MAX_ROWS", 2)
    content, warning = meshctl.Table(["a"], [["x" * 20_000]] * 3).content()
    assert json.loads(content)["rows"] == [["x" * 10_000]] * 2 and "1 row are left out" in warning


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (meshctl.Image("cat.png"), "'x': an image is made of a tensor or an array, not a str"),
        (meshctl.Image(torch.zeros(2, 5, 7)), r"'x': an image has the shape .*, not \[2, 5, 7\]"),
        (meshctl.Image(torch.tensor([[255.0]])), "values from 0 to 1, not from 255 to 255"),
        (meshctl.Image(torch.tensor([[3]])), "uint8, bool or floats, not of int64"),
        (meshctl.Image(torch.zeros(0, 3)), "an image has the shape"),
        (meshctl.Histogram(["a"]), "a histogram is made of a tensor or an array, not a list"),
        (meshctl.Histogram(torch.zeros(1), bins=0), "1 to 512 bins, not 0"),
        (meshctl.Table("ab", []), "the columns of a table are a list of names"),
        (meshctl.Table(["a", "b"], [[1, 2], [1]]), "row 1 of a table must have 2 cells"),
        (meshctl.Table(["a"], ["x"]), "row 0 of a table must have 1 cell"),
        (meshctl.Table(["a"], [[[]]]), "a cell of a table is text, a number, a bool or None, not a list"),
    ],
)
def test_what_is_wrong_is_one_message(value: Any, message: str, tmp_path: Path) -> None:
    logged = Logged(tmp_path)
    with pytest.raises((TypeError, ValueError), match=message):
        logged.metrics.log({"x": value}, 1.0)


class Logged:
    """The stage `eval` on one rank of a run."""

    def __init__(self, path: Path, rank: int = 0, execute: str = "all") -> None:
        self.run, self.events = RunDir(path), list[Event]()
        self.state = StepState(report=StepReport(3))
        kept, mesh = KeptEvents(self.events, "train", rank), DeviceMesh.from_sizes(dp_size=2, tp_size=2)
        stage, mode = call("eval", "judge.loss", "batch"), EXECUTE[execute]
        self.metrics = StageMetrics(stage, mesh, rank, self.state, kept, path, execute=mode)
        self.metrics.begin_call()


def test_one_rank_writes_the_files_and_numbers_stay_metrics(tmp_path: Path) -> None:
    table = meshctl.Table(["a"], [[1]])
    for rank in range(4):
        logged = Logged(tmp_path / str(rank), rank)
        logged.metrics.log({"n": 2.0, "t": table, "in": {"t": [table, table], "m": 1.0}}, 1.0)
        numbers = [one["values"] for one in logged.state.report.metrics]
        assert numbers == ([{"n": 2.0, "in/m": 1.0}] if rank in (0, 2) else [])
        found = [(one.step, one.name, one.number) for one in media_of(logged.run)]
        files = [(3, "eval.in/t", 1), (3, "eval.in/t", 2), (3, "eval.t", 1)]
        assert found == (files if rank == 0 else [])
        announced = [(one.stage, one.value) for one in logged.events if one.name == "media"]
        if rank == 0:
            file = "media/step-3/eval.t.table.json"
            assert announced[0] == ("eval", {"metric": "t", "kind": "table", "file": file})
        assert len(announced) == len(found)


def test_a_call_that_is_repeated_replaces_its_files(tmp_path: Path) -> None:
    logged = Logged(tmp_path)
    for attempt in (1, 2):
        logged.metrics.log({"t": meshctl.Table(["a"], [[attempt]])}, 1.0)
        if attempt == 1:
            logged.metrics.drop_call()
    assert [one.read()["rows"] for one in media_of(logged.run)] == [[[2]]]


def test_too_much_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    logged = Logged(tmp_path)
    logged.metrics.log({"big": meshctl.Image(torch.zeros(1, 5000))}, 1.0)
    monkeypatch.setattr(media, "MAX_OF_STEP", 2)
    for _ in range(4):
        logged.metrics.log({"t": meshctl.Table(["a"], [])}, 1.0)
    assert len(media_of(logged.run)) == 2
    assert [record.getMessage().partition("` ")[0] for record in caplog.records] == ["`eval.big", "`eval.t"]
    (logged.run.media / "step-4").write_text("in the way")
    monkeypatch.undo()
    logged.state.report = StepReport(4)
    logged.metrics.log({"w": meshctl.Table(["a"], [])}, 1.0)
    assert "cannot be written: File exists" in caplog.records[-1].getMessage()
