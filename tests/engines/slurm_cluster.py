"""A Slurm cluster of three nodes on this machine, two of which have two made-up GPUs.

    with cluster(folder) as made:                # with ports and a munge of its own
        subprocess.run(["sinfo"], env=made.environ)

The GPUs are /dev/null and /dev/zero: Slurm counts them and sets CUDA_VISIBLE_DEVICES. A job in the partition
`urgent` preempts those in `debug`. All daemons listen on the loopback address, and are ended by their process number.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.engines.processes import alive
from tests.hang import HANG_S

NODES = ("n1", "n2", "n3")
TOOLS = ("munged", "mungekey", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel")
PATHS = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
START_S = HANG_S


def missing() -> list[str]:
    """Returns what this machine lacks for a cluster."""
    lacking = [tool for tool in TOOLS if shutil.which(tool, path=PATHS) is None]
    return [*([] if os.geteuid() == 0 else ["root"]), *lacking]


class Cluster:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def environ(self) -> dict[str, str]:
        """The environment in which Slurm's commands find this cluster."""
        return {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": PATHS}

    def open(self) -> None:
        """Starts all daemons, and waits until every node is idle."""
        for name in ("state", "log", *(f"spool-{node}" for node in NODES)):
            (self.folder / name).mkdir(parents=True)
        key, conf = self.folder / "munge.key", self.folder / "slurm.conf"
        subprocess.run(["mungekey", "-c", "-k", str(key)], env=self.environ, check=True)
        conf.write_text("".join(f"{line}\n" for line in self._lines(free_ports(1 + len(NODES)))))
        (self.folder / "gres.conf").write_text("NodeName=n1,n2 Name=gpu Count=2 File=/dev/null,/dev/zero\n")
        files = {"socket": "munge.socket", "pid-file": "munge.pid", "log-file": "log/munge.log"}
        options = [f"--{name}={self.folder / file}" for name, file in (*files.items(), ("seed-file", "seed"))]
        self.start("munged", "--foreground", "--force", f"--key-file={key}", *options)
        wait_for(lambda: (self.folder / "munge.socket").exists(), "munged")
        self.start("slurmctld", "-D")
        for node in NODES:
            self.start_node(node)
        wait_for(lambda: self.idle() == len(NODES), "three idle nodes")

    def _lines(self, ports: Sequence[int]) -> Iterator[str]:
        host, folder = socket.gethostname().partition(".")[0], self.folder
        settings = {
            "ClusterName": "mini",
            "SlurmctldHost": f"{host}(127.0.0.1)",
            "SlurmctldPort": ports[0],
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={folder}/munge.socket",
            "SlurmUser": "root",
            "SlurmdUser": "root",
            "StateSaveLocation": folder / "state",
            "SlurmdSpoolDir": folder / "spool-%n",
            "SlurmctldPidFile": folder / "slurmctld.pid",
            "SlurmdPidFile": folder / "slurmd-%n.pid",
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "JobAcctGatherType": "jobacct_gather/none",
            "MpiDefault": "none",
            "KillWait": 5,
            "AccountingStorageType": "accounting_storage/none",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_Core",
            "ReturnToService": 2,
            "SlurmdTimeout": 20,
            "SchedulerParameters": "bf_hetjob_immediate,bf_interval=2,bf_max_job_start=0,sched_interval=2,"
            "sched_min_interval=100000,requeue_delay=1",
            "SlurmdParameters": "config_overrides",
            "CommunicationParameters": "NoAddrCache",
            "GresTypes": "gpu",
            "PreemptType": "preempt/partition_prio",
            "PreemptMode": "REQUEUE",
        }
        yield from (f"{name}={value}" for name, value in settings.items())
        for node, port in zip(NODES, ports[1:], strict=True):
            gres = "" if node == "n3" else " Gres=gpu:2"
            at = f"NodeHostname={host} NodeAddr=127.0.0.1 Port={port}"
            yield f"NodeName={node} {at} CPUs=4 RealMemory=4000{gres}"
        at = f"Nodes={','.join(NODES)} MaxTime=INFINITE State=UP"
        yield f"PartitionName=debug Default=YES PriorityTier=1 {at}"
        yield f"PartitionName=urgent PriorityTier=9 PreemptMode=OFF {at}"

    def start(self, tool: str, *words: str, name: str = "") -> None:
        with (self.folder / "log" / f"{name or tool}.out").open("ab") as log:
            self.daemons[name or tool] = subprocess.Popen(
                [tool, *words],
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def start_node(self, node: str) -> None:
        self.start("slurmd", "-D", "-N", node, name=node)

    def kill(self, name: str) -> None:
        """Kills a daemon, such as the slurmd of a node."""
        self.daemons[name].kill()
        self.daemons.pop(name).wait()

    def run(self, *words: str) -> str:
        """Runs a command of Slurm, and returns its output."""
        done = subprocess.run(words, env=self.environ, capture_output=True, text=True)
        return done.stdout + done.stderr

    def idle(self) -> int:
        return self.run("sinfo", "-h", "-N", "-p", "debug", "-o", "%T").split().count("idle")

    def close(self) -> None:
        """Cancels all jobs, and ends the daemons; slurmstepds end with their jobs."""
        with suppress(OSError, subprocess.SubprocessError, AssertionError):
            self.run("scancel", "--user=root")
            wait_for(lambda: not self.run("squeue", "-h").strip(), "the end of all jobs", 20.0)
        end_all([process.pid for process in reversed(self.daemons.values())])
        for process in self.daemons.values():
            process.wait()


def free_ports(count: int) -> list[int]:
    """Returns ports below those that the kernel gives to clients, so that no connection of another process takes
    one before its daemon does."""
    first = 20_000 + os.getpid() % 1000 * 10
    for port in range(first, first + count):
        socket.create_server(("127.0.0.1", port)).close()
    return [*range(first, first + count)]


def wait_for(condition: Callable[[], object], what: str, limit_s: float = START_S) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, f"the cluster of Slurm has no {what} within {limit_s:.0f} s"
        time.sleep(0.2)


def end_all(pids: Sequence[int]) -> None:
    """Ends processes by their numbers."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        end = time.monotonic() + 5
        while time.monotonic() < end and any(map(alive, pids)):
            time.sleep(0.1)


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    made = Cluster(folder)
    try:
        made.open()
        yield made
    finally:
        made.close()
