"""`meshctl launch`: loads, checks and resolves a recipe, starts it on an engine, follows the run, and prints
a summary."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import cast

from meshctl.cli import without_collection
from meshctl.cli.forks import LaunchProcess
from meshctl.cli.launch_options import (
    DebuggedWorker,
    check_workers,
    narrow_to_group,
    refuse_alone,
    with_debugging,
)
from meshctl.cli.load import Launchable, Unreadable, plan_of, resolve_source
from meshctl.cli.output import REFUSED, Refusal, refuse, silence, why, write
from meshctl.cli.validate import draw
from meshctl.dataclass import dataclass
from meshctl.diagnostics import Check, RecipeError, Report
from meshctl.engines.checks.device_files import requirements_on
from meshctl.engines.checks.machine import problems
from meshctl.engines.checks.requirements import Needs, Requirements
from meshctl.engines.engine import (
    ENGINES,
    TOKEN_PLACE,
    CannotStart,
    Engine,
    Job,
    JobEngine,
    Resize,
    engine_named,
)
from meshctl.engines.supervise.attempt import Attempt, RunHeld, begin, check_unheld, taken_up
from meshctl.engines.supervise.session import Outcome
from meshctl.engines.supervise.signals import Signals
from meshctl.network.addresses import address_of, joined
from meshctl.network.connection import new_token
from meshctl.package import install_command, installed_version
from meshctl.plan.model import Group, Plan
from meshctl.recipe.rules.memory import checkpoint_bytes_of, copy_bytes_of, memory_of
from meshctl.recipe.tracker_fields import EXTRA, LIBRARIES
from meshctl.run.best import EarlyStopping
from meshctl.run.checkpoints import NoWholeCheckpoint, steps_of
from meshctl.run.directory import EngineChoice, RunDir, Start
from meshctl.run.events import Journal, Observer
from meshctl.run.launcher import record_git_state, record_launch
from meshctl.run.media import forget_media
from meshctl.run.metrics import rows_of
from meshctl.run.process import IN_JOB
from meshctl.text.english import counted
from meshctl.text.redaction import command_line, redact
from meshctl.trackers import tracker_named
from meshctl.trackers.feed import Feeds
from meshctl.view.live.state_file import StateFile
from meshctl.view.reports.text import shown
from meshctl.view.trace import TraceWriter


@dataclass(frozen=True)
class Options:
    """The options of the command."""

    dry_run: bool = False
    only: str | None = None
    replay: Sequence[str] = ()
    follow: Sequence[str] = ()
    """Items of the form GROUP or GROUP:RANK."""
    debug: str = ""
    """GROUP:RANK"""
    is_detached: bool = False
    """True if the launcher continues in the background."""
    engine: str = ""
    """An engine of the table `ENGINES`, in place of that of the recipe."""


def launch(
    recipe: str,
    overrides: list[str],
    options: Options = Options(),
    on_begin: Callable[[RunDir], None] | None = None,
) -> int:
    """Launches a recipe and returns the exit code. Calls `on_begin` with the run directory before any process
    is started."""
    if options.dry_run:
        code, ready = prepare(recipe, overrides, options)
        if ready:
            write(f"{dry(ready)}\n", sys.stdout)
        return code
    if options.is_detached:
        from meshctl.cli.forks import detach

        attached = replace(options, is_detached=False)
        return detach(lambda begin: launch(recipe, overrides, attached, begin))
    try:
        check_unheld(RunDir(Path(recipe)))
    except RunHeld as error:
        return refuse(error, REFUSED)
    with interrupted_at_once():
        code, ready = prepare(recipe, overrides, options)
        if code or ready is None:
            return code
        import_torch()
    if ready.resume and (why_over := reason_of_end(ready.plan, ready.resume, ready.whole.step)):
        print(f"{ready.resume.path}: the run is complete: {why_over}")
        return 0
    engine = engine_of(ready)
    try:
        attempt = begun(ready, engine, overrides)
    except RunHeld as error:
        return refuse(error, REFUSED)
    except OSError as error:
        return refuse(f"the run directory cannot be written: {why(error)}: {error.filename}", REFUSED)
    if engine.supervisor == "inside":
        from meshctl.cli.submit import submit

        return submit(engine, attempt, is_detached=on_begin is not None)
    state_file = StateFile(ready.plan, attempt.run)
    if on_begin:
        on_begin(attempt.run)
    return run(ready, attempt, engine, state_file, options.follow)


def begun(ready: Launchable, engine: Engine, overrides: list[str]) -> Attempt:
    """Writes the files of the run, and returns its attempt. Raises `RunHeld` and `OSError`."""
    attempt = begin(ready.plan, ready.composed, ready.path, ready.resume, ready.whole)
    old = attempt.start
    start = replace(ready.start, path=old.path, attempt=old.attempt, resume=old.resume, plan=old.plan)
    attempt.run.write_start(start)
    attempt.run.forget_recorded(attempt.step or 0)
    forget_media(attempt.run, attempt.step or 0)
    record_launch(attempt.run, overrides)
    record_git_state(attempt.run, ready.path[0])
    if engine.supervisor != "inside":
        attempt.run.job.unlink(missing_ok=True)  # of an earlier launch
    return replace(attempt, start=start)


def engine_of(ready: Launchable) -> Engine:
    return engine_named(ready.start.engine.name, ready.start.engine.options)


def reason_of_end(plan: Plan, run: RunDir, saved: int) -> str:
    """Returns why a run that would be continued from a checkpoint is over already; empty if it is not.
    `saved` is the step of the checkpoint, 0 without one."""
    steps, stop = plan.run.steps, plan.run.stop
    if 0 < steps <= saved:
        return f"its last checkpoint is of step {saved} of {steps}"
    if stop is None:
        return ""
    stopping = EarlyStopping(stop.on, stop.mode, stop.patience)
    for row in rows_of(run.metrics):
        if row["step"] <= saved:
            stopping.add(row)
    return f"{stopping.reason} (`run.stop=false` goes on)" if stopping.reason else ""


def prepare(recipe: str, overrides: list[str], options: Options) -> tuple[int, Launchable | None]:
    """Loads, checks and resolves a recipe, and runs the engine's preflight. Reports all errors. Returns the
    exit code, and the recipe if it can be launched, or if a dry run can show it."""
    notes, refusal = list[str](), ""
    try:
        name, held = resolve_source(recipe)
        ready = plan_of(name, overrides, held, is_draft=options.dry_run)
        if options.only is not None or options.replay:
            ready, notes = narrow_to_group(ready, options.only, options.replay)
        refuse_alone(ready)
        check_workers(ready.plan, "--follow", options.follow)
        if options.debug:
            ready = with_debugging(ready, options.debug)
        check_trackers(ready.plan)
        if options.engine:
            ready = replace(ready, start=replace(ready.start, engine=EngineChoice(options.engine)))
        engine = engine_of(ready)
        try:
            engine.preflight(ready.plan, Start(ready.path))
        except CannotStart as error:
            if not options.dry_run:
                raise
            refusal = f"{error}"
        ready = replace(ready, needs=needs_of(ready))
        checks = () if engine.examines_nodes else problems(requirements_of(ready))
        if ready.resume:
            ready = with_checkpoint(ready, ready.resume)
    except (RecipeError, Unreadable) as error:
        draw(error.report, sys.stderr)
        return 1 if isinstance(error, RecipeError) else 3, None
    except Refusal as error:
        return refuse(error), None
    except CannotStart as error:
        return refuse(error, REFUSED), None
    if ready.report.diagnostics:
        draw(ready.report, sys.stderr)
    for check in checks:
        print_check(check)
    if ready.report.errors or any(check.state == "failure" for check in checks):
        return REFUSED, None
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    return refuse(refusal, REFUSED) if refusal else 0, ready


def print_check(check: Check) -> None:
    """Prints a failure or a warning about this machine, and its remedy."""
    severity = "error" if check.state == "failure" else "warning"
    print(shown(redact(f"{severity}: {check.name}: {check.found}")), file=sys.stderr)
    print(shown(redact(f"  = help: {check.remedy}")), file=sys.stderr)


def with_checkpoint(ready: Launchable, run: RunDir) -> Launchable:
    """Returns the recipe with the checkpoint from which the run continues. Its report has the differences
    between the two. Raises `CannotStart`."""
    from meshctl.engines.checks.resume import Resumed, checkpoint_of

    whole = checkpoint_of(run)
    if whole.path is None or ready.facts is None:
        return replace(ready, whole=whole)
    resumed = Resumed(ready.plan, ready.facts, ready.path, run, whole.path, whole.step)
    return replace(ready, whole=whole, report=ready.report.plus(resumed.diagnostics()))


@contextmanager
def interrupted_at_once() -> Iterator[None]:
    """Context manager in which Ctrl-C ends this process, which has started no other one. Python may drop a
    KeyboardInterrupt that is raised in a destructor."""
    handler = signal.getsignal(signal.SIGINT)
    if handler != signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def import_torch() -> None:
    with without_collection():
        import_module("meshctl.runtime.worker")
        import_module("meshctl.engines.node.node_process")
        import_module("meshctl.engines.supervise.supervisor")


def run(
    ready: Launchable,
    attempt: Attempt,
    engine: Engine,
    state: StateFile,
    follow: Sequence[str] = (),
    host: str = "",
    port: int = 0,
    environ_of_head: Mapping[str, str] | None = None,
) -> int:
    """Runs a prepared recipe, shows the run, and returns the exit code. The head listens at the IP address
    `host`, or that of the engine if it is empty, and at `port`, or any if it is 0. `environ_of_head` is the
    environment of `meshctl head`, whose nodes are started by others."""
    from meshctl.engines.node.preload import preload
    from meshctl.engines.node.worker_env import groups_of
    from meshctl.runtime.worker import main
    from meshctl.view.live import for_terminal
    from meshctl.view.live.summary import text_of

    plan, run = ready.plan, attempt.run
    debugged = [DebuggedWorker(ready.start.debug)] if ready.start.debug else []

    def observers() -> list[Observer]:
        if ready.resume and not attempt.start.resume:
            print(f"{run.path} has no checkpoint: it starts from the beginning", flush=True)
        return [
            *debugged,
            state,
            for_terminal(plan, run, sys.stdout, follow=follow, is_shared=bool(debugged)),
            *([feeds.start()] if plan.run.track else []),
        ]

    with Signals().handled() as signals, ExitStack() as stack:
        feeds = feeds_of(plan, run, ready.path, hide_secrets(plan), lambda: signals.count > 1)
        for worker in debugged:
            stack.enter_context(worker.interrupted_by(signals.receive))
        preload(plan, ready.path, groups_of(plan, ready.path))
        job = Job(plan, run, main, keep=(attempt.lock,), spare=lambda: feeds.pids)
        job = replace(job, needs=ready.needs or Needs(), resize=resize_of(plan, attempt))
        outcome = outcome_of(engine, job, attempt, signals, observers, environ_of_head, host, port)
        state.on_end(outcome.code, outcome.reason)  # where the run ended before it had observers
    write(text_of(state.state, run), sys.stdout)
    try:
        print_cause(outcome)
    except OSError:  # the reader has closed the stream
        silence(sys.stderr)
    return outcome.code


def resize_of(plan: Plan, attempt: Attempt) -> Resize | None:
    """Returns the function that resolves the recipe of a run again; None where the run keeps its size: one of
    a group alone, and one with a worker that is debugged."""
    if not plan.run.elastic or attempt.start.only or attempt.start.debug:
        return None
    from meshctl.cli.resizing import Resizing

    return Resizing(str(attempt.run.path), run=attempt.run)


def outcome_of(
    engine: Engine,
    job: Job,
    attempt: Attempt,
    signals: Signals,
    observers: Callable[[], list[Observer]],
    environ: Mapping[str, str] | None = None,
    host: str = "",
    port: int = 0,
) -> Outcome:
    """Supervises the run."""
    from meshctl.engines.supervise.supervisor import Supervisor

    def all_observers() -> list[Observer]:
        traces = [TraceWriter(attempt.plan, job.run)] if attempt.plan.run.trace else []
        found = [tracker_named("jsonl", job.run), *traces, *observers()]
        if engine.supervisor != "inside":
            return found
        return [*cast(JobEngine, engine).observers(job.run, environ or {}), *found]

    return Supervisor(engine, signals, host=host, port=port).run(job, attempt, all_observers, environ)


def print_cause(outcome: Outcome) -> None:
    """Prints the first cause with its traceback and its log."""
    if cause := outcome.cause:
        print(f"error: {cause.line}", file=sys.stderr)
        if cause.traceback:
            print(cause.traceback.rstrip(), file=sys.stderr)
        if cause.log:
            print(f"log: {cause.log}", file=sys.stderr)


def dry(ready: Launchable) -> str:
    """Returns the text of `--dry-run`: the files that would be written and the processes that would be
    started."""
    engine, plan = engine_of(ready), ready.plan
    run = ready.resume or RunDir(Path(plan.run.dir).resolve() / plan.name / "TIME")
    lines = [
        f"{plan.name}: {counted(len(plan.groups), 'group')}, {counted(plan.job_size, 'worker')}; plan "
        f"{plan.digest}",
        "",
    ]
    for group in plan.groups:
        program, python = group.program, group.program.python if group.program else group.python
        what = "components " + ", ".join(component.name for component in plan.components_of(group.name))
        if program:
            what = f"program {command_line(program.argv, ready.secrets.written)}"
        work = f"{what}, python {command_line([python], ready.secrets.written)}" if python else what
        lines.append(f"  {group.name}: {group.workers} x {group.device_type}{_devices(group)}, {work}")
    start = replace(ready.start, path=ready.path)
    head = joined(engine.host, "PORT") if engine.host else ""
    rendered = engine.render(plan, run, head, start, ready.composed)
    lines.append("")
    if rendered.document:
        comments = "".join(f"# {line}".rstrip() + "\n" for line in lines)
        return f"{comments}{rendered.document.replace(TOKEN_PLACE, new_token())}".rstrip("\n")
    if rendered.head:
        lines += [shlex.join(rendered.head), ""]
    for path, text in rendered.files.items():
        lines += [f"{path}:", *(f"  {line}" for line in text.splitlines()), ""]
    lines += [shlex.join(command.argv) for command in rendered.commands]
    return "\n".join(lines)


def _devices(group: Group) -> str:
    runs = [str(start) if stop == start + 1 else f"{start}-{stop - 1}" for start, stop in group.devices]
    return f", devices {', '.join(runs)}" if runs else ""


# The needs of a recipe in memory and on disk, and what they require of this machine


def requirements_of(ready: Launchable) -> Requirements:
    """Returns the requirements of a recipe on this machine."""
    runs = str(ready.resume.path if ready.resume else ready.plan.run.dir)
    return requirements_on(ready.plan, runs, ready.needs or needs_of(ready))


def needs_of(ready: Launchable) -> Needs:
    """Returns the needs of a recipe. Bytes that are not known count as 0."""
    plan, facts, saving = ready.plan, ready.facts, ready.plan.run.checkpoint
    if facts is None:
        return Needs(checkpoints=further_checkpoints(ready))
    models, copies = Counter[str](), Counter[str]()
    for one in memory_of(facts).components:
        if not one.unknown:
            models[plan.component(one.component).group] += one.total
    if saving and saving.is_async:
        for component, size in copy_bytes_of(facts).items():
            copies[plan.component(component).group] += size
    checkpoint_bytes = checkpoint_bytes_of(facts) if saving else 0
    return Needs(dict(models), dict(copies), checkpoint_bytes, further_checkpoints(ready))


def further_checkpoints(ready: Launchable) -> int:
    """Returns the greatest number of checkpoints that the run adds to those on its disk. It includes the one
    that is being written."""
    run = ready.plan.run
    if run.checkpoint is None:
        return 0
    keep = run.checkpoint.keep + (run.checkpoint.best.keep if run.checkpoint.best else 0)
    is_single = not run.checkpoint.every and not run.checkpoint.seconds
    most = 1 if is_single else keep + 1
    if run.steps and run.checkpoint.every:
        most = min(most, -(-run.steps // run.checkpoint.every))
    saved = len(steps_of(ready.resume)) if ready.resume else 0
    return max(1, most - saved)


# The trackers of a launch: what they need, and their processes

HIDDEN = {
    "wandb": ("WANDB_API_KEY",),
    "mlflow": ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_URI"),
}
"""Tracker -> the variables with its secrets, which workers do not inherit unless the recipe names them."""


def check_trackers(plan: Plan) -> None:
    """Raises `CannotStart` if the library of a tracker is not installed. Imports none."""
    for track in plan.run.track:
        if (library := LIBRARIES.get(track.name)) and not installed_version(library):
            needs = f"tracker `{track.name}` needs {library}, which is not installed"
            raise CannotStart(f"{needs}: {install_command(EXTRA)}")


def hide_secrets(plan: Plan) -> Mapping[str, str]:
    """Removes the secrets of trackers from the environment. Returns the environment of trackers."""
    environ, text = dict(os.environ), plan.to_json()
    for name in (name for track in plan.run.track for name in HIDDEN.get(track.name, ()) if name not in text):
        os.environ.pop(name, None)
    return environ


def feeds_of(
    plan: Plan, run: RunDir, path: tuple[str, ...], environ: Mapping[str, str], is_hurried: Callable[[], bool]
) -> Feeds:
    """Returns the trackers of a run, not started. Their warnings are events; those at the end are also
    printed, because the display has ended."""

    def warn(text: str) -> None:
        with suppress(OSError):
            journal = Journal(run.journal("trackers"))
            journal.write("warning", text=text)
            journal.close()
        if feeds.is_ending:
            with suppress(OSError):
                print(f"warning: {text}", file=sys.stderr, flush=True)

    feeds = Feeds(run, plan.run.track, path, warn, is_hurried, environ)
    return feeds


# Launches of other commands

OUTPUT = "output.txt"


def launch_in(
    folder: Path,
    recipe: str,
    overrides: Sequence[str],
    options: Options = Options(),
    environ: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Launches a recipe in a fork, with its run directory and its output, `OUTPUT`, in a folder. Returns its
    exit code, or the negative number of a signal. Raises `SystemExit` where a signal has ended it."""

    def work() -> int:
        output = os.open(folder / OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for stream in (1, 2):
            os.dup2(output, stream)
        os.environ.update(environ)
        return launch(recipe, [*overrides, f"run.dir={folder}"], options)

    process = LaunchProcess()
    with process.passing_signals():
        code = process.run(work)
    if process.stopped_code:
        raise SystemExit(process.stopped_code)
    return code


# `meshctl head`: the supervisor of a run whose nodes are started by others. It continues a run that was
# prepared, or that another head has left. Inside the job of a scheduler, the engine starts the nodes there.


def head(path: Path, host: str, port: int, environ: Mapping[str, str] = os.environ) -> int:
    """Supervises a run and returns its exit code: 2 if `path` is not the plan of a run directory, 4 if
    the head cannot listen or another one supervises the run. `host` is an address, a host name or an
    interface; empty for that of the engine. `port` 0 lets the system choose."""
    directory = RunDir.of_plan(path)
    try:
        plan, start = Plan.read(path), directory.read_start()
        composed = directory.recipe.read_text(encoding="utf-8") if directory.recipe.exists() else ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = why(error) if isinstance(error, OSError) else error
        return refuse(
            f"{path} is not the plan of a run: {reason}; `meshctl launch --engine commands` makes one"
        )
    choice = start.engine
    if choice.name not in ENGINES:
        return refuse(f"the run is of the engine `{choice.name}`, which this version does not have", REFUSED)
    if choice.options.get("secure"):
        return refuse("the run was to be encrypted, which meshctl no longer does: launch it again", REFUSED)
    engine = engine_named(choice.name, choice.options)
    if engine.supervisor == "inside":
        os.environ[IN_JOB] = "1"
    if why_over := reason_of_end(plan, directory, directory.saved()):
        print(f"{directory.path}: the run is complete: {why_over}")
        return 0
    import_torch()
    try:
        listens = address_of(host) if host else ""
        attempt = taken_up(plan, directory)
    except OSError as error:
        what = f"{host}: " if host else ""
        return refuse(f"the head cannot start: {what}{why(error)}", REFUSED)
    except (RunHeld, NoWholeCheckpoint) as error:
        return refuse(error, REFUSED)
    ready = Launchable(plan, composed, start.path, Report(), start=attempt.start)
    return run(ready, attempt, engine, StateFile(plan, directory), (), listens, port, environ)
