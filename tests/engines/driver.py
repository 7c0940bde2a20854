"""Launches a plan for the tests of the engines, in a fork of the command server, which has imported torch.

Workers run a few steps with an all_reduce over their group, and then behave as MODE states.
"""

from __future__ import annotations

import math
import multiprocessing.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from meshctl.cli.launch import print_cause
from meshctl.engines.engine import Job
from meshctl.engines.local import LocalEngine
from meshctl.engines.supervise.attempt import RunHeld, begin
from meshctl.engines.supervise.signals import Signals
from meshctl.engines.supervise.supervisor import Supervisor
from meshctl.network.control_store import StoreClient
from meshctl.plan.model import Plan
from meshctl.run.directory import RunDir
from meshctl.run.events import Journal
from meshctl.run.shutdown import PREFIX, StopAgreement
from meshctl.trackers import tracker_named

STEPS = 3


def connect(environ: Mapping[str, str]) -> dist.Store:
    head, attempt = environ["MESHCTL_HEAD"], environ["MESHCTL_ATTEMPT"]
    if head.startswith("/"):  # an attempt on one node
        return dist.FileStore(f"{head}/{attempt}-{environ['MESHCTL_GROUP']}", -1)
    host, _, port = head.partition(":")
    store = dist.TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=20))
    return dist.PrefixStore(f"run/{attempt}", store)


def agree(environ: Mapping[str, str]) -> StoreClient:
    prefix = f"run/{environ['MESHCTL_ATTEMPT']}/{PREFIX}"
    return StoreClient(environ["MESHCTL_CONTROL"], environ["MESHCTL_TOKEN"], prefix)


def worker(environ: Mapping[str, str]) -> int:
    path, group, rank = Path(environ["MESHCTL_PLAN"]), environ["MESHCTL_GROUP"], int(environ["RANK"])
    plan, run, mode = Plan.read(path), RunDir.of_plan(path), environ["MODE"].split()
    journal = Journal(run.journal(f"{group}-{rank}"), group, rank)
    chosen = f"{group}:{rank}" in mode
    if "first" in mode and run.read_start().attempt:
        chosen = False
    if chosen and "early" in mode:
        raise ImportError("no such thing")
    while chosen and "slow" in mode:
        time.sleep(0.1)
    store = connect(environ)
    dist.init_process_group(
        "gloo",
        store=dist.PrefixStore(f"world/{group}", store),
        rank=rank,
        world_size=plan.group(group).workers,
    )
    job_rank = plan.group(group).first_job_rank + rank
    ending = StopAgreement(agree(environ), agree(environ), job_rank)
    ending.plan(0 if "forever" in mode else STEPS, {}, [])
    if chosen and "stubborn" in mode:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "children" in mode:
        multiprocessing.util.get_temp_dir()  # as data loaders do, for the sockets of shared tensors
        for own_session in (False, True):
            quiet = subprocess.DEVNULL if own_session else None  # it has no pipe of the run then
            subprocess.Popen(
                ["sleep", "1000"], start_new_session=own_session, stdin=quiet, stdout=quiet, stderr=quiet
            )
    planned = None if "forever" in mode else STEPS
    journal.write(
        "ready",
        last=planned,
        threads=torch.get_num_threads(),
        pid=os.getpid(),
        parent=os.getppid(),
        head=environ["MESHCTL_HEAD"],
        control=environ["MESHCTL_CONTROL"],
    )
    print(f"{group}:{rank} is ready", flush=True)
    step = 1 + (saved_step(run) if "resumes" in mode else 0)
    while ending.begin(step):
        try:
            dist.all_reduce(torch.ones(1))
        except RuntimeError as error:
            journal.write("fault", step=step, stage="sum", error=f"{error}", traceback="", lost=True)
            while chosen and "stubborn" in mode:
                time.sleep(0.1)
            return 1
        if chosen and step == 2:
            misbehave(mode, journal)
        if "rarely" not in mode or ending.is_cut(step):
            run.checkpoint(step).mkdir(parents=True, exist_ok=True)
            journal.write("saved", step=step)
        write_metrics(journal, mode, step)
        time.sleep(0.01)
        step += 1
    ending.leave()
    journal.write("done", step=ending.last)
    dist.destroy_process_group()
    return 0


def write_metrics(journal: Journal, mode: list[str], step: int) -> None:
    if (value := loss_of(mode, step)) is not None:
        journal.write("metric", step=step, stage="eval", values={"loss": value}, weight=1.0, collect="mean")
    journal.write("step", step=step, seconds=0.0, stages={}, routes={})


def saved_step(run: RunDir) -> int:
    return int(run.read_start().resume.rpartition("-")[2] or 0)


def loss_of(mode: list[str], step: int) -> float | None:
    """The metric of a step: `losses=3,-,nan` are those of the steps 1 and 3."""
    listed = [word.removeprefix("losses=").split(",") for word in mode if word.startswith("losses=")]
    losses = listed[0] if listed else []
    return float(losses[step - 1]) if step <= len(losses) and losses[step - 1] != "-" else None


def misbehave(mode: list[str], journal: Journal) -> None:
    if "raise" in mode:
        journal.write(
            "fault", step=2, stage="sum", error="ValueError: boom", traceback="Traceback: boom", lost=False
        )
        sys.exit(1)
    if "vanish" in mode:
        os._exit(0)
    if "segfault" in mode:
        os.kill(os.getpid(), signal.SIGSEGV)
    while "hang" in mode:
        time.sleep(0.1)


def launch(folder: Path, plan: str, again: bool) -> int:
    """Launches a plan, or continues its run. `folder` then contains `run`, the name of the run directory."""
    os.dup2(1, 2)
    tempfile.tempdir = None  # the server has asked for another one
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may have said nohup
    resume = RunDir(Path((folder / "run").read_text())) if again else None
    try:
        attempt = begin(Plan.from_json(plan), "name: test\n", (str(folder), os.getcwd()), resume)
    except RunHeld as error:
        print(error)
        return 4
    (folder / "run").write_text(str(attempt.run.path))
    with Signals().handled() as signals:
        job = Job(attempt.plan, attempt.run, worker, keep=(attempt.lock,))
        over = folder / "over"  # where this file is, no time is left
        supervisor = Supervisor(LocalEngine(), signals, lambda: math.inf if over.exists() else 0.0)
        outcome = supervisor.run(job, attempt, lambda: [tracker_named("jsonl", attempt.run)])
    print_cause(outcome)
    return outcome.code
