"""`meshctl doctor --run`: launches a recipe with known values over all paths between the workers of this
machine. Its components raise if a wrong value arrives.

On CPU there are two groups of two workers on two nodes, which are processes of this machine. On a machine
with CUDA devices there are further runs: between two groups that have half of the devices each, on one node
and (by NCCL) on two nodes, and from devices to CPU. Each run is a launch in a separate process, with its run
directory in a temporary folder, which stays if the run fails.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from meshctl.cli import launch
from meshctl.cli.forks import LaunchProcess
from meshctl.diagnostics.health import Check
from meshctl.engines.checks import device_files
from meshctl.engines.node.termination import name_of
from meshctl.engines.node.visible_devices import device_list
from meshctl.package import PACKAGE_DIR

RECIPE = PACKAGE_DIR / "components" / "paths.yaml"
OUTPUT = "output.txt"
"""The file with the output of the launch, in the temporary folder."""
MAX_CAUSE_CHARS = 400


class Interrupted(Exception):
    """A signal ended the run."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code
        """The exit code: 129, 130 or 143."""


def path_runs(gpus: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yields the title and the overrides of each run on a machine with CUDA devices of these names."""
    yield "cpu", []
    if not gpus:
        return
    half = max(1, len(gpus) // 2)
    one_node, on_cuda = "cluster.nodes=1", "groups.one.device_type=cuda"
    share = [on_cuda, f"groups.one.ranks={half}", f"groups.two.ranks={half}", "groups.two.device_type=cuda"]
    yield "cuda", [one_node, *share, *(["+groups.two.colocate=one"] if len(gpus) == 1 else [])]
    if len(gpus) > 1:
        others = ",".join(gpus[half : 2 * half])
        yield "nccl", [*share, f"+cluster.devices_per_node={half}", f"+groups.two.visible_devices='{others}'"]
    yield "cuda to cpu", [one_node, on_cuda, f"groups.one.ranks={len(gpus)}"]


def gpu_names() -> tuple[str, ...]:
    """Returns the names of the CUDA devices that the environment leaves."""
    is_rocm = device_files.is_rocm()
    count = device_files.count_devices("cuda", is_rocm)
    visible = device_list("cuda", os.environ, is_rocm)
    names = visible.names if visible is not None else tuple(map(str, range(count)))
    return names[:count]


def run_paths() -> tuple[Check, ...]:
    """Launches all runs and returns a check for each. Raises `Interrupted`."""
    return tuple(_run(title, overrides) for title, overrides in path_runs(gpu_names()))


def _run(title: str, overrides: Sequence[str]) -> Check:
    folder = Path(tempfile.mkdtemp(prefix="meshctl-doctor-"))
    recipe = shutil.copy(RECIPE, folder)  # so that the folder of the package is not on the import path
    code = None

    def work() -> int:
        output = os.open(folder / OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for stream in (1, 2):
            os.dup2(output, stream)
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder / "torchinductor"))
        return launch.launch(
            str(recipe), [*overrides, f"run.dir={folder}"], launch.Options(engine="loopback")
        )

    process = LaunchProcess()
    try:
        with process.passing_signals():
            code = process.run(work)
        if process.stopped_code:
            code = None
            raise Interrupted(process.stopped_code)
    finally:
        if not code:
            shutil.rmtree(folder, ignore_errors=True)
    return check_of(title, folder, code)


def check_of(title: str, folder: Path, code: int) -> Check:
    """Returns the check of a run that has ended with an exit code."""
    if not code:
        return Check("paths", title, "ok", "all values are right")
    lines = (folder / OUTPUT).read_text(encoding="utf-8", errors="replace").splitlines()
    cause = next((line.removeprefix("error: ") for line in lines if line.startswith("error")), name_of(code))
    remedy = f"the run directory and its output are kept: {folder}"
    return Check("paths", title, "failure", cause[:MAX_CAUSE_CHARS], remedy)
