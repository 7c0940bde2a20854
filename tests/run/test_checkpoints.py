"""The checkpoint from which a run continues: damage of every kind, links that point elsewhere, and older formats;
and the file that says which state differs between ranks."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from meshctl.run.checkpoints import (
    FILE,
    Manifest,
    NoWholeCheckpoint,
    VaryingState,
    clear_later,
    describe,
    newest_whole_checkpoint,
)
from meshctl.run.directory import RunDir
from meshctl.topology.mesh import DeviceMesh


def save(run: RunDir, step: int, finished: bool = True) -> Path:
    """Writes a small checkpoint, as workers and the supervisor do."""
    folder = run.checkpoint(step)
    (folder / "actor").mkdir(parents=True)
    (folder / "actor" / "__0_0.distcp").write_bytes(bytes(range(100)))
    (folder / "train.json").write_text('{"format": 2, "given": {"batch": 8}}')
    if finished:
        files = [path for path in folder.rglob("*") if path.is_file()]
        Manifest(step, describe(folder, files)).write(folder)
        run.publish_checkpoint(step)
    return folder


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path)
    save(run, 10)
    save(run, 20)
    return run


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "a flipped bit": ("actor/__0_0.distcp", flip, "has other bytes than were written"),
    "a cut file": ("actor/__0_0.distcp", lambda path: os.truncate(path, 60), "has 60 bytes and was written with 100"),
    "a missing file": ("actor/__0_0.distcp", Path.unlink, "is missing"),
    "a missing position": ("train.json", Path.unlink, "is missing"),
    "an empty position": ("train.json", lambda path: path.write_text(""), "has 0 bytes"),
    "no manifest": (FILE, Path.unlink, ""),
    "a cut manifest": (FILE, lambda path: os.truncate(path, 60), "is damaged"),
    "an empty manifest": (FILE, lambda path: path.write_text(""), "is damaged"),
    "another manifest": (FILE, lambda path: path.write_text("[]"), "is damaged"),
    "a newer manifest": (FILE, lambda path: path.write_text('{"format": 9, "version": "9.0"}'), "format 9 of meshctl 9.0"),
    "a manifest that leads elsewhere": (
        FILE,
        lambda path: path.write_text(path.read_text().replace("train.json", "../../secret")),
        "is outside of the checkpoint",
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_is_named_and_the_one_before_is_used(damage: str, run: RunDir) -> None:
    name, spoil, reason = DAMAGES[damage]
    spoil(run.checkpoint(20) / name)
    found = newest_whole_checkpoint(run)
    assert found.step == 10
    assert found.warning.startswith(
        "the checkpoint of step 20 is damaged, so the run continues from that of step 10: "
    )
    assert reason in found.warning
    assert str(run.checkpoint(20) / name if name != FILE or reason else run.checkpoint(20)) in found.warning


def test_where_none_is_whole_each_damaged_file_is_named(run: RunDir) -> None:
    for step, damage in ((10, "no manifest"), (20, "a missing file")):
        name, spoil, _ = DAMAGES[damage]
        spoil(run.checkpoint(step) / name)
    with pytest.raises(NoWholeCheckpoint, match=r"has no manifest|is missing") as raised:
        newest_whole_checkpoint(run)
    assert all(str(run.checkpoint(step)) in str(raised.value) for step in (10, 20))


def test_several_damaged_ones_are_one_warning(run: RunDir) -> None:
    save(run, 30)
    for step in (20, 30):
        flip(run.checkpoint(step) / "actor" / "__0_0.distcp")
    found = newest_whole_checkpoint(run)
    assert found.step == 10
    assert "the checkpoints of steps 30 and 20 are damaged" in found.warning


def test_a_copy_of_another_step_is_damaged(run: RunDir) -> None:
    shutil.copytree(run.checkpoint(10), run.checkpoint(30))
    assert "is of step 10" in newest_whole_checkpoint(run).warning


def test_an_unfinished_one_is_none(run: RunDir, tmp_path: Path) -> None:
    save(run, 30, finished=False)
    assert newest_whole_checkpoint(run).step == 20 and not newest_whole_checkpoint(run).warning
    alone = RunDir(tmp_path / "alone")
    save(alone, 5, finished=False)
    assert newest_whole_checkpoint(alone).path is None


@pytest.mark.parametrize("target", ["step-99", "/etc", "..", "step-10", None])
def test_latest_is_not_followed(target: str | None, run: RunDir) -> None:
    run.latest.unlink()
    if target:
        run.latest.symlink_to(target)
    assert newest_whole_checkpoint(run).path == run.checkpoint(20)


def test_steps_that_run_again_have_room(run: RunDir) -> None:
    save(run, 30)
    save(run, 40, finished=False)
    flip(run.checkpoint(30) / "actor" / "__0_0.distcp")
    clear_later(run, newest_whole_checkpoint(run).step)
    names = {path.name for path in run.checkpoints.iterdir()}
    assert names == {"step-10", "step-20", "damaged-step-30", "latest"}
    assert run.saved() == 20
    save(run, 30, finished=False)  # the next attempt dies in the same step
    found = newest_whole_checkpoint(run)
    assert (found.step, found.warning) == (20, "")


def test_a_checkpoint_of_an_older_format_is_refused_and_stays(run: RunDir) -> None:
    for step in (10, 20):
        (run.checkpoint(step) / FILE).unlink()
        (run.checkpoint(step) / "train.json").write_text('{"given": {"batch": 8}}')
    files = sorted(run.path.rglob("*"))
    with pytest.raises(NoWholeCheckpoint, match=r"older than meshctl 0\.1\.0, the last version"):
        newest_whole_checkpoint(run)
    assert sorted(run.path.rglob("*")) == files


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = Manifest(3, {"a/b": {"size": 1, "sha256": "00"}}, {"seed": 0})
    written.write(tmp_path, private=True)
    assert Manifest.read(tmp_path) == written
    assert (tmp_path / FILE).stat().st_mode & 0o077 == 0
    assert json.loads((tmp_path / FILE).read_text())["format"] == 1


MESH = DeviceMesh.from_sizes(dp_size=2, tp_size=2)
STATE = VaryingState.of(MESH, ("dp", "tp"), {"noise": ("tp",), "position": ("dp", "tp")})


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    STATE.write(tmp_path)
    assert VaryingState.read(tmp_path) == STATE
    assert VaryingState.read(tmp_path / "nowhere") == VaryingState()
    VaryingState.of(MESH, (), {}).write(tmp_path)
    assert VaryingState.read(tmp_path) == VaryingState() and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"mesh": {}, "document": [], "values": {"a": 1}}',
        '{"mesh": {"dp": "x"}, "document": [], "values": {}}',
        '{"mesh": {"dp": 2}, "document": ["tp"], "values": {}}',
        '{"mesh": {"dp": 2}, "document": [], "values": {"a": [["dp"]]}}',
    ],
)
def test_a_damaged_file_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "by_rank.json").write_text(text)
    with pytest.raises(ValueError, match=r"by_rank\.json is damaged"):
        VaryingState.read(tmp_path)


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({"dp_size": 2, "tp_size": 2}, ""),
        ({"dp_size": 2, "tp_size": 2, "pp_size": 3}, ""),
        (
            {"dp_size": 4, "tp_size": 2},
            "with dp 2 and cannot be loaded with dp 4: `position` differs along `dp` and `tp`",
        ),
        (
            {"dp_size": 2, "tp_size": 1},
            "with tp 2 and cannot be loaded with tp 1: `noise` and `position` differ along `tp` and `dp`",
        ),
        (
            {"fsdp_size": 2},
            "with tp 2 x dp 2 and cannot be loaded with tp 1 x dp 1: `noise` and `position` differ along "
            "`tp` and `dp`",
        ),
        (
            {"dp_size": 2, "tp_size": 2, "ulysses_size": 2},
            "with ulysses 1 and cannot be loaded with ulysses 2: `position` differs along `dp` and `tp`",
        ),
        (
            {"dp_size": 2, "tp_size": 2, "ep_size": 2},
            "with ep 1 and cannot be loaded with ep 2: `noise` and `position` differ along `tp` and `dp`",
        ),
    ],
)
def test_changed_sizes_are_refused_where_a_value_differs_along_them(
    sizes: dict[str, int], reason: str
) -> None:
    found = STATE.refusal("actor", DeviceMesh.from_sizes(**sizes))
    assert found == (f"the state of `actor` was saved {reason}" if reason else "")


def test_documents_alone_may_differ_along_a_dim_that_changes() -> None:
    """They differ where a stage of a pipeline has keys that others do not have."""
    state = VaryingState.of(DeviceMesh.from_sizes(pp_size=2), ("pp",), {})
    assert state.refusal("actor", DeviceMesh.from_sizes()) == ""
    assert state.changed(state.document, DeviceMesh.from_sizes()) == {"pp": 2}
    assert state.changed(state.document, DeviceMesh.from_sizes(pp_size=2, vpp_size=2)) == {"vpp": 1}
