"""The engine `slurm` on a real cluster of three nodes on this machine."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.commands import MAIN
from tests.cli.small_launch import RECIPE
from tests.command_server import Done, Started, call
from tests.engines import slurm_cluster
from tests.engines.processes import LONG, command_lines_with_token, name_of, rows_of, written
from tests.engines.slurm_cluster import Cluster as Machines
from tests.engines.slurm_cluster import wait_for
from tests.hang import HANG_S

needs_slurm = pytest.mark.skipif(
    bool(slurm_cluster.missing()), reason=f"needs {', '.join(slurm_cluster.missing())}"
)
pytestmark = [needs_slurm, pytest.mark.slow_suite]
TWO_SETS = RECIPE.replace("ranks: 2,", "ranks: 3,").replace("run:", "cluster: {nodes: 3}\nrun:")
TWO_SETS = TWO_SETS.replace("samples: 4", "samples: 6")
"""`one` is on the first node only, and `two` on all three: two sets of equal nodes."""
ONE_SET = TWO_SETS.replace("{ranks: 1,", "{ranks: 3,")
"""Both groups are on all three nodes."""
ENGINE = ["--engine", "slurm", "engine.slurm.lease=6"]
LIMIT_S = HANG_S


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    with slurm_cluster.cluster(tmp_path_factory.mktemp("slurm")) as made:
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written(tmp_path, TWO_SETS)


@pytest.fixture
def run(slurm: Machines, folder: Path) -> Iterator[Slurmed]:
    made = Slurmed(slurm, folder)
    yield made
    made.close()


class Slurmed:
    """A run in a job, and the commands about it."""

    def __init__(self, cluster: Machines, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self._launches: list[Started] = []

    def meshctl(self, *words: str) -> Done:
        return call(self.folder, *words, env=self.cluster.environ)

    def launched(self, *words: str) -> Started:
        launch = Started(self.folder, "launch", "recipe.yaml", *ENGINE, *words, **self.cluster.environ)
        self._launches.append(launch)
        return launch

    def begun(self, *words: str) -> None:
        """Launches a long run in the background, and waits until it has ended some steps."""
        done = self.meshctl("launch", "recipe.yaml", "--detach", *ENGINE, *LONG, *words)
        assert done.returncode == 0, done.stderr
        self.wait_for_step(3)

    def wait_for_step(self, step: int) -> None:
        wait_for(lambda: len(self.rows()) >= step, f"step {step}", LIMIT_S)

    @property
    def path(self) -> Path:
        [path] = self.folder.glob("runs/*/*")
        return path

    @property
    def job(self) -> str:
        return str(json.loads((self.path / "job.json").read_text())["job"])

    def limit(self, minutes: int) -> None:
        """Changes the time limit of the job, which has a component for each set of nodes."""
        for job in self.cluster.run("squeue", "-h", "-o", "%A").split():
            self.cluster.run("scontrol", "update", f"JobId={job}", f"TimeLimit={minutes}")

    def rows(self) -> list[dict[str, object]]:
        return rows_of(self.folder)

    def launcher_events(self) -> str:
        return "".join(file.read_text() for file in self.folder.glob("runs/*/*/events/launcher.jsonl"))

    def state(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.meshctl("status", "--format", "json").stdout)
        return found

    def ended(self) -> dict[str, object]:
        """Waits until the job has ended. Returns the state of the run, of which no process is left."""
        wait_for(lambda: not self.cluster.run("squeue", "-h").strip(), "the end of the job", LIMIT_S)
        wait_for(lambda: not self.processes(), "the end of all processes")
        return self.state()

    def processes(self, node: str = "") -> list[int]:
        """Returns the pids of the processes in the job, or of those on one node."""
        marks = [f"SLURM_CONF={self.cluster.folder}/slurm.conf", "SLURM_JOB_ID=", "SLURMD_NODENAME=" + node]
        return [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit()
            and all(any(one.startswith(mark) for one in environ_of(entry)) for mark in marks)
        ]

    def titled(self, title: str, node: str = "") -> int:
        found = [pid for pid in self.processes(node) if name_of(pid) == title]
        assert found, (title, [name_of(pid) for pid in self.processes()])
        return found[0]

    def close(self) -> None:
        for launch in self._launches:
            launch.kill()
        self.cluster.run("scancel", "--user=root")
        wait_for(lambda: not self.cluster.run("squeue", "-h").strip(), "the end of all jobs")


def environ_of(entry: Path) -> list[str]:
    try:
        return (entry / "environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def test_a_heterogeneous_job_from_submission_to_end(run: Slurmed) -> None:
    launch = run.launched("run.steps=4", "engine.slurm.time=10m", "engine.slurm.lease=600")
    code, output = launch.end()
    assert code == 0, output
    assert re.search(r"^\S+ is Slurm job \d+$", output, re.M) and "small: done after 4 steps" in output
    script = (run.path / "job" / "sbatch.sh").read_text()
    assert script.count("#SBATCH hetjob") == 1 and "#SBATCH --time=0-00:10:00" in script
    assert [row["step"] for row in run.rows()] == [1, 2, 3, 4]
    assert run.ended()["state"] == "done"
    again = run.meshctl("launch", str(run.path), *ENGINE, "engine.slurm.lease=600", "run.steps=6")
    assert again.returncode == 0, again.stderr + again.stdout
    assert [row["step"] for row in run.rows()] == [1, 2, 3, 4, 5, 6]


def scancel(run: Slurmed) -> None:
    run.cluster.run("scancel", run.job)


def kill_agent(run: Slurmed) -> None:
    os.kill(run.titled("meshctl-fork", "n2"), signal.SIGKILL)


def kill_worker(run: Slurmed) -> None:
    os.kill(run.titled("two:2"), signal.SIGKILL)


def kill_head(run: Slurmed) -> None:
    os.kill(int(run.state()["launcher"]["pid"]), signal.SIGKILL)  # type: ignore[index]


def kill_slurmd(run: Slurmed) -> None:
    run.cluster.kill("n3")


URGENT = ("sbatch", "--partition=urgent", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=sleep 2")


def preempt(run: Slurmed) -> None:
    assert "Submitted" in run.cluster.run(*URGENT)


@pytest.mark.parametrize(
    ("fault", "state", "cause", "recipe"),
    [
        (scancel, "interrupted", r"SIGTERM: Slurm job \d+ was cancelled", TWO_SETS),
        (
            kill_agent,
            "failed",
            r"connection to node 1 \(\S+\) is lost|node process on n2 \(node 1\)",
            TWO_SETS,
        ),
        (kill_worker, "failed", r"two:2 failed.*SIGKILL", TWO_SETS),
        (kill_head, "lost", "", TWO_SETS),
        (kill_slurmd, "", r"Slurm job \d+ has lost a node|node 2", TWO_SETS),
        (preempt, "", r"Slurm job \d+ was preempted", ONE_SET),
        (preempt, "", r"Slurm job \d+ was preempted", TWO_SETS),
    ],
)
def test_a_fault_ends_the_job_with_its_cause(
    run: Slurmed, fault: Callable[[Slurmed], None], state: str, cause: str, recipe: str
) -> None:
    (run.folder / "recipe.yaml").write_text(recipe)
    run.begun()
    assert not command_lines_with_token()
    fault(run)
    try:
        found = run.ended()
        assert state in ("", found["state"]) and re.search(cause, str(found["reason"])), found
    finally:
        if fault is kill_slurmd:
            run.cluster.start_node("n3")
            wait_for(lambda: run.cluster.idle() == 3, "three idle nodes", LIMIT_S)


def test_the_login_node_watches_saves_and_stops_a_job(run: Slurmed) -> None:
    run.begun()
    assert run.state()["job"] == {"name": f"Slurm job {run.job}", "phase": "running", "text": "RUNNING"}
    logs = run.meshctl("logs", "two:1")
    assert logs.returncode == 0
    saved = run.meshctl("stop", "--checkpoint")
    assert saved.returncode == 0 and "checkpoint of step" in saved.stdout, saved.stderr
    stopped = run.meshctl("stop")
    assert stopped.returncode == 0 and "interrupted (SIGINT)" in stopped.stdout, stopped.stderr
    assert run.ended()["state"] == "interrupted"
    steps = [row["step"] for row in run.rows()]
    assert run.state()["checkpoints"][-1] == steps[-1]  # type: ignore[index]


def test_a_job_in_the_queue_is_shown_and_cancelled(run: Slurmed) -> None:
    done = run.meshctl("launch", "recipe.yaml", "--detach", *ENGINE, "engine.slurm.sbatch=[--hold]")
    assert done.returncode == 0, done.stderr
    found = run.state()
    assert found["state"] == "queued" and found["job"]["text"] == "PENDING (JobHeldUser)"  # type: ignore[index]
    assert "queued" in run.meshctl("runs").stdout
    stopped = run.meshctl("stop")
    assert stopped.returncode == 0 and "it was cancelled before it began" in stopped.stdout, stopped.stderr
    assert run.state()["state"] == "interrupted"


@pytest.mark.timeout(900)
def test_a_time_limit_becomes_a_checkpoint_and_a_requeue(run: Slurmed) -> None:
    """The limit becomes short once the run has begun, which takes long on a busy machine. The signal then comes
    within two minutes: Slurm looks at limits now and then."""
    options = ["engine.slurm.time=30m", "engine.slurm.requeue=true", "run.grace=5"]
    began = time.monotonic()
    launch = run.launched(*options, LONG[0], "run.steps=1000000")
    run.wait_for_step(3)
    run.limit(minutes=int((time.monotonic() - began) / 60) + 2)
    wait_for(lambda: '"over"' in run.launcher_events(), "the end of the first job", 300)
    run.limit(minutes=30)
    wait_for(lambda: "resumed" in run.launcher_events(), "a second job", 300)
    run.wait_for_step(len(run.rows()) + 1)
    stopped = run.meshctl("stop")
    assert stopped.returncode == 0, stopped.stderr
    code, output = launch.end()
    assert code == 130, output
    assert re.search(r"^step .*^\S+: ==== meshctl: attempt 1 ====.*^step ", output, re.M | re.S), output
    events = [json.loads(line) for line in run.launcher_events().splitlines()]
    ends = [event["value"]["reason"] for event in events if event["name"] == "over"]
    assert len(ends) == 2 and re.fullmatch(r"SIGUSR2: the time limit of Slurm job \d+ is near", ends[0])
    [resumed] = [event["step"] for event in events if event["name"] == "resumed"]
    steps = [row["step"] for row in run.rows()]
    assert steps == list(range(1, len(steps) + 1)) and 0 < resumed <= len(steps)


def test_a_preempted_job_is_queued_again_and_continues(run: Slurmed) -> None:
    (run.folder / "recipe.yaml").write_text(ONE_SET)
    run.begun("engine.slurm.requeue=true")
    assert "Submitted" in run.cluster.run(*URGENT)
    wait_for(lambda: "resumed" in run.launcher_events(), "a second job", LIMIT_S)
    [resumed] = re.findall(r'"name": ?"resumed".*', run.launcher_events())
    run.wait_for_step(len(run.rows()) + 3)
    stopped = run.meshctl("stop")
    assert stopped.returncode == 0 and resumed, stopped.stderr
    found = run.ended()
    assert found["state"] == "interrupted" and found["code"] == 130, found
    steps = [row["step"] for row in run.rows()]
    assert steps == list(range(1, len(steps) + 1))


def test_a_lost_node_is_started_again(run: Slurmed) -> None:
    done = run.meshctl(
        "launch", "recipe.yaml", "--detach", *ENGINE, LONG[0], "run.steps=400", "run.restarts=2"
    )
    assert done.returncode == 0, done.stderr
    run.wait_for_step(30)
    assert "#SBATCH --no-kill" in (run.path / "job" / "sbatch.sh").read_text()
    kill_agent(run)
    found = run.ended()
    assert found["state"] == "done" and len(found["restarts"]) == 1, found  # type: ignore[arg-type]
    assert [row["step"] for row in run.rows()] == list(range(1, 401))


def test_a_launch_inside_an_allocation_uses_it(run: Slurmed) -> None:
    def launched(nodes: int) -> subprocess.CompletedProcess[str]:
        salloc = ("salloc", f"--nodes={nodes}", "--quiet", sys.executable, "-c", MAIN)
        words = (*salloc, "launch", "recipe.yaml", *ENGINE)
        return subprocess.run(words, cwd=run.folder, env=run.cluster.environ, capture_output=True, text=True)

    done = launched(3)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "small: done after 3 steps" in done.stdout and "is Slurm job" not in done.stdout
    small = launched(2)
    assert small.returncode == 4
    assert "the plan has 3 nodes, and the allocation is too small: 2 nodes" in small.stderr
    assert not run.processes()


SHOW = """
import os, pathlib, sys
name = f"{os.environ['SLURMD_NODENAME']}-{os.environ['RANK']}"
pathlib.Path(sys.argv[1], name).write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "none"))
"""


def test_the_devices_of_gres_are_visible_to_workers(run: Slurmed) -> None:
    (run.folder / "show.py").write_text(SHOW)
    (run.folder / "recipe.yaml").write_text(
        "name: gres\ncluster: {nodes: 2}\n"
        "groups: {show: {ranks: 2, device_type: cpu, program: show.py, args: ['{run_dir}']}}\n"
    )
    done = run.meshctl("launch", "recipe.yaml", *ENGINE, "engine.slurm.gres='gpu:2'")
    assert done.returncode == 0, done.stderr + done.stdout
    assert {file.name: file.read_text() for file in run.path.glob("n[12]-*")} == {
        "n1-0": "0,1",
        "n2-1": "0,1",
    }


def test_a_setup_that_fails_names_its_host(run: Slurmed) -> None:
    done = run.meshctl("launch", "recipe.yaml", *ENGINE, "engine.slurm.setup=[cd /nowhere]")
    assert done.returncode == 4, done.stderr
    assert re.search(r"host n\d \(node \d\) has failed in `engine.slurm.setup`: cd /nowhere", done.stderr)
    assert not run.processes()
