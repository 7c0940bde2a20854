"""The command line `meshctl`. Each command has its own file, which is imported when the command is called.

Exit codes: 0 done, 1 the recipe has errors, 2 wrong usage, 3 the recipe cannot be read, 4 the environment
refuses, 5 the run failed, 70 a bug in meshctl, 130 and 143 interrupted.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from meshctl.cli.completion import sources
from meshctl.cli.crash import bug
from meshctl.cli.hydra_flags import answer
from meshctl.cli.output import no_room, open_all, refused, write

app = typer.Typer(
    name="meshctl",
    help="A recipe says, a plan places, a run does.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def option(help: str, complete: Any = None, *names: str, metavar: str | None = None) -> Any:
    """Returns an option. `complete` is a callback of `completion/sources.py`. If `names` is empty, the option
    has the name of its parameter."""
    return typer.Option(*names, metavar=metavar, help=help, autocompletion=complete)


def argument(metavar: str, help: str, complete: Any) -> Any:
    return typer.Argument(metavar=metavar, help=help, show_default=False, autocompletion=complete)


Recipe = Annotated[
    str, argument("RECIPE", "A recipe, - for standard input, or a run's directory.", sources.recipe)
]
Overrides = Annotated[list[str] | None, argument("[KEY=VALUE]...", "Hydra's overrides.", sources.overrides)]
DataFormat = Annotated[str, option("text or json.", sources.words("text", "json"), "--format", "-f")]


def show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        write(f"meshctl {version('meshctl')}\n", sys.stdout)
        raise typer.Exit


@app.callback()
def meshctl(
    version: Annotated[
        bool,
        typer.Option("--version", callback=show_version, is_eager=True, help="Say the version, and leave."),
    ] = False,
) -> None:
    """A recipe says, a plan places, a run does."""


@app.command()
def init(
    name: Annotated[str, argument("[NAME]", "NAME.yaml, in a folder if it says one.", sources.files)] = "",
    kind: Annotated[str, option("train, grpo, distill or script.", sources.kinds)] = "",
    device: Annotated[
        str, option("cpu, cuda, npu or mps; what this machine has.", sources.device_types)
    ] = "",
    ranks: Annotated[
        int | None, option("Devices, or on cpu processes, of all groups together.", metavar="N")
    ] = None,
    layout: Annotated[str, option("fsdp, dp or hsdp: of the group that trains.", sources.layouts)] = "",
    script: Annotated[
        str, option("Your own, written for torchrun.", sources.python_files, metavar="FILE")
    ] = "",
    yes: Annotated[bool, option("Ask nothing.", None, "--yes", "-y")] = False,
    force: Annotated[bool, option("Write over files that are there.", None, "--force")] = False,
) -> None:
    """Writes a recipe that runs, and its classes. On a terminal it asks what it should be."""
    from meshctl.cli.init import Options, init

    raise typer.Exit(init(name, Options(kind, device, ranks, layout, script, yes, force)))


@app.command()
def validate(
    recipes: Annotated[
        list[str],
        argument(
            "RECIPE... [KEY=VALUE]...",
            "Recipes, - for standard input; Hydra's overrides, for all of them.",
            sources.recipes_and_overrides,
        ),
    ],
    format: Annotated[
        str, option("text, concise, json, github or sarif.", sources.report_formats, "--format", "-f")
    ] = "",
    strict: Annotated[bool, option("Warnings fail too.", None, "--strict")] = False,
    fix: Annotated[
        bool, option("First change what has one safe answer, and say what.", None, "--fix")
    ] = False,
    color: Annotated[
        str,
        option("auto, always or never.", sources.words("auto", "always", "never"), metavar="WHEN"),
    ] = "auto",
) -> None:
    """Says every mistake of recipes at once. Starts nothing, and imports nothing that they name."""
    from meshctl.cli.validate import Options, validate

    raise typer.Exit(validate(recipes, Options(format, strict, fix, color)))


@app.command()
def config(
    recipe: Recipe,
    overrides: Overrides = None,
    origins: Annotated[
        bool, option("Where each value was written, and what it replaced.", None, "--origins")
    ] = False,
    format: Annotated[
        str, option("text (YAML) or json.", sources.words("text", "json"), "--format", "-f")
    ] = "text",
) -> None:
    """Prints a recipe as it is composed, without its secrets."""
    from meshctl.cli.config import config

    raise typer.Exit(config(recipe, overrides or [], origins, format))


@app.command("show-topology")
def show_topology(
    recipe: Recipe,
    overrides: Overrides = None,
    format: Annotated[
        str,
        option(
            "text, json, mermaid, svg or html; text, or what FILE says.",
            sources.picture_formats,
            "--format",
            "-f",
        ),
    ] = "",
    out: Annotated[str, option("Write it to a file.", sources.files, "--out", "-o", metavar="FILE")] = "",
    component: Annotated[
        str,
        option("One component: its process groups, stages and routes.", sources.components, metavar="NAME"),
    ] = "",
    dim: Annotated[
        str,
        option("The process groups along a dim, of all components or of one.", sources.dims, metavar="DIM"),
    ] = "",
    node: Annotated[int | None, option("One node: its devices and processes.", metavar="N")] = None,
    rank: Annotated[
        str,
        option(
            "One rank: its coordinates, peers and samples, and whom it talks to.",
            sources.ranks,
            metavar="GROUP:N",
        ),
    ] = "",
    samples: Annotated[
        int | None, option("Of a batch of so many, where the recipe says no `samples`.", metavar="N")
    ] = None,
    diff: Annotated[
        str | None,
        option(
            "What changes to a recipe, overrides, or both in quotes.",
            sources.recipes_and_overrides,
            metavar="OTHER",
        ),
    ] = None,
) -> None:
    """Draws what a recipe would run. Where, in which meshes, with which data flow."""
    from meshctl.cli.show_topology import Options, show

    options = Options(format, "" if out == "-" else out, component, dim, node, rank, samples, diff)
    raise typer.Exit(show(recipe, overrides or [], options))


@app.command()
def launch(
    recipe: Recipe,
    overrides: Overrides = None,
    dry_run: Annotated[
        bool, option("Say what would be started, and start nothing.", None, "--dry-run")
    ] = False,
    only: Annotated[str | None, option("Run this group alone.", sources.groups, metavar="GROUP")] = None,
    replay: Annotated[
        list[str] | None,
        option(
            "With --only: where a run has recorded what the group takes.",
            sources.recordings,
            metavar="ROUTE=DIR",
        ),
    ] = None,
    follow: Annotated[
        list[str] | None,
        option("Print all output of a group or of one rank.", sources.ranks, metavar="GROUP[:RANK]"),
    ] = None,
    debug: Annotated[
        str,
        option("Give this worker the terminal, for breakpoint().", sources.ranks, metavar="GROUP:RANK"),
    ] = "",
    multirun: Annotated[
        bool, option("Run every combination of key=1,2 one after another.", None, "--multirun", "-m")
    ] = False,
) -> None:
    """Runs a recipe, or goes on from a run's checkpoint."""
    from meshctl.cli.launch import Options, launch

    options = Options(dry_run, only, replay or (), follow or (), debug)
    if multirun:
        from meshctl.cli.multirun import multirun as launch_all

        raise typer.Exit(launch_all(recipe, overrides or [], options))
    raise typer.Exit(launch(recipe, overrides or [], options))


@app.command()
def doctor(
    recipe: Annotated[str, argument("[RECIPE]", "Whether this one would start here.", sources.recipe)] = "",
    overrides: Overrides = None,
    format: DataFormat = "text",
) -> None:
    """Says what this machine lacks, and what to do about it."""
    from meshctl.cli.doctor import doctor

    raise typer.Exit(doctor(recipe, overrides or [], format))


@app.command()
def explain(
    code: Annotated[str, argument("[CODE]", "MC410; MC4 for all about meshes.", sources.codes)] = "",
) -> None:
    """Says why a code is reported, with an example. Without one, lists all codes."""
    from meshctl.cli.explain import explain

    raise typer.Exit(explain(code))


@app.command()
def schema(
    out: Annotated[
        str, option("Write it to a file, or into a folder.", sources.files, "--out", "-o", metavar="FILE")
    ] = "",
) -> None:
    """The JSON Schema of recipes, for editors."""
    from meshctl.cli.schema import schema_command

    raise typer.Exit(schema_command(out))


@app.command()
def completion(
    shell: Annotated[str, argument("[SHELL]", "bash, zsh or fish; what SHELL says.", sources.shells)] = "",
) -> None:
    """Prints the script by which a shell completes. It knows commands, recipes and overrides."""
    from meshctl.cli.completion.shells import script

    raise typer.Exit(script(shell))


@app.command()
def agent(
    plan: Annotated[Path, option("RUN/plan.json", sources.files)],
    node: Annotated[int, option("The node of the cluster that this is.")],
    head: Annotated[str, option("HOST:PORT at which the supervisor of the run listens.")],
    group: Annotated[str, option("The only group of the node to run. Left out: all.")] = "",
) -> None:
    """Runs the workers of one node. Every engine starts this."""
    from meshctl.cli.agent import agent

    raise typer.Exit(agent(plan, group, node, head))


def main() -> None:
    open_all()
    try:
        try:
            if line := answer(sys.argv[1:]):
                print(f"error: {line}", file=sys.stderr)
                sys.exit(2)
            app()
        finally:
            write("", sys.stdout)
    except SystemExit as leaving:
        _leave(leaving)
    except Exception as error:  # any other exception is a bug in meshctl
        sys.exit(refused(error) if isinstance(error, OSError) and no_room(error) else bug(error))


def _leave(leaving: SystemExit) -> NoReturn:
    """Exits without Python's finalization, which takes another second once torch is loaded."""
    if "torch" not in sys.modules or not isinstance(leaving.code, int | None):
        raise leaving
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # the reader has closed the stream
            stream.flush()
    os._exit(leaving.code or 0)
