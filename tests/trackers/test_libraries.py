"""The trackers of libraries, with the real ones and without a network: a run that restarts and is resumed
continues the same curve, and what each library has is read back."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshctl.package import installed_version
from meshctl.recipe.tracker_fields import LIBRARIES, TRACK
from meshctl.run.directory import RunDir, write_whole
from meshctl.run.events import Event
from meshctl.run.media import media_path, png
from meshctl.run.metrics import as_json
from meshctl.run.settings import Elastic, Track
from meshctl.trackers import TRACKERS
from meshctl.trackers.feed import Feeds
from tests.view.recorded import make_plan

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
SECRET = "hf_" + "a1B2c3D4e5" * 3 + "f6G7"
BLOCK, FULL, LAST = 1 << 15, 1, 4
"""Of the log format of LevelDB."""
LOSS = {1: 4.0, 2: math.nan, 3: 3.0, 4: 2.5, 5: 2.0, 6: 1.5, 7: 1.0}
"""Step -> the value that survives. Step 4 was 9 before the restart, and step 3 was the same."""

RESTARTS = {
    2: "restarted after step 2, train with 1 of 2 workers: the key <redacted>",
    3: "rollout restarts alone: rollout:0 failed",
}
"""Step -> the line about a restart after it."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tracked")


@pytest.fixture(scope="module")
def tracked(folder: Path) -> RunDir:
    """A run of three attempts and two launches, given to all libraries that are installed."""
    run = RunDir(folder / "runs" / "grpo" / "20260102-030405")
    plan = make_plan()
    plan = replace(plan, run=replace(plan.run, elastic=(Elastic("train", 1),)))
    actor = replace(plan.components[1], args={"lr": 0.1, "hub": {"api_key": SECRET}})
    write_whole(run.plan, replace(plan, components=(plan.components[0], actor)).to_json())
    write_whole(run.recipe, f"name: arithmetic\nvars: {{token: {SECRET}}}\n")
    write_whole(run.git, "abc123\nmain\n")
    run.checkpoint(2).mkdir(parents=True)
    (run.checkpoint(2) / "weights").write_text("0.1")
    options = {"wandb": {"mode": "offline", "project": "p"}, "mlflow": {"checkpoints": True}}
    names = [name for name, library in LIBRARIES.items() if installed_version(library)]
    tracks = [Track(name, {"patience": 250, **options.get(name, {})}) for name in names]
    warnings: list[str] = []
    environ = {
        **os.environ,
        "TRACKIO_DIR": str(folder / "trackio"),
        "HOME": str(folder),
        "WANDB_SILENT": "true",
    }

    def launched() -> Feeds:
        return Feeds(run, tracks, (), warnings.append, environ=environ).start()

    feeds = launched()
    feeds.on_attempt(0, None)
    feeds.on_event(Event("launched", value={"attempt": 0, "workers": {"rollout": 1, "train": 2}}))
    for step, loss in ((1, 4.0), (2, None), (3, 3.0), (4, 9.0)):
        feeds.on_row(row(step, loss))
        if step == 2:
            announce(feeds, run)
            feeds.on_event(Event("checkpoint", step=2, value={"path": str(run.checkpoint(2))}))
    write_whole(
        run.lost_metrics, "".join(as_json({**row(n, loss), "attempt": 0}) for n, loss in ((3, 3.0), (4, 9.0)))
    )
    feeds.on_attempt(1, 2)
    sizes = {"train": [2, 1]}
    feeds.on_event(Event("restarted", step=2, value={"cause": f"the key {SECRET}", "sizes": sizes}))
    feeds.on_event(Event("launched", value={"attempt": 1, "workers": {"rollout": 1, "train": 1}}))
    feeds.on_event(Event("restarted", step=3, value={"group": "rollout", "cause": "rollout:0 failed"}))
    for step in (3, 4, 5):
        feeds.on_row(row(step, LOSS[step]))
    feeds.on_end(5, f"train:1 failed: the key {SECRET}")
    feeds = launched()
    feeds.on_attempt(2, 5)
    feeds.on_row(row(6, 1.5))
    feeds.on_row(row(7, 1.0))
    feeds.on_row({**row(7, 1.0), "exam.reward": 0.5})  # of a stage at the end
    feeds.on_end(0, "")
    assert not warnings
    return run


def row(step: int, loss: float | None) -> dict[str, Any]:
    return {"step": step, "time": 0.5 * step, "metrics.loss": loss}


def announce(feeds: Feeds, run: RunDir) -> None:
    table = {"columns": ["prompt", "reward"], "rows": [["1 | 2\n+", 0.5], ["ü", None]]}
    histogram = {
        "counts": [1, 3],
        "edges": [0.0, 1.0, 2.0],
        "sum": 5.0,
        "sum_of_squares": 9.0,
        "not_finite": 0,
    }
    write_whole(media_path(run, 2, "rollouts.samples", "table"), json.dumps(table).encode())
    write_whole(media_path(run, 2, "metrics.weights", "histogram"), json.dumps(histogram).encode())
    write_whole(media_path(run, 2, "metrics.board", "image"), png(2, 1, 1, b"\0\0\xff", "a board"))
    for path in sorted((run.media / "step-2").iterdir()):
        feeds.on_event(Event("media", step=2, value={"file": str(path.relative_to(run.path))}))
    feeds.on_event(Event("media", step=2, value={"file": "media/step-2/metrics.gone.png"}))


def equal(values: dict[int, float]) -> bool:
    """Whether a curve is the surviving one."""
    return values.keys() == LOSS.keys() and all(
        values[step] == loss or (math.isnan(loss) and math.isnan(values[step])) for step, loss in LOSS.items()
    )


def test_each_tracker_has_options_and_a_library() -> None:
    assert set(TRACK.keys) == set(LIBRARIES) == set(TRACKERS) - {"jsonl"}


def test_no_file_of_a_tracker_has_a_secret(tracked: RunDir, folder: Path) -> None:
    own = {tracked.plan, tracked.recipe}
    files = [path for path in folder.rglob("*") if path.is_file() and path not in own]
    assert len(files) > 5 and not [path for path in files if SECRET.encode() in path.read_bytes()]


def test_tensorboard(tracked: RunDir) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util import tensor_util

    found = EventAccumulator(
        str(tracked.trackers / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0}
    )
    found.Reload()
    scalars = found.Scalars("metrics/loss")
    assert [one.step for one in scalars] == list(LOSS) and equal({one.step: one.value for one in scalars})
    assert [(one.step, one.value) for one in found.Scalars("exam/reward")] == [(7, 0.5)]
    [image] = found.Images("metrics/board")
    assert (image.step, image.width, image.height) == (2, 2, 1)
    assert image.encoded_image_string == next((tracked.media / "step-2").glob("*.png")).read_bytes()
    [histogram] = found.Histograms("metrics/weights")
    assert list(histogram.histogram_value.bucket) == [1, 3] and histogram.histogram_value.sum == 5.0

    def text(tag: str) -> str:
        [*_, last] = found.Tensors(f"{tag}/text_summary")
        return str(tensor_util.make_ndarray(last.tensor_proto)[0].decode())

    assert text("rollouts/samples").splitlines()[2:] == ["| 1 \\| 2<br>+ | 0.5 |", "| ü |  |"]
    assert "name: arithmetic" in text("recipe.yaml") and text("checkpoints").endswith("step-2`")
    assert text("end") == "exit code 0"
    assert text("restarts") == RESTARTS[3]
    assert [(one.step, one.value) for one in found.Scalars("workers/train")] == [(1, 2.0), (3, 1.0)]


def wandb_records(folder: Path) -> Iterator[Any]:
    """Yields the records of wandb's files: blocks of 32 KiB with parts of records, after a head of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        content, at, whole = path.read_bytes(), 7, b""
        while at + 7 <= len(content):
            if BLOCK - at % BLOCK < 7:  # too little for the head of a part
                at += BLOCK - at % BLOCK
                continue
            _, length, kind = struct.unpack("<IHB", content[at : at + 7])
            whole += content[at + 7 : at + 7 + length]
            at += 7 + length
            if kind in (FULL, LAST):
                record = wandb_internal_pb2.Record()
                record.ParseFromString(whole)
                whole = b""
                yield record


def test_wandb(tracked: RunDir) -> None:
    pytest.importorskip("wandb")
    records = list(wandb_records(tracked.trackers))
    ids = {one.run.run_id for one in records if one.WhichOneof("record_type") == "run"}
    assert len(ids) == 1
    rows = [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in one.history.item}
        for one in records
        if one.WhichOneof("record_type") == "history"
    ]
    losses = [(row["step"], float(row["metrics/loss"])) for row in rows if "metrics/loss" in row]
    assert [step for step, _ in losses] == [1, 2, 3, 4, 4, 5, 6, 7]  # a value that changed is there twice
    assert equal(dict(losses))
    assert [row["step"] for row in rows if "exam/reward" in row] == [7]
    kinds = {
        name: kind for row in rows for key, kind in row.items() if (name := key.removesuffix("/_type")) != key
    }
    assert kinds["metrics/weights"] == "histogram" and kinds["metrics/board"] == "image-file"
    assert kinds["rollouts/samples"].startswith("table-file")
    metrics = {
        one.metric.name or one.metric.glob_name: one.metric.step_metric
        for one in records
        if one.HasField("metric")
    }
    assert metrics["*"] == "step"
    config = {
        item.key: json.loads(item.value_json)
        for one in records
        if one.HasField("run")
        for item in one.run.config.update
    }
    assert config["components"]["actor"]["args"] == {"lr": 0.1, "hub": {"api_key": "<redacted>"}}
    assert config["git"] == {"commit": "abc123", "branch": "main", "dirty": False}
    assert [row["workers/train"] for row in rows if "workers/train" in row] == [2, 1]
    alerts = [(one.alert.title, one.alert.text) for one in records if one.HasField("alert")]
    assert alerts == [("restart", line) for line in RESTARTS.values()]
    assert [one.exit.exit_code for one in records if one.HasField("exit")] == [5, 0]


def test_mlflow(tracked: RunDir) -> None:
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{tracked.path.parent.parent / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("arithmetic")
    assert experiment is not None
    [found] = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(found.info.run_id, "metrics/loss")
    assert sorted(one.step for one in history) == [1, 2, 3, 4, 4, 5, 6, 7]
    assert equal({one.step: one.value for one in sorted(history, key=lambda one: one.timestamp)})
    assert found.info.status == "FINISHED" and found.info.run_name == "grpo/20260102-030405"
    assert found.data.params["components.actor.args.lr"] == "0.1"
    assert found.data.params["components.actor.args.hub.api_key"] == "<redacted>"
    assert found.data.tags["mlflow.source.git.commit"] == "abc123" and found.data.tags["exit_code"] == "0"
    assert {step: found.data.tags[f"restart.{step}"] for step in RESTARTS} == RESTARTS
    assert [one.value for one in client.get_metric_history(found.info.run_id, "workers/train")] == [2, 1]
    artifacts = Path(found.info.artifact_uri.removeprefix("file://"))
    names = {str(path.relative_to(artifacts)) for path in artifacts.rglob("*") if path.is_file()}
    assert names == {
        *("recipe.yaml", "plan.json", "checkpoints/step-2/weights"),
        "media/rollouts/samples/step-2/rollouts.samples.table.json",
        "media/metrics/weights/step-2/metrics.weights.histogram.json",
        "media/metrics/board/step-2/metrics.board.png",
    }


def test_trackio(tracked: RunDir, folder: Path) -> None:
    pytest.importorskip("trackio")
    import sqlite3

    [database] = (folder / "trackio").glob("*.db")
    with sqlite3.connect(database) as connection:
        alerts = connection.execute("SELECT title, text FROM alerts WHERE title = 'restart'").fetchall()
        tables = connection.execute("SELECT run_name, step, metrics FROM metrics ORDER BY id").fetchall()
    rows = [(step, json.loads(values)) for _, step, values in tables]
    assert {name for name, _, _ in tables} == {"grpo/20260102-030405"}
    losses = [(step, values["metrics/loss"]) for step, values in rows if "metrics/loss" in values]
    assert [step for step, _ in losses] == [1, 2, 3, 4, 4, 5, 6, 7]
    assert equal({step: math.nan if loss in (None, "NaN") else loss for step, loss in losses})
    assert [text for _, text in alerts] == list(RESTARTS.values())
    assert [values["workers/train"] for _, values in rows if "workers/train" in values] == [2, 1]
    kinds = {
        name: value["_type"]
        for _, values in rows
        for name, value in values.items()
        if isinstance(value, dict)
    }
    assert kinds == {
        "metrics/board": "trackio.image",
        "metrics/weights": "trackio.histogram",
        "rollouts/samples": "trackio.table",
    }
