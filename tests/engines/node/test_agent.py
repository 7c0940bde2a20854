"""Programs, workers that are started by exec, and the agent as a command."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

from processes import Launch, Launched, alive, family, plan_of, wait

from meshctl.plan.model import Cluster, Program
from tests.log_text import output_of

SCRIPT = """
import json, os, sys
print("speaks", flush=True)
total = 0.0
if sys.argv[2] == "left":
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    total = total.item()
with open(os.path.join(sys.argv[1], f"{sys.argv[2]}-{os.environ['RANK']}.json"), "w") as file:
    json.dump([total, dict(os.environ), os.getcwd()], file)
if total:
    dist.barrier()
    dist.destroy_process_group()
"""
"""A program whose ranks meet, if it is called `left`."""


WITHOUT_TORCH = """
import os, sys, time
with open(os.path.join(sys.argv[1], f"{sys.argv[2]}-{os.environ['RANK']}.json"), "w"):
    pass
while sys.argv[2] == "waits":
    time.sleep(0.1)
if os.environ["RANK"] == "1":
    raise ValueError("boom")
"""
"""A program that waits, or fails on one rank."""


def program(folder: Path, word: str, cwd: str = "", script: str = SCRIPT) -> Program:
    (folder / "script.py").write_text(script)
    return Program(("script.py", "{run_dir}", word), cwd)


def event_of(run: Launched, word: str, rank: int) -> tuple[float, dict[str, str], str]:
    total, environ, cwd = json.loads((run.run.path / f"{word}-{rank}.json").read_text())
    return total, environ, cwd


def test_two_programs_at_once_each_with_its_own_world(launch: Launch, tmp_path: Path) -> None:
    """Each on two nodes with one agent per node, as on two machines."""
    (tmp_path / "below").mkdir()
    left, right = program(tmp_path, "left"), program(tmp_path, "right", "below")
    plan = plan_of(tmp_path, ("one", 3), ("left", left), ("right", right))
    run = launch(replace(plan, cluster=Cluster(nodes=2)))
    assert run.end() == 0, run.output()
    assert len(run.events("done")) == 3
    for word in ("left", "right"):
        for rank in (0, 1):
            total, environ, cwd = event_of(run, word, rank)
            assert total == (2 if word == "left" else 0)
            expected = {"RANK": f"{rank}", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "GROUP_RANK": f"{rank}"}
            expected |= {"LOCAL_WORLD_SIZE": "1", "MESHCTL_GROUP": word, "OMP_NUM_THREADS": "1"}
            assert expected.items() <= environ.items()
            assert cwd == (str(tmp_path / "below") if word == "right" else str(tmp_path))
            assert output_of(run.run.log(word, rank)) == "speaks\n"
    assert event_of(run, "left", 0)[1]["MASTER_PORT"] != event_of(run, "right", 0)[1]["MASTER_PORT"]
    logs = {path.name for path in (run.run.path / "logs" / "one").iterdir()}
    assert logs == {"0.log", "1.log", "2.log", "agent-0.log", "agent-1.log"}


def test_a_program_that_raises_is_quoted(launch: Launch, tmp_path: Path) -> None:
    run = launch(plan_of(tmp_path, ("left", program(tmp_path, "fails", script=WITHOUT_TORCH))))
    assert run.end() == 5
    assert run.output().startswith(
        "error: left:1 failed: ValueError: boom\nTraceback (most recent call last):"
    )


def test_a_program_is_asked_to_end(launch: Launch, tmp_path: Path) -> None:
    run = launch(plan_of(tmp_path, ("left", program(tmp_path, "waits", script=WITHOUT_TORCH))))
    wait(lambda: len(list(run.run.path.glob("waits-*.json"))) == 2, "the program")
    pids = family(run.pid)
    run.send(signal.SIGTERM)
    assert run.end() == 143
    assert not any(map(alive, pids))
    assert [event.value["stopped"] for event in run.events("exited")] == [True, True]


def test_variables_read_at_import_mean_an_exec(launch: Launch, tmp_path: Path) -> None:
    """The worker is then started as `python -m meshctl.runtime.worker`, and runs three steps of an empty
    pipeline."""
    env = (("OMP_NUM_THREADS", "2"), ("NAME", "${oc.env:MODE}"))
    run = launch(plan_of(tmp_path, ("one", 1), env=env), "its-value")
    wait(lambda: len(run.events("started")) == 1, "a worker")
    process = Path(f"/proc/{run.pid_of('one', 0)}")
    wait(lambda: b"meshctl.runtime.worker" in (process / "cmdline").read_bytes(), "the exec")
    environ = (process / "environ").read_bytes().split(b"\0")
    assert b"OMP_NUM_THREADS=2" in environ
    assert b"NAME=its-value" in environ
    assert run.end() == 0, run.output()
    assert len(run.events("done")) == 1


def test_an_agent_with_nothing_to_run_reports_it(tmp_path: Path) -> None:
    from meshctl.cli.agent import placed

    plan = tmp_path / "plan.json"
    assert placed(plan, "0")[1].startswith(f"the plan cannot be read: no such file or directory: {plan}")
    plan.write_text(plan_of(tmp_path, ("one", 1)).to_json())
    assert placed(plan, "0")[1] == ""
    assert placed(plan, "2")[1] == "the plan has no group on node 2"
    assert placed(plan, "0.0") == (0, "")
    assert placed(plan, "0.1")[1] == "--node 0.1 does not exist: the plan has sets of 1 node"
    assert placed(plan, "one")[1] == "--node must be the number of a node, or SET.INDEX, not 'one'"


def test_a_service_is_terminated_when_the_others_have_ended(launch: Launch, tmp_path: Path) -> None:
    service = replace(program(tmp_path, "waits", script=WITHOUT_TORCH), service=True)
    run = launch(plan_of(tmp_path, ("one", 1), ("judge", service)))
    assert run.end() == 0, run.output()
    assert run.run.read_start().attempt == 0
    stopped = {(event.group, event.value["stopped"]) for event in run.events("exited")}
    assert stopped == {("one", False), ("judge", True)}
