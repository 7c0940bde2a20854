"""`meshctl launch -m RECIPE key=1,2`: runs every combination of the sweeps, one after another.

All combinations are checked before the first one starts. Each job is a launch in a separate process, with its
own run directory. At the end, a table with a row per job is printed on stdout. The first Ctrl-C ends the
current job as it would end a single launch, and skips the remaining jobs. The exit code is the worst one of
all jobs.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any

from meshctl.cli import launch
from meshctl.cli.forks import LaunchProcess
from meshctl.cli.load import Launchable
from meshctl.cli.output import refuse, write
from meshctl.dataclass import dataclass
from meshctl.engines.node.termination import name_of
from meshctl.recipe.compose.folders import config_folders, is_dir, list_options
from meshctl.recipe.compose.overrides import CannotSweep, Job, expand
from meshctl.recipe.compose.yaml_reader import MAX_BYTES
from meshctl.run.directory import RunDir
from meshctl.run.row_file import last_row
from meshctl.text.redaction import redact
from meshctl.view import formatting
from meshctl.view.live.summary import table

MAX_PATH = 4096
"""Maximum length of a run directory's path, in bytes."""
MAX_METRICS = 4
"""Number of metrics in the table if `run.show` names none."""


@dataclass(frozen=True)
class Result:
    """The result of one job."""

    job: Job
    code: int | None = None
    """None for a job that was skipped."""
    run: RunDir | None = None
    """None for a job that ended before it had a run directory."""

    @property
    def exit_code(self) -> int:
        if self.code is None:
            return 0
        return 128 - self.code if self.code < 0 else self.code

    @property
    def outcome(self) -> str:
        if self.code is None:
            return "skipped"
        return "done" if self.code == 0 else f"failed: {name_of(self.code)}"

    def metrics(self) -> dict[str, float | None]:
        """Returns STAGE.NAME -> value of the last step."""
        last = last_row(self.run.metrics) if self.run else None
        return {name: value for name, value in (last or {}).items() if "." in name}


def multirun(recipe: str, overrides: Sequence[str], options: launch.Options) -> int:
    """Runs all jobs and returns the worst exit code."""
    if is_dir(Path(recipe)):
        return refuse(f"{recipe} is a folder, but -m starts new runs: give a recipe")
    folders = config_folders((Path.cwd() / recipe).parent, ())
    try:
        jobs = expand(overrides, lambda group: list_options(folders, group))
    except CannotSweep as error:
        return refuse(redact(str(error)))
    data = sys.stdin.buffer.read(MAX_BYTES + 1) if recipe == "-" and sys.stdin else b""
    codes, ready = _checked(recipe, data, jobs, options)
    if any(codes):
        return max(codes)
    if options.dry_run:
        for index, one in enumerate(ready):
            write(f"{_title(jobs, index)}\n{launch.dry(one)}\n\n", sys.stdout)
        return 0
    runner = _Runner(recipe, data, jobs, options)
    results = runner.run()
    write(table_of(results, ready[0].plan.run.show), sys.stdout)
    return max(runner.process.stopped_code, *(result.exit_code for result in results))


def _title(jobs: Sequence[Job], index: int) -> str:
    return f"job {index + 1} of {len(jobs)}: {_shown(jobs[index])}"


def _shown(job: Job) -> str:
    return " ".join(redact(text) for text in job.swept) or "as written"


# Checking


class _Captured(io.StringIO):
    """Captures the output to stderr, with colors if stderr is a terminal."""

    def isatty(self) -> bool:
        return sys.__stderr__ is not None and sys.__stderr__.isatty()


def _checked(
    recipe: str, data: bytes, jobs: Sequence[Job], options: launch.Options
) -> tuple[list[int], list[Launchable]]:
    """Checks all jobs. Returns the exit code of each, and the jobs that can be launched."""
    codes, ready = list[int](), list[Launchable]()
    reports: dict[str, int] = {}
    for index, job in enumerate(jobs):
        captured = _Captured()
        with redirect_stderr(captured):
            code, one = _with_stdin(data, partial(launch.prepare, recipe, [*job.overrides], options))
        codes.append(code)
        ready += [one] if one else []
        if report := captured.getvalue():
            first = reports.setdefault(report, index)
            same = f"the same as job {first + 1}\n"
            sys.stderr.write(f"{_title(jobs, index)}\n{report if first == index else same}")
    return codes, ready


def _with_stdin(data: bytes, call: Callable[[], Any]) -> Any:
    """Calls `call` with `data` as standard input, because each job reads the recipe again."""
    if not data:
        return call()
    before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(data))
    try:
        return call()
    finally:
        sys.stdin = before


# Running


@dataclass
class _Runner:
    recipe: str
    data: bytes
    """The recipe's text if it comes from standard input."""
    jobs: Sequence[Job]
    options: launch.Options
    process: LaunchProcess = field(default_factory=LaunchProcess)

    def run(self) -> list[Result]:
        with self.process.passing_signals():
            return [self._result(index) for index in range(len(self.jobs))]

    def _result(self, index: int) -> Result:
        job = self.jobs[index]
        if self.process.stopped_code:
            return Result(job)
        write(f"{_title(self.jobs, index)}\n", sys.stdout)
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        code = self.process.run(lambda: self._launch(job, writer))
        os.close(writer)
        return Result(job, code, _run_directory(reader))

    def _launch(self, job: Job, writer: int) -> int:
        """Launches one job. Sends its run directory through the pipe `writer`."""

        def announce(run: RunDir) -> None:
            os.write(writer, os.fsencode(run.path))
            os.close(writer)

        call = partial(launch.launch, self.recipe, [*job.overrides], self.options, announce)
        code: int = _with_stdin(self.data, call)
        return code


def _run_directory(reader: int) -> RunDir | None:
    try:
        path = os.read(reader, MAX_PATH)
    except BlockingIOError:  # a process of the job still runs and has the other end open
        path = b""
    finally:
        os.close(reader)
    return RunDir(Path(os.fsdecode(path))) if path else None


# The table


def table_of(results: Sequence[Result], show: Sequence[str]) -> str:
    """Returns a row for each job: its overrides, its outcome, the last value of each metric that `run.show`
    names, and its run directory."""
    values = [result.metrics() for result in results]
    names = [*show] or [*dict.fromkeys(name for one in values for name in one)][:MAX_METRICS]
    rows = [("job", "overrides", "outcome", *names, "run directory")]
    for index, (result, one) in enumerate(zip(results, values, strict=True), 1):
        cells = [formatting.number(one[name]) if name in one else "-" for name in names]
        path = os.path.relpath(result.run.path) if result.run else "-"
        rows.append((str(index), _shown(result.job), result.outcome, *cells, path))
    numeric = (0, *range(3, 3 + len(names)))
    return "\n".join(["", *table(rows, right=numeric), ""])
