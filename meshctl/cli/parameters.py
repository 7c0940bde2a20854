"""The options and arguments of commands, and those that several commands have."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from meshctl.cli.completion import sources


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
DataFormat = Annotated[str, option("Format: text or json.", sources.words("text", "json"), "--format", "-f")]
Node = Annotated[
    str,
    option(
        "Number of the node, or SET.INDEX: its place among nodes of the same groups.",
        None,
        "--node",
        metavar="NODE",
    ),
]
