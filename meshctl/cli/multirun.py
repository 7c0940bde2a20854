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
from collections.abc import Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import NamedTuple

from meshctl.cli import launch
from meshctl.cli.forks import LaunchProcess
from meshctl.cli.load import Launchable
from meshctl.cli.output import refuse, write
from meshctl.engines.node.termination import name_of
from meshctl.recipe.compose.folders import config_folders, is_dir, list_options
from meshctl.recipe.compose.overrides import CannotSweep, Job, expand
from meshctl.run.directory import RunDir
from meshctl.run.metrics import last_row
from meshctl.text.redaction import redact
from meshctl.view import formatting
from meshctl.view.live.summary import table

MAX_PATH = 4096
"""Maximum length of a run directory's path, in bytes."""
MAX_METRICS = 4
"""Number of metrics in the table if `run.show` names none."""


class Result(NamedTuple):
    job: Job
    code: int | None = None
    """The exit code, or the negative number of a signal; None for a job that was skipped."""
    run: RunDir | None = None
    """None for a job that ended before it had a run directory."""


def multirun(recipe: str, overrides: Sequence[str], options: launch.Options) -> int:
    """Runs all jobs and returns the worst exit code."""
    if recipe == "-" or is_dir(Path(recipe)):
        return refuse(f"-m reads its recipe for each run, and starts new ones: give a file, not {recipe}")
    folders = config_folders((Path.cwd() / recipe).parent, ())
    try:
        jobs = expand(overrides, lambda group: list_options(folders, group))
    except CannotSweep as error:
        return refuse(redact(str(error)))
    codes, ready = list[int](), list[Launchable]()
    reports: dict[str, int] = {}
    for index, job in enumerate(jobs):
        with redirect_stderr(io.StringIO()) as captured:
            code, made = launch.prepare(recipe, [*job.overrides], options)
        codes.append(code)
        ready += [made] if made else []
        if report := captured.getvalue():
            first = reports.setdefault(report, index)
            same = f"the same as job {first + 1}\n"
            sys.stderr.write(f"{_title(jobs, index)}\n{report if first == index else same}")
    if any(codes):
        return max(codes)
    if options.dry_run:
        for index, one in enumerate(ready):
            write(f"{_title(jobs, index)}\n{launch.dry(one)}\n\n", sys.stdout)
        return 0
    process, results = LaunchProcess(), list[Result]()
    with process.passing_signals():
        for index, job in enumerate(jobs):
            if process.stopped_code:
                results.append(Result(job))
            else:
                write(f"{_title(jobs, index)}\n", sys.stdout)
                results.append(_result(process, recipe, job, options))
    write(table_of(results, ready[0].plan.run.show), sys.stdout)
    codes = [one.code or 0 for one in results]
    return max(process.stopped_code, *(128 - code if code < 0 else code for code in codes))


def _result(process: LaunchProcess, recipe: str, job: Job, options: launch.Options) -> Result:
    """Launches one job, whose process sends its run directory through a pipe."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)

    def announce(run: RunDir) -> None:
        os.write(writer, os.fsencode(run.path))
        os.close(writer)

    code = process.run(lambda: launch.launch(recipe, [*job.overrides], options, announce))
    os.close(writer)
    try:
        path = os.read(reader, MAX_PATH)
    except BlockingIOError:  # a process of the job still runs and has the other end open
        path = b""
    finally:
        os.close(reader)
    return Result(job, code, RunDir(Path(os.fsdecode(path))) if path else None)


def _title(jobs: Sequence[Job], index: int) -> str:
    return f"job {index + 1} of {len(jobs)}: {_shown(jobs[index])}"


def _shown(job: Job) -> str:
    return " ".join(redact(text) for text in job.swept) or "as written"


# The table


def table_of(results: Sequence[Result], show: Sequence[str]) -> str:
    """Returns a row for each job: its overrides, its outcome, the last value of each metric that `run.show`
    names, and its run directory."""
    lasts = [(last_row(result.run.metrics) if result.run else None) or {} for result in results]
    values = [{name: value for name, value in last.items() if "." in name} for last in lasts]
    names = [*show] or [*dict.fromkeys(name for one in values for name in one)][:MAX_METRICS]
    rows = [("job", "overrides", "outcome", *names, "run directory")]
    for index, (result, one) in enumerate(zip(results, values, strict=True), 1):
        cells = [formatting.number(one[name]) if name in one else "-" for name in names]
        path = os.path.relpath(result.run.path) if result.run else "-"
        outcome = f"failed: {name_of(result.code)}" if result.code else "done"
        outcome = "skipped" if result.code is None else outcome
        rows.append((str(index), _shown(result.job), outcome, *cells, path))
    numeric = (0, *range(3, 3 + len(names)))
    return "\n".join(["", *table(rows, right=numeric), ""])
