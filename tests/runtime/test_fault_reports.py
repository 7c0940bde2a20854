"""The report of a worker's error, without the secrets in its arguments."""

import json
from pathlib import Path

import pytest

from meshctl.plan.model import Cluster, Component, Group, Plan, Run
from meshctl.run.directory import RunDir
from meshctl.run.events import Journal
from meshctl.runtime.instantiate import component_class
from meshctl.runtime.worker import Worker, WorkerEnv, secrets_of, user_frames
from meshctl.runtime.world import Control
from meshctl.topology.mesh import DeviceMesh

GROUP = Group(
    "train", "cpu", 1, 0, env=(("WANDB_API_KEY", None), ("MODE", "fast"), ("HUB_TOKEN", "${oc.env:HUB}"))
)
ARGS = {
    "token": "written-out",
    "auth": {"user": "${oc.env:WHO}"},
    "path": "${oc.env:DATA}",
    "names": ["x", {"note": "run of ${oc.env:PLAIN}"}],
    "size": "${oc.env:SIZE}",
    "kind": "${oc.env:KIND}",
    "tokenizer": "plain-text",
}
ACTOR = Component("actor", "m.Actor", "train", DeviceMesh.from_sizes(dp_size=1), ARGS)
PLAN = Plan("x", 0, Cluster.of(1), (GROUP,), (ACTOR,), (), (), Run())
ENVIRON = {
    "WANDB_API_KEY": "key-of-wandb",
    "HUB": "hub-token",
    "WHO": "somebody",
    "DATA": "/data/here",
    "PLAIN": "blue-heron",
    "SIZE": "4096",
    "KIND": "auto",
    "HOME_TOKEN": "not-given",
}


def worker_of(run: RunDir) -> Worker:
    env = WorkerEnv(run.plan, "train", 0, "localhost:1", 0, Control("localhost:2", "", 0))
    return Worker(env, run, Journal(run.journal("train-0"), "train", 0))


def test_secrets_of_a_group_are_not_shown() -> None:
    from_environment = {"somebody", "key-of-wandb", "hub-token", "blue-heron"}
    assert set(secrets_of(PLAN, "train", ENVIRON)) == {"written-out", *from_environment}
    assert set(secrets_of(PLAN, "train", {})) == {"written-out"}


def test_a_fault_and_its_log_contain_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)
    run = RunDir(tmp_path)
    worker = worker_of(run)
    worker._plan = PLAN
    try:
        raise ValueError(
            "wrong key key-of-wandb for somebody at https://me:pass@host, --token abc; see /data/here with plain-text, 4096 and blue-heron"
        )
    except ValueError as error:
        worker.report_fault(error)
    event = json.loads(run.journal("train-0").read_text())
    shown = "wrong key <redacted> for <redacted> at https://me:<redacted>@host, --token <redacted>; see /data/here with plain-text, 4096 and <redacted>"
    assert event["value"]["error"] == f"ValueError: {shown}"
    log = capfd.readouterr().err
    for text in (log, event["value"]["traceback"]):
        assert "Traceback" in text and "test_fault_reports.py" in text
        assert shown in text and "key-of-wandb" not in text


class Mute(ValueError):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def _circle() -> Exception:
    one, other = ValueError("one"), KeyError("other")
    one.__cause__, other.__cause__ = other, one
    return one


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (_circle(), "ValueError: one"),
        (Mute(), "Mute: (its message cannot be shown: RuntimeError)"),
        (ValueError("x" * 3_000_000), "ValueError: xxx"),
        (ValueError("x\n" * 20_000), "ValueError: x\nx"),
        (ValueError("a\u202eb"), "ValueError: a?b"),
        (FileNotFoundError("plan.json"), "FileNotFoundError: plan.json"),
    ],
    ids=["circle", "mute", "long", "many lines", "reversed", "no plan"],
)
def test_any_exception_is_reported_as_itself_and_in_few_lines(
    error: Exception, shown: str, tmp_path: Path
) -> None:
    run = RunDir(tmp_path)
    worker = worker_of(run)
    try:
        raise error
    except Exception as raised:
        worker.report_fault(raised)
    value = json.loads(run.journal("train-0").read_text())["value"]
    assert value["error"].startswith(shown) and not value["lost"]
    assert len(value["error"]) < 2_200 and len(value["traceback"]) < 4_000


def test_the_traceback_of_a_failed_import_begins_in_the_imported_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_parts.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    actor = Component("actor", "broken_parts.Actor", "train", DeviceMesh.from_sizes(dp_size=1))
    with pytest.raises(ModuleNotFoundError) as raised:
        component_class(actor, [])
    frames = user_frames(raised.value.__traceback__.tb_next)
    assert frames and frames.tb_frame.f_code.co_filename == str(tmp_path / "broken_parts.py")
