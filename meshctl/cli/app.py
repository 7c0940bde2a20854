"""The command line `meshctl`. Each command has its own file, which is imported when the command is called.

Exit codes: 0 done, 1 the recipe has errors, 2 wrong usage, 3 the recipe cannot be read, 4 the environment
refuses, 5 the run failed, 70 a bug in meshctl, 129, 130 and 143 interrupted.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

import typer

from meshctl import __version__
from meshctl.cli.completion import sources
from meshctl.cli.output import Refusal, failed, open_all, refuse, write
from meshctl.text.english import listed


def option(help: str, complete: Any = None, *names: str, metavar: str | None = None, **more: Any) -> Any:
    """Returns an option. `complete` is a callback of `completion/sources.py`. If `names` is empty, the option
    has the name of its parameter; state it where `metavar` is the same word, which typer 0.27 takes for the
    name."""
    return typer.Option(*names, metavar=metavar, help=help, autocompletion=complete, **more)


def flag(help: str, *names: str) -> Any:
    return typer.Option(*names, help=help)


def argument(metavar: str, help: str, complete: Any) -> Any:
    return typer.Argument(metavar=metavar, help=help, show_default=False, autocompletion=complete)


Recipe = Annotated[
    str, argument("RECIPE", "A recipe, - for standard input, or a run's directory.", sources.recipe)
]
Overrides = Annotated[
    list[str] | None, argument("[KEY=VALUE]...", "Overrides, as in Hydra: KEY=VALUE.", sources.overrides)
]
RUNS = "runs"
"""The folder of runs, unless the recipe or the user names another one."""
Run = Annotated[
    str,
    argument(
        "[RUN]",
        "A run: its folder, NAME/TIME, or NAME for its newest run. Default: the newest.",
        sources.runs,
    ),
]
Folder = Annotated[str, option("Folder of runs.", sources.folders, "--dir", "-d", metavar="FOLDER")]
OUT, FORMAT = ("--out", "-o"), ("--format", "-f")
"""Names of options that several commands have."""
DataFormat = Annotated[str, option("Format: text or json.", sources.words("text", "json"), *FORMAT)]
Node = Annotated[
    str,
    option(
        "Number of the node, or SET.INDEX: its place among nodes of the same groups.",
        None,
        "--node",
        metavar="NODE",
    ),
]


KINDS = sources.table("meshctl.recipe.templates:KINDS")
LAYOUTS = sources.table("meshctl.recipe.templates:LAYOUTS")
DEVICE_TYPES = sources.table("meshctl.recipe.fields:DEVICE_TYPES")
REPORT_FORMATS = sources.table("meshctl.view.reports:FORMATS")
PICTURE_FORMATS = sources.table("meshctl.view.pictures:FORMATS")
ENGINES = sources.table("meshctl.recipe.engine_fields:MEANINGS")
SYSTEMS = sources.words("verl", "trl", "axolotl", "accelerate", "torchtitan", "nemo-rl", "twinkle")
"""Candidates of completion."""
ReportFormat = Annotated[
    str, option("Format: text, concise, json, github or sarif.", REPORT_FORMATS, *FORMAT)
]
Strict = Annotated[bool, flag("Treat warnings as errors.", "--strict")]
Detach = Annotated[bool, flag("Return once the run has begun; it goes on.", "--detach")]
OF_RECIPES = ("launch", "validate", "config", "show-topology", "doctor")
"""The commands that read a recipe and overrides."""
DASHED = re.compile(r"--?((?:cluster|groups|components|pipeline|run|vars)(?:\.[\w-]+)+)(?:=(.*))?", re.DOTALL)
"""An override with dashes before it."""

app = typer.Typer(
    name="meshctl",
    help="Launch distributed PyTorch training from one YAML file.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def show_version(asked: bool) -> None:
    if asked:
        write(f"meshctl {__version__}\n", sys.stdout)
        raise typer.Exit


@app.callback()
def meshctl(
    version: Annotated[
        bool,
        typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Launch distributed PyTorch training from one YAML file."""


@app.command()
def init(
    name: Annotated[
        str, argument("[NAME]", "Name of the recipe, NAME.yaml. It may have a folder.", sources.files)
    ] = "",
    files: Annotated[
        list[str] | None, argument("[FILE]...", "With --from: the files to convert.", sources.paths())
    ] = None,
    system: Annotated[
        str,
        option(
            "Convert a file of another system: verl, trl, axolotl, accelerate, torchtitan, nemo-rl or "
            "twinkle. Left out, it is recognised.",
            SYSTEMS,
            "--from",
            metavar="FORMAT",
        ),
    ] = "",
    kind: Annotated[
        str,
        option(
            "Kind: train, grpo, distill or script; for Hugging Face models sft, sft_lora, dpo, reward_model, "
            "grpo_hf, grpo_vllm, grpo_free, agent, ppo or distill_on_policy.",
            KINDS,
        ),
    ] = "",
    device: Annotated[
        str, option("Device type: cpu, cuda, npu or mps. Default: this machine's.", DEVICE_TYPES)
    ] = "",
    ranks: Annotated[
        int | None, option("Number of devices (on cpu: processes) of all groups.", metavar="N")
    ] = None,
    layout: Annotated[str, option("Layout of the group that trains: fsdp, dp or hsdp.", LAYOUTS)] = "",
    script: Annotated[
        str, option("Your script, written for torchrun.", sources.python_files, metavar="FILE")
    ] = "",
    yes: Annotated[bool, flag("Has no effect: nothing is asked.", "--yes", "-y")] = False,
    force: Annotated[bool, flag("Overwrite existing files.", "--force")] = False,
) -> None:
    """Write a recipe that runs, with its classes."""
    if system:
        if kind or device or ranks or layout or script:
            raise typer.Exit(refuse("with --from, the configuration states what other options choose"))
        from meshctl.cli.foreign import init_from

        raise typer.Exit(init_from(name, [system, *(files or [])], force))
    if files:
        raise typer.Exit(refuse(f"{listed(files)} are only for --from"))
    from meshctl.cli.init import Options, init

    raise typer.Exit(init(name, Options(kind, device, ranks, layout, script, force)))


@app.command()
def validate(
    recipes: Annotated[
        list[str],
        argument(
            "RECIPE... [KEY=VALUE]...",
            "Recipes (- for standard input), and overrides for all.",
            sources.recipes_and_overrides,
        ),
    ],
    format: ReportFormat = "",
    strict: Strict = False,
    fix: Annotated[bool, flag("Apply corrections that are safe, and list them.", "--fix")] = False,
    data: Annotated[bool, flag("Encode every row of ready-made sources, too.", "--data")] = False,
    color: Annotated[
        str,
        option("Colors: auto, always or never.", sources.words("auto", "always", "never"), metavar="WHEN"),
    ] = "auto",
) -> None:
    """Report all errors of recipes at once. Nothing is started or imported."""
    from meshctl.cli.validate import Options, validate

    raise typer.Exit(validate(recipes, Options(format, strict, fix, color, data)))


@app.command()
def lint(
    files: Annotated[
        list[str],
        argument("FILE...", "The files of one configuration of another system.", sources.paths()),
    ],
    system: Annotated[str, option("Its system. Default: recognised.", SYSTEMS, "--as")] = "",
    format: ReportFormat = "",
    strict: Strict = False,
) -> None:
    """Report mistakes in a configuration of verl, TRL, axolotl and others, at its own lines."""
    from meshctl.cli.foreign import lint
    from meshctl.cli.validate import Options

    raise typer.Exit(lint(files, system, Options(format, strict)))


@app.command()
def config(
    recipe: Recipe,
    overrides: Overrides = None,
    origins: Annotated[
        bool, flag("Show where each value was written, and what it replaced.", "--origins")
    ] = False,
    format: DataFormat = "text",
) -> None:
    """Print a composed recipe, without its secrets."""
    from meshctl.cli.config import config

    raise typer.Exit(config(recipe, overrides or [], origins, format))


@app.command("show-topology")
def show_topology(
    recipe: Recipe,
    overrides: Overrides = None,
    format: Annotated[
        str, option("Format: text, json, mermaid, svg or html. Default: by FILE.", PICTURE_FORMATS, *FORMAT)
    ] = "",
    out: Annotated[str, option("File to write to.", sources.files, *OUT, metavar="FILE")] = "",
    component: Annotated[
        str, option("Show one component: its process groups and stages.", sources.components, metavar="NAME")
    ] = "",
    dim: Annotated[
        str, option("Show the process groups along a dim.", sources.dims, "--dim", metavar="DIM")
    ] = "",
    node: Annotated[int | None, option("Show one node: its devices and processes.", metavar="N")] = None,
    rank: Annotated[
        str, option("Show one rank: coordinates, peers, samples, routes.", sources.ranks, metavar="GROUP:N")
    ] = "",
    samples: Annotated[
        int | None, option("With --rank: samples of a batch, if not in the recipe.", metavar="N")
    ] = None,
    diff: Annotated[
        str | None,
        option(
            "Show the difference to a recipe, overrides or both.",
            sources.recipes_and_overrides,
            metavar="OTHER",
        ),
    ] = None,
    lost: Annotated[
        list[str] | None,
        option("Show what remains without a worker, or node:N.", sources.ranks, metavar="GROUP:N"),
    ] = None,
) -> None:
    """Draw what a recipe would run. Shows devices, meshes, process groups, bytes of models and data flow."""
    from meshctl.cli.show_topology import Options, show

    options = Options(
        format, "" if out == "-" else out, component, dim, node, rank, samples, diff, lost or ()
    )
    raise typer.Exit(show(recipe, overrides or [], options))


@app.command()
def launch(
    recipe: Recipe,
    overrides: Overrides = None,
    dry_run: Annotated[bool, flag("Show what would be started, and start nothing.", "--dry-run")] = False,
    only: Annotated[str | None, option("Run only this group.", sources.groups, metavar="GROUP")] = None,
    replay: Annotated[
        list[str] | None,
        option("With --only: folder of a recorded input.", sources.recordings, metavar="ROUTE=DIR"),
    ] = None,
    follow: Annotated[
        list[str] | None,
        option("Print all output of a group or a rank.", sources.ranks, metavar="GROUP[:RANK]"),
    ] = None,
    debug: Annotated[
        str,
        option("Connect a worker to the terminal, for breakpoint().", sources.ranks, metavar="GROUP:RANK"),
    ] = "",
    detach: Detach = False,
    engine: Annotated[str, option("Engine, in place of the recipe's.", ENGINES, metavar="NAME")] = "",
    multirun: Annotated[
        bool, flag("Run every combination of key=1,2, one by one.", "--multirun", "-m")
    ] = False,
) -> None:
    """Run a recipe, or resume a run from its last checkpoint."""
    from meshctl.cli.launch import Options, launch

    options = Options(dry_run, only, replay or (), follow or (), debug, detach)
    overrides = [*(overrides or []), *([f"engine={engine}"] if engine else [])]
    if detach and (debug or multirun):
        raise typer.Exit(refuse(f"--detach does not go with {'--debug' if debug else '--multirun'}"))
    if multirun:
        from meshctl.cli.multirun import multirun as launch_all

        raise typer.Exit(launch_all(recipe, overrides, options))
    raise typer.Exit(launch(recipe, overrides, options))


@app.command()
def runs(
    folder: Annotated[str, argument("[FOLDER]", "Folder with runs. Default: runs.", sources.folders)] = RUNS,
    format: DataFormat = "text",
) -> None:
    """List the runs below a folder. Shows state, step, age, duration and cause, the newest first."""
    from meshctl.cli.status import runs

    raise typer.Exit(runs(folder, format))


@app.command()
def status(run: Run = "", folder: Folder = RUNS, format: DataFormat = "text") -> None:
    """Print the state of a run. Shows step, metrics, groups, times and warnings."""
    from meshctl.cli.status import status

    raise typer.Exit(status(run, folder, format))


@app.command()
def watch(run: Run = "", folder: Folder = RUNS, format: DataFormat = "text") -> None:
    """Show a run until it ends. The view is that of `launch`, also of a run that is over. Ctrl-C leaves the
    run alone. The exit code is that of the run, 5 for one that is lost."""
    from meshctl.cli.status import watch

    raise typer.Exit(watch(run, folder, format))


@app.command()
def logs(
    words: Annotated[
        list[str] | None,
        argument(
            "[RUN] [GROUP[:RANK]]...",
            "A run, or the newest; then groups and ranks, or all.",
            sources.runs_and_ranks,
        ),
    ] = None,
    follow: Annotated[bool, flag("Go on until the run ends.", "--follow", "-f")] = False,
    grep: Annotated[str, option("Only lines with this regular expression.", metavar="REGEX")] = "",
    since: Annotated[str, option("Only lines since 90s, 5m, 2h, 1d ago or a time.", metavar="TIME")] = "",
    folder: Folder = RUNS,
    format: Annotated[str, option("Format: text or json.", sources.words("text", "json"))] = "text",
) -> None:
    """Print the output of workers. The lines are in the order of time, as TIME GROUP:RANK: line."""
    from meshctl.cli.status import logs

    raise typer.Exit(logs(words or [], follow, grep, since, folder, format))


@app.command()
def test(
    recipe: Recipe,
    overrides: Overrides = None,
    update: Annotated[bool, flag("Keep the metrics of this run.", "--update")] = False,
) -> None:
    """Run a recipe on CPU, and compare its metrics with those in a file beside it."""
    from meshctl.cli.test import test

    raise typer.Exit(test(recipe, overrides or [], update))


@app.command()
def episode(
    words: Annotated[
        list[str] | None,
        argument("[RUN] [ID]", "A run, or the newest; and an episode, such as 17.3.", sources.runs),
    ] = None,
    replay: Annotated[bool, flag("Run its agent again with the kept replies.", "--replay")] = False,
    folder: Folder = RUNS,
) -> None:
    """Show the kept episodes of agents. With an ID, show one as a conversation in which sampled text is
    marked. The exit code of a replay is 1 if the agent asks something else."""
    from meshctl.cli.episode import episode

    raise typer.Exit(episode(words or [], replay, folder))


@app.command()
def report(
    runs: Annotated[
        list[str] | None, argument("[RUN]...", "A run, or two to compare. Default: the newest.", sources.runs)
    ] = None,
    out: Annotated[
        str,
        option("File, or - for standard output. Default: in the run.", sources.files, *OUT, metavar="FILE"),
    ] = "",
    folder: Folder = RUNS,
) -> None:
    """Write a run as one HTML page. Of two runs it shows the difference."""
    from meshctl.cli.report import report

    raise typer.Exit(report(runs or [], folder, out))


@app.command()
def export(
    run: Run = "",
    step: Annotated[int, option("Its checkpoint of this step. Default: the newest.", None, "--step")] = 0,
    best: Annotated[bool, flag("Its best checkpoint, by `run.checkpoint.best`.", "--best")] = False,
    to: Annotated[
        str, option("Default: exports/step-N in the run.", sources.paths(), "--to", metavar="FOLDER")
    ] = "",
    adapter: Annotated[bool, flag("The adapter alone, in the format of peft.", "--adapter")] = False,
    force: Annotated[bool, flag("Replace an existing folder.", "--force")] = False,
    folder: Folder = RUNS,
) -> None:
    """Write the model of a checkpoint as a folder that transformers loads. The run needs no processes."""
    from meshctl.cli.export import export

    raise typer.Exit(export(run, folder, step, best, to, adapter, force))


@app.command()
def stop(
    run: Run = "",
    now: Annotated[bool, flag("End it at once, without a checkpoint.", "--now")] = False,
    checkpoint: Annotated[bool, flag("Write a checkpoint now, and go on.", "--checkpoint")] = False,
    folder: Folder = RUNS,
    format: DataFormat = "text",
) -> None:
    """End a run in order, as Ctrl-C does. Waits until it has ended, with its last checkpoint. A second `stop`
    waits as well; only --now ends it at once."""
    from meshctl.cli.stop import stop

    raise typer.Exit(stop(run, now, checkpoint, folder, format))


@app.command()
def restart(
    run: Run = "",
    overrides: Overrides = None,
    detach: Detach = False,
    folder: Folder = RUNS,
    format: DataFormat = "text",
) -> None:
    """Stop a run, and continue it. It goes on from its last checkpoint, with the overrides."""
    from meshctl.cli.stop import restart

    if "=" in run:  # the run is left out
        run, overrides = "", [run, *(overrides or [])]
    raise typer.Exit(restart(run, overrides or [], folder, detach, format))


@app.command()
def doctor(
    recipe: Annotated[
        str, argument("[RECIPE]", "A recipe: check also whether it would start here.", sources.recipe)
    ] = "",
    overrides: Overrides = None,
    format: DataFormat = "text",
    run: Annotated[bool, flag("Also send data between workers on all paths, and check it.", "--run")] = False,
) -> None:
    """Check this machine, and suggest corrections."""
    from meshctl.cli.doctor import doctor

    raise typer.Exit(doctor(recipe, overrides or [], format, run))


@app.command()
def explain(
    code: Annotated[str, argument("[CODE]", "A code such as MC410, or MC4 for all.", sources.codes)] = "",
) -> None:
    """Explain a code with an example. Without a code, lists all codes."""
    from meshctl.cli.explain import explain

    raise typer.Exit(explain(code))


@app.command()
def schema(out: Annotated[str, option("File or folder.", sources.files, *OUT, metavar="FILE")] = "") -> None:
    """Print or write the JSON Schema of recipes, for editors."""
    from meshctl.cli.init import schema_command

    raise typer.Exit(schema_command(out))


@app.command()
def completion(
    shell: Annotated[
        str, argument("[SHELL]", "Shell: bash, zsh or fish. Default: from $SHELL.", sources.shells)
    ] = "",
) -> None:
    """Print the completion script of a shell. It completes commands, recipes and overrides."""
    from meshctl.cli.completion.sources import script

    raise typer.Exit(script(shell))


@app.command()
def agent(
    plan: Annotated[Path, option("RUN/plan.json", sources.files)],
    node: Node,
    head: Annotated[str, option("Address of the head. Default: in RUN/head.json.", metavar="HOST:PORT")] = "",
    wait: Annotated[float, option("Seconds to wait for a head to start.", metavar="SECONDS")] = 0.0,
    in_job: Annotated[bool, flag("Pass the scheduler's first signal to the head.", "--in-job")] = False,
    shipped: Annotated[str, option("Folder with a copy of the recipe's folder.", metavar="FOLDER")] = "",
) -> None:
    """Run the workers of one node. Engines start this command on each node."""
    from meshctl.cli.agent import agent

    raise typer.Exit(agent(plan, node, head, wait, in_job, shipped))


@app.command()
def head(
    plan: Annotated[Path, option("RUN/plan.json", sources.files)],
    host: Annotated[
        str, option("Address or interface to listen at. Default: the engine's.", metavar="ADDRESS")
    ] = "",
    port: Annotated[int, option("Port to listen at. Default: any.", min=0)] = 0,
) -> None:
    """Supervise a run whose nodes are started by others. Writes its address to RUN/head.json, and the
    token of the run to RUN/.token."""
    from meshctl.cli.launch import head as supervise

    raise typer.Exit(supervise(plan, host, port))


@app.command(hidden=True)
def mirror(run: Annotated[Path, argument("RUN", "Folder of the run.", sources.files)]) -> None:
    """Write what has changed in a run directory, for a copy on another machine."""
    from meshctl.cli.mirror import mirror

    raise typer.Exit(mirror(run))


def of_command(arguments: list[str]) -> typer.Typer:
    """Returns an app of the command that the arguments call, or of all commands if they begin with no name of
    one. At each start typer builds all commands of its app, which takes as long as reading a recipe."""
    found = copy(app)
    found.registered_commands = [
        command
        for command in app.registered_commands
        if (command.name or getattr(command.callback, "__name__", "")) in arguments[:1]
    ]
    return found if found.registered_commands else app


def refuse_dashes(arguments: Sequence[str]) -> None:
    """Raises `Refusal` for an override that is written as an option."""
    for word, following in zip_longest(arguments[1:], arguments[2:], fillvalue="VALUE"):
        if arguments[0] in OF_RECIPES and (found := DASHED.fullmatch(word)):
            value = following if found[2] is None else found[2]
            raise Refusal(f"overrides are written without dashes: {found[1]}={value}")


def main() -> None:
    open_all()
    try:
        try:
            refuse_dashes(sys.argv[1:])
            of_command(sys.argv[1:])()
        finally:
            write("", sys.stdout)
    except SystemExit as leaving:
        if "torch" not in sys.modules or not isinstance(leaving.code, int | None):
            raise leaving
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):  # the reader has closed the stream
                stream.flush()
        os._exit(leaving.code or 0)  # Python's finalization takes another second once torch is loaded
    except Exception as error:
        sys.exit(failed(error))
