"""`meshctl doctor --run`: runs a short recipe over all paths between the workers of this machine, and
compares what arrives.

On CPU there are two groups of two workers on two nodes, which are processes of this machine. On a machine
with CUDA devices there are further runs: between two groups that have half of the devices each, on one node
and (by NCCL) on two nodes, and from devices to CPU. Each run is a launch in a separate process, with its run
directory in a temporary folder, which stays if a path is broken.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from meshctl.cli import launch
from meshctl.cli.launch_process import LaunchProcess
from meshctl.dataclass import dataclass
from meshctl.diagnostics.health import Check
from meshctl.engines.checks import device_files
from meshctl.engines.checks.paths import Expected, judge
from meshctl.engines.node.termination import name_of
from meshctl.engines.node.visible_devices import device_list
from meshctl.package import PACKAGE_DIR
from meshctl.plan.model import Plan
from meshctl.run.directory import RunDir
from meshctl.run.row_file import read

RECIPE = PACKAGE_DIR / "components" / "paths.yaml"
OUTPUT = "output.txt"
"""The file with the output of the launch, in the temporary folder."""
MAX_CAUSE_CHARS = 400


@dataclass(frozen=True)
class PathRun:
    """One run of the examination, with its own overrides. It covers some of the paths between workers."""

    title: str
    """Precedes the subjects of its checks."""
    overrides: tuple[str, ...] = ()


class Interrupted(Exception):
    """A signal ended the run."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code
        """The exit code: 129, 130 or 143."""


def path_runs(gpus: Sequence[str]) -> Iterator[PathRun]:
    """Yields the runs of a machine with CUDA devices of these names."""
    yield PathRun("")
    if not gpus:
        return
    half = max(1, len(gpus) // 2)
    one_node, on_cuda = "cluster.nodes=1", "groups.one.device_type=cuda"
    share = (on_cuda, f"groups.one.ranks={half}", f"groups.two.ranks={half}", "groups.two.device_type=cuda")
    together = ("+groups.two.colocate=one",) if len(gpus) == 1 else ()
    yield PathRun("cuda, ", (one_node, *share, *together))
    if len(gpus) > 1:
        others = ",".join(gpus[half : 2 * half])
        apart = (f"+cluster.devices_per_node={half}", f"+groups.two.visible_devices='{others}'")
        yield PathRun("nccl, ", (*share, *apart))
    yield PathRun("cuda to cpu, ", (one_node, on_cuda, f"groups.one.ranks={len(gpus)}"))


def gpu_names() -> tuple[str, ...]:
    """Returns the names of the CUDA devices that the environment leaves."""
    is_rocm = device_files.is_rocm()
    count = device_files.count_devices("cuda", is_rocm)
    visible = device_list("cuda", os.environ, is_rocm)
    names = visible.names if visible is not None else tuple(map(str, range(count)))
    return names[:count]


def run_paths() -> tuple[Check, ...]:
    """Runs over all paths and returns a check for each. Raises `Interrupted`."""
    checks: list[Check] = []
    for one in path_runs(gpu_names()):
        checks += run_one(one)
    return tuple(checks)


def run_one(one: PathRun) -> tuple[Check, ...]:
    folder = Path(tempfile.mkdtemp(prefix="meshctl-doctor-"))
    is_kept = False
    try:
        code = launched(one, folder)
        checks = checks_of(one, folder, code)
        is_kept = any(check.state == "failure" for check in checks)
        return checks
    finally:
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)


def launched(one: PathRun, folder: Path) -> int:
    """Launches a run with its output in a file, and returns its exit code. Raises `Interrupted`."""
    recipe = shutil.copy(RECIPE, folder)  # so that the folder of the package is not on the import path

    def run() -> int:
        output = os.open(folder / OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for stream in (1, 2):
            os.dup2(output, stream)
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder / "torchinductor"))
        overrides = [*one.overrides, f"run.dir={folder}"]
        return launch.launch(str(recipe), overrides, launch.Options(engine="loopback"))

    process = LaunchProcess()
    with process.passing_signals():
        code = process.run(run)
    if process.stopped_code:
        raise Interrupted(process.stopped_code)
    return code


def checks_of(one: PathRun, folder: Path, code: int) -> tuple[Check, ...]:
    """Returns the checks of a run that has ended with an exit code."""
    runs = sorted(folder.glob("doctor/*/plan.json"))
    rows = read(RunDir.of_plan(runs[0]).metrics) if runs and code == 0 else []
    checks: tuple[Check, ...] = ()
    if rows:
        plan = Plan.read(runs[0])
        checks = judge(
            rows, Expected(plan.stage("slice_dp_asked").samples, plan.group("two").workers), one.title
        )
    if rows and not any(check.state == "failure" for check in checks):
        return checks
    kept = (
        f"the run directory is kept: {runs[0].parent}" if runs else f"its output is kept: {folder / OUTPUT}"
    )
    found = cause_of(folder / OUTPUT) or (name_of(code) if code else "paths are broken")
    return (*checks, Check(f"{one.title}run", "end", "failure", found, kept))


def cause_of(output: Path) -> str:
    """Returns the first error line of a launch; empty if it has none."""
    lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error")]
    return errors[0][:MAX_CAUSE_CHARS] if errors else ""
