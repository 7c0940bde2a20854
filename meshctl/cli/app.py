"""The command line: `meshctl`, one file per command, imported when it is called.

Exit codes: 0 done, 1 the recipe has errors, 2 wrong usage, 3 the recipe cannot be read, 4 the environment
refuses, 5 the run failed, 70 a bug in meshctl, 130 and 143 interrupted.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, NoReturn

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

Recipe = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="A recipe, - for standard input, or a run's directory.",
        show_default=False,
        autocompletion=sources.recipe,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Hydra's overrides.",
        show_default=False,
        autocompletion=sources.overrides,
    ),
]


def say_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        write(f"meshctl {version('meshctl')}\n", sys.stdout)
        raise typer.Exit


@app.callback()
def meshctl(
    version: Annotated[
        bool,
        typer.Option("--version", callback=say_version, is_eager=True, help="Say the version, and leave."),
    ] = False,
) -> None:
    """A recipe says, a plan places, a run does."""


@app.command()
def init(
    name: Annotated[
        str,
        typer.Argument(
            metavar="[NAME]",
            help="NAME.yaml, in a folder if it says one.",
            show_default=False,
            autocompletion=sources.files,
        ),
    ] = "",
    kind: Annotated[
        str,
        typer.Option(
            help="train, grpo, distill or script.", show_default=False, autocompletion=sources.kinds
        ),
    ] = "",
    device: Annotated[
        str,
        typer.Option(
            help="cpu, cuda, npu or mps; what this machine has.",
            show_default=False,
            autocompletion=sources.device_types,
        ),
    ] = "",
    ranks: Annotated[
        int | None, typer.Option(metavar="N", help="Devices, or on cpu processes, of all groups together.")
    ] = None,
    layout: Annotated[
        str,
        typer.Option(
            help="fsdp, dp or hsdp: of the group that trains.",
            show_default=False,
            autocompletion=sources.layouts,
        ),
    ] = "",
    script: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="Your own, written for torchrun.",
            show_default=False,
            autocompletion=sources.python_files,
        ),
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over files that are there.")] = False,
) -> None:
    """Writes a recipe that runs, and its classes. On a terminal it asks what it should be."""
    from meshctl.cli.init import Options, init

    raise typer.Exit(init(name, Options(kind, device, ranks, layout, script, yes, force)))


@app.command()
def validate(
    recipes: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPE... [KEY=VALUE]...",
            help="Recipes, - for standard input; Hydra's overrides, for all of them.",
            autocompletion=sources.recipes_and_overrides,
        ),
    ],
    format: Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            help="text, concise, json, github or sarif.",
            show_default=False,
            autocompletion=sources.report_formats,
        ),
    ] = "",
    strict: Annotated[bool, typer.Option("--strict", help="Warnings fail too.")] = False,
    fix: Annotated[
        bool, typer.Option("--fix", help="First change what has one safe answer, and say what.")
    ] = False,
    color: Annotated[
        str,
        typer.Option(
            metavar="WHEN",
            help="auto, always or never.",
            autocompletion=sources.words("auto", "always", "never"),
        ),
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
        bool, typer.Option("--origins", help="Where each value was written, and what it replaced.")
    ] = False,
    format: Annotated[
        str,
        typer.Option(
            "--format", "-f", help="text (YAML) or json.", autocompletion=sources.words("text", "json")
        ),
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
        typer.Option(
            "--format",
            "-f",
            help="text, json, mermaid, svg or html; text, or what FILE says.",
            autocompletion=sources.picture_formats,
        ),
    ] = "",
    out: Annotated[
        str,
        typer.Option("--out", "-o", metavar="FILE", help="Write it to a file.", autocompletion=sources.files),
    ] = "",
    component: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="One component: its process groups, stages and routes.",
            autocompletion=sources.components,
        ),
    ] = "",
    dim: Annotated[
        str,
        typer.Option(
            metavar="DIM",
            help="The process groups along a dim, of all components or of one.",
            autocompletion=sources.dims,
        ),
    ] = "",
    node: Annotated[
        int | None, typer.Option(metavar="N", help="One node: its devices and processes.")
    ] = None,
    rank: Annotated[
        str,
        typer.Option(
            metavar="GROUP:N",
            help="One rank: its coordinates, peers and samples, and whom it talks to.",
            autocompletion=sources.ranks,
        ),
    ] = "",
    samples: Annotated[
        int | None,
        typer.Option(metavar="N", help="Of a batch of so many, where the recipe says no `samples`."),
    ] = None,
    diff: Annotated[
        str | None,
        typer.Option(
            metavar="OTHER",
            help="What changes to a recipe, overrides, or both in quotes.",
            autocompletion=sources.recipes_and_overrides,
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
        bool, typer.Option("--dry-run", help="Say what would be started, and start nothing.")
    ] = False,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="GROUP", help="Run this group alone.", show_default=False, autocompletion=sources.groups
        ),
    ] = None,
    replay: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROUTE=DIR",
            help="With --only: where a run has recorded what the group takes.",
            show_default=False,
            autocompletion=sources.recordings,
        ),
    ] = None,
    multirun: Annotated[
        bool, typer.Option("--multirun", "-m", help="Run every combination of key=1,2 one after another.")
    ] = False,
) -> None:
    """Runs a recipe, or goes on from a run's checkpoint."""
    from meshctl.cli.replay import Options

    options = Options(only, replay or ())
    if multirun:
        from meshctl.cli.multirun import multirun as launch_all

        raise typer.Exit(launch_all(recipe, overrides or [], dry_run, options))
    from meshctl.cli.launch import launch

    raise typer.Exit(launch(recipe, overrides or [], dry_run, options))


@app.command()
def doctor(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="[RECIPE]",
            help="Whether this one would start here.",
            show_default=False,
            autocompletion=sources.recipe,
        ),
    ] = "",
    overrides: Overrides = None,
    format: Annotated[
        str,
        typer.Option("--format", "-f", help="text or json.", autocompletion=sources.words("text", "json")),
    ] = "text",
) -> None:
    """Says what this machine lacks, and what to do about it."""
    from meshctl.cli.doctor import doctor

    raise typer.Exit(doctor(recipe, overrides or [], format))


@app.command()
def explain(
    code: Annotated[
        str,
        typer.Argument(
            metavar="[CODE]",
            help="MC410; MC4 for all about meshes.",
            show_default=False,
            autocompletion=sources.codes,
        ),
    ] = "",
) -> None:
    """Says why a code is reported, with an example. Without one, lists all codes."""
    from meshctl.cli.explain import explain

    raise typer.Exit(explain(code))


@app.command()
def schema(
    out: Annotated[
        str,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Write it to a file, or into a folder.",
            autocompletion=sources.files,
        ),
    ] = "",
) -> None:
    """The JSON Schema of recipes, for editors."""
    from meshctl.cli.schema import schema_command

    raise typer.Exit(schema_command(out))


@app.command()
def completion(
    shell: Annotated[
        str,
        typer.Argument(
            metavar="[SHELL]",
            help="bash, zsh or fish; what SHELL says.",
            show_default=False,
            autocompletion=sources.shells,
        ),
    ] = "",
) -> None:
    """Prints the script by which a shell completes. It knows commands, recipes and overrides."""
    from meshctl.cli.completion.shells import script

    raise typer.Exit(script(shell))


@app.command()
def agent(
    plan: Annotated[Path, typer.Option(help="RUN/plan.json", autocompletion=sources.files)],
    node: Annotated[int, typer.Option(help="The node of the cluster that this is.")],
    head: Annotated[str, typer.Option(help="HOST:PORT at which the supervisor of the run listens.")],
    group: Annotated[str, typer.Option(help="The only group of the node to run. Left out: all.")] = "",
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
    except Exception as error:  # the last border: whatever else gets here is a bug
        sys.exit(refused(error) if isinstance(error, OSError) and no_room(error) else bug(error))


def _leave(leaving: SystemExit) -> NoReturn:
    """A process that has torch in it would spend another second on taking it apart."""
    if "torch" not in sys.modules or not isinstance(leaving.code, int | None):
        raise leaving
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # nobody reads it any more
            stream.flush()
    os._exit(leaving.code or 0)
