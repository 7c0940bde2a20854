"""`meshctl doctor [RECIPE]`: examines this machine as `launch` does. With a recipe, checks whether `launch`
would start it here."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from meshctl.cli import launch
from meshctl.cli.launch import requirements_of
from meshctl.cli.load import Launchable, Unreadable, plan_of, resolve_source
from meshctl.cli.output import check_format, has_color, write
from meshctl.diagnostics import STATES, Check, RecipeError, as_data, tally
from meshctl.engines.checks import device_files
from meshctl.engines.checks.machine import examine
from meshctl.engines.checks.requirements import Requirements
from meshctl.engines.engine import CannotStart, engine_named
from meshctl.engines.node.termination import name_of
from meshctl.package import PACKAGE_DIR
from meshctl.run.directory import Start
from meshctl.text.english import counted
from meshctl.text.redaction import command_line, redact
from meshctl.view.reports.text import shown

REFUSED, INTERRUPTED = 4, 130


def doctor(recipe: str, overrides: list[str], format: str, run: bool = False) -> int:
    """Prints the checks, with `run` also those of all paths between workers. Returns the exit code: that of
    `validate` for a wrong recipe, 4 if a check has failed, else 0."""
    check_format(format)
    code, ready, checks = (0, None, ()) if not recipe else prepared(recipe, overrides)
    try:
        checks = (*examine(requirements_of(ready) if ready else Requirements()), *checks)
        if run:
            if sys.stderr.isatty():
                print("trying all paths between workers, about 20 seconds", file=sys.stderr, flush=True)
            checks += tuple(_run(title, overrides) for title, overrides in path_runs(gpu_names()))
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED
    show(checks, format)
    return code or (REFUSED if tally(checks)["failure"] else 0)


def prepared(recipe: str, overrides: list[str]) -> tuple[int, Launchable | None, tuple[Check, ...]]:
    """Returns the exit code of `validate` for the recipe, the recipe if it is correct, and the checks about
    it."""
    again = f"meshctl validate {command_line([recipe, *overrides])}"
    try:
        name, held = resolve_source(recipe)
        ready = plan_of(name, overrides, held)
    except Unreadable as wrong:
        return 3, None, (Check("recipe", "text", "failure", redact(str(wrong)), again),)
    except RecipeError as wrong:
        errors = len(wrong.report.errors)
        found = f"{recipe} has {counted(errors, 'error')}: {wrong.report.errors[0].message}" + (
            " ..." if errors > 1 else ""
        )
        return 1, None, (Check("recipe", "text", "failure", redact(found), again),)
    plan = ready.plan
    found = f"{plan.name}: {counted(len(plan.groups), 'group')}, {counted(plan.job_size, 'worker')}"
    return 0, ready, (Check("recipe", "text", "ok", found), preflight(ready))


def preflight(ready: Launchable) -> Check:
    """Returns the result of the engine's preflight, which `launch` runs before it starts a process."""
    try:
        engine_named().preflight(ready.plan, Start(ready.path))
    except CannotStart as refused:
        remedy = "change the recipe, or launch it on another machine"
        return Check("recipe", "start", "failure", redact(str(refused)), remedy)
    return Check("recipe", "start", "ok", "`launch` would start it here")


def show(checks: tuple[Check, ...], format: str) -> None:
    if format == "json":
        write(json.dumps(as_data(checks), indent=2) + "\n", sys.stdout)
        return
    write(table(checks, has_color(sys.stdout)), sys.stdout)


# All paths between the workers of this machine (`--run`): launches of a recipe with known values, whose
# components raise if a wrong one arrives. The run directory of each is in a temporary folder, which stays if
# it fails.

RECIPE = PACKAGE_DIR / "components" / "paths.yaml"
MAX_CAUSE_CHARS = 400


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
    visible = device_files.device_list("cuda", os.environ, is_rocm)
    names = visible.names if visible is not None else tuple(map(str, range(count)))
    return names[:count]


def _run(title: str, overrides: Sequence[str]) -> Check:
    folder, code = Path(tempfile.mkdtemp(prefix="meshctl-doctor-")), 0
    recipe = shutil.copy(RECIPE, folder)  # so that the folder of the package is not on the import path
    try:
        environ = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "torchinductor")}
        options = launch.Options(engine="loopback")
        code = launch.launch_in(folder, str(recipe), overrides, options, environ)
    finally:
        if not code:
            shutil.rmtree(folder, ignore_errors=True)
    return check_of(title, folder, code)


def check_of(title: str, folder: Path, code: int) -> Check:
    """Returns the check of a run that has ended with an exit code."""
    if not code:
        return Check("paths", title, "ok", "all values are right")
    lines = (folder / launch.OUTPUT).read_text(encoding="utf-8", errors="replace").splitlines()
    cause = next((line.removeprefix("error: ") for line in lines if line.startswith("error")), name_of(code))
    remedy = f"the run directory and its output are kept: {folder}"
    return Check("paths", title, "failure", cause[:MAX_CAUSE_CHARS], remedy)


# The table: a line for each check, and the remedy below a problem
#
# network
#   ok       loopback   127.0.0.1 answers
#   warning  host name  `box` is not found
#            -> add `127.0.1.1 box` to /etc/hosts

COLORS = {"ok": "32", "warning": "33;1", "failure": "31;1"}


def table(checks: Sequence[Check], color: bool = False) -> str:
    """Returns the table. Its last line has the number of checks with each result."""
    names = max((len(check.name) for check in checks), default=0)
    lines, counts, width = list[str](), tally(checks), max(map(len, STATES))
    for subject, found in groupby(checks, lambda check: check.subject):
        lines.append(subject)
        for check in found:
            state = f"{check.state:{width}}"
            mark = f"\x1b[{COLORS[check.state]}m{state}\x1b[0m" if color else state
            lines.append(f"  {mark}  {check.name:{names}}  {shown(check.found)}".rstrip())
            lines += [f"  {' ' * width}  -> {shown(check.remedy)}"] * bool(check.remedy)
        lines.append("")
    ends = [f"{counted(len(checks), 'check')}: {counts['ok']} ok"]
    ends += [counted(number, state) for state, number in counts.items() if state != "ok" and number]
    return "\n".join([*lines, ", ".join(ends), ""])
