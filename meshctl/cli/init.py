"""`meshctl init [NAME]`: a recipe that validates and runs, and the Python file with its classes.

On a terminal it asks what was not said; with any of its options, or without a terminal, it asks nothing and
takes what is usual. It writes at the end, both files or none, and never over a file that is there.
"""

from __future__ import annotations

import json
import os
import select
import shlex
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from meshctl.cli import schema
from meshctl.cli.output import why
from meshctl.recipe import templates
from meshctl.recipe.templates import (
    COMMANDS,
    DEVICES,
    KINDS,
    LAYOUTS,
    Choice,
    WrongChoice,
    installed,
    layouts,
    module_of,
    stem_of,
)
from meshctl.run.directory import write_whole
from meshctl.text.english import counted, listed
from meshctl.view.reports.text import cells, shown

USAGE, INTERRUPTED = 2, 130
USUAL_ON_CPU = 2
"""Processes."""
Ask = Callable[[str], str]
"""Shows a prompt and gives a line; raises `EOFError` where there is none."""
Machine = tuple[str, int]
"""The device type that a machine computes on, and how many it has; of cpu 0."""


@dataclass(frozen=True)
class Asked:
    """The options of the command; empty where they were not given."""

    kind: str = ""
    device: str = ""
    ranks: int | None = None
    layout: str = ""
    script: str = ""
    yes: bool = False
    force: bool = False

    @property
    def silent(self) -> bool:
        """Something was said, so nothing is asked."""
        return bool(
            self.yes or self.kind or self.device or self.ranks is not None or self.layout or self.script
        )


def init(name: str, asked: Asked) -> int:
    """The exit code."""
    talks = not asked.silent and sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    try:
        here = machine()
        choice, name = questions(name, here, asked.force, answer) if talks else (chosen(asked, here), name)
        return write(place(name, choice.kind), choice, asked, here)
    except WrongChoice as wrong:
        return refuse(str(wrong))
    except KeyboardInterrupt:
        print("\nnothing was written", file=sys.stderr)
        return INTERRUPTED
    except EOFError:
        return refuse(
            "\nthere was no answer, so nothing was written; `--yes` takes what is usual, `--help` says what can be said"
        )


def refuse(reason: str) -> int:
    newline, reason = ("\n", reason[1:]) if reason.startswith("\n") else ("", reason)
    print(f"{newline}error: {shown(reason)}", file=sys.stderr)
    return USAGE


def machine() -> Machine:
    """What is here, told without loading torch or calling a driver."""
    from meshctl.engines.local import DEVICES as FILES
    from meshctl.engines.local import count_devices, is_rocm
    from meshctl.engines.node.visible_devices import narrowed
    from meshctl.recipe.load import detected

    rocm = is_rocm()
    kind = "cuda" if rocm and count_devices("cuda", rocm) else detected()
    left = narrowed(kind, os.environ, rocm)
    count = count_devices(kind, rocm) if kind in FILES else int(kind == "mps")
    count = min(count, len(left.names)) if left is not None else count
    return (kind, count) if count else ("cpu", 0)


def usual(here: Machine, device: str) -> int:
    """How many ranks, where nobody says it."""
    kind, count = here
    return count if kind == device and count else {"cpu": USUAL_ON_CPU, "mps": 1}.get(device, 8)


def chosen(asked: Asked, here: Machine) -> Choice:
    """The options, and for what they leave out the usual; raises `WrongChoice`."""
    kind = asked.kind or ("script" if asked.script else next(iter(KINDS)))
    device = {"gpu": "cuda"}.get(asked.device.lower(), asked.device.lower()) or here[0]
    ranks = usual(here, device) if asked.ranks is None else asked.ranks
    choice = Choice(kind, device, ranks, asked.layout, asked.script)
    templates.check(choice)
    return choice


# Questions


def answer(prompt: str) -> str:
    """A line of the terminal. An interrupt between prompt and reading would not be heard before its end: the
    pipe tells of it."""
    print(prompt, end="", flush=True)
    heard, tells = os.pipe()
    os.set_blocking(tells, False)
    before = signal.set_wakeup_fd(tells, warn_on_full_buffer=False)
    try:
        select.select([sys.stdin, heard], [], [])
        return input()
    finally:
        signal.set_wakeup_fd(before)
        os.close(heard)
        os.close(tells)


def questions(name: str, here: Machine, force: bool, ask: Ask) -> tuple[Choice, str]:
    """What is asked on a terminal, each with a default."""
    kind = one_of("What is to run?", KINDS, next(iter(KINDS)), ask)
    script = which_script(ask) if kind == "script" else ""
    found = f"this machine has {counted(here[1], 'device')}" if here[1] else "this machine has no accelerator"
    about = {device: f"{text}; {found}" if device == here[0] else text for device, text in DEVICES.items()}
    device = one_of("On what?", about, here[0], ask)
    choice = Choice(kind, device, usual(here, device), "", script)
    if device != "mps":
        choice = replace(choice, ranks=number(_how_many(choice), choice, ask))
    if kind != "script" and len(layouts(choice)) > 1:
        options = {layout: LAYOUTS[layout][0] for layout in layouts(choice)}
        layout = one_of(
            f"In which layout are the {choice.trained} ranks that train?", options, layouts(choice)[0], ask
        )
        choice = replace(choice, layout=layout)
    return choice, name or a_name(choice, force, ask)


def which_script(ask: Ask) -> str:
    """Somebody's own; empty for one to begin with."""
    while script := ask("\nWhich script? A path; nothing for a small one to begin with: ").strip():
        try:
            script_from(script, Path())
            break
        except WrongChoice as wrong:
            print(f"  {shown(str(wrong))}")
    return script


def a_name(choice: Choice, force: bool, ask: Ask) -> str:
    """One that can name a run, and that no recipe has yet."""
    while True:
        name = ask(f"\nA name [{choice.kind}]: ").strip() or choice.kind
        try:
            recipe = place(name, choice.kind).recipe
            if force or not os.path.lexists(recipe):
                return name
            print(f"  {shown(f'`{recipe}` is there already')}")
        except WrongChoice as wrong:
            print(f"  {shown(str(wrong))}")


def one_of(question: str, options: Mapping[str, str], default: str, ask: Ask) -> str:
    """By its number or its word."""
    names, width = list(options), max(map(len, options))
    print(f"\n{question}")
    for index, option in enumerate(names, 1):
        print(f"  {index}  {option:{width}}  {options[option]}")
    while True:
        said = ask(f"[{default}]: ").strip().lower() or default
        if said in options:
            return said
        if said.isdecimal() and 1 <= int(said) <= len(names):
            return names[int(said) - 1]
        print(f"  a number from 1 to {len(names)}, or a word: {', '.join(names)}")


def _how_many(choice: Choice) -> str:
    what = "processes" if choice.device == "cpu" else f"{choice.device} devices"
    groups = f" for {' and '.join(choice.shares)} together" if len(choice.shares) > 1 else ""
    return f"How many {what}{groups}?{' The judge is one more.' if choice.kind == 'grpo' else ''}"


def number(question: str, choice: Choice, ask: Ask) -> int:
    print(f"\n{question}")
    while True:
        said = ask(f"[{choice.ranks}]: ").strip() or str(choice.ranks)
        try:
            ranks = int(said)
            templates.check(replace(choice, ranks=ranks))
            return ranks
        except WrongChoice as wrong:
            print(f"  {wrong}")
        except ValueError:
            print("  a whole number")


# Writing


@dataclass(frozen=True)
class Place:
    """Where the files go."""

    folder: Path
    stem: str

    @property
    def recipe(self) -> Path:
        return self.folder / f"{self.stem}.yaml"


def place(name: str, kind: str) -> Place:
    """`jobs/grpo` is written into jobs/; a folder gets a recipe that is called like its kind. Raises
    `WrongChoice`."""
    if "\0" in name:
        raise WrongChoice("a name has no NUL in it")
    path = Path(name or kind)
    if name.endswith(os.sep) or path.name in ("", "..") or os.path.isdir(path):
        return Place(path, kind)
    return Place(path.parent, stem_of(path.name))


def write(to: Place, choice: Choice, asked: Asked, here: Machine) -> int:
    """Writes both files and says what comes next; the exit code."""
    own = [os.path.realpath(folder) for folder in ("", to.folder)]
    elsewhere = [folder for folder in sys.path if os.path.realpath(folder) not in own]
    taken = [
        name
        for name in (to.stem, module_of(to.stem))
        if name.isidentifier() and _is_taken(name, to.folder, elsewhere)
    ]
    module = module_of(to.stem, taken)
    choice = replace(choice, script=script_from(choice.script, to.folder)) if choice.script else choice
    path = shlex.quote(str(to.recipe))
    texts = {
        to.folder / name: text
        for name, text in templates.files(choice, to.stem, module, path, schema.MODELINE).items()
    }
    if there := [
        str(file) for file in texts if os.path.lexists(file) and not (asked.force and os.path.isfile(file))
    ]:
        are, them = ("is", "it") if len(there) == 1 else ("are", "them")
        return refuse(
            f"{listed(there)} {are} there already: say another NAME, or `--force` to write over {them}"
        )
    editors = for_editors(to.folder / schema.FILE)
    try:
        put(texts | editors)
    except OSError as error:
        return refuse(f"`{to.folder}` cannot be written to: {why(error)}")
    say(to, [*texts, *editors], choice, here)
    return 0


def _is_taken(name: str, folder: Path, elsewhere: list[str]) -> bool:
    """A package in the same folder comes before a file, and a file of that name would come before what is
    installed."""
    return os.path.isfile(folder / name / "__init__.py") or installed(name, elsewhere)


def script_from(script: str, folder: Path) -> str:
    """Its path as seen from the recipe's folder; raises `WrongChoice` where there is none."""
    if "\0" in script or not os.path.isfile(script):
        raise WrongChoice(f"there is no script `{script}`")
    if set(script) & set("${}"):
        raise WrongChoice(
            f"`{script}` has a sign in its name that means something else in a recipe: $, {{ or }}"
        )
    seen = script if os.path.isabs(script) else os.path.relpath(script, folder)
    return f"./{seen}" if seen.startswith("-") else seen


def for_editors(file: Path) -> dict[Path, str]:
    """The schema that the first line of a recipe names, where the folder has none or an old one; somebody
    else's of that name stays."""
    text = schema.text()
    if not os.path.lexists(file):
        return {file: text}
    try:
        old = file.read_text(encoding="utf-8")
        ours = json.loads(old)["title"] == json.loads(text)["title"]
    except (OSError, ValueError, TypeError, KeyError):
        ours = False
    return {file: text} if ours and old != text else {}


def put(texts: Mapping[Path, str]) -> None:
    """All or none: where one cannot be written, those before it go again. Raises `OSError`."""
    new = [file for file in texts if not file.exists()]
    try:
        for file, text in texts.items():
            write_whole(file, text)
    except OSError:
        for file in new:
            file.unlink(missing_ok=True)
        raise


def say(to: Place, written: list[Path], choice: Choice, here: Machine) -> None:
    groups = ", ".join([*choice.shares, *(["judge"] if choice.kind == "grpo" else [])])
    what = {
        ".yaml": f"{counted(choice.workers, 'worker')}: {groups}",
        ".py": "a script to begin with" if choice.kind == "script" else "its classes, for you to change",
        ".json": "the keys of recipes, for editors",
    }
    width = max(cells(str(file)) for file in written)
    for file in written:
        print(f"wrote {shown(str(file))}{' ' * (width - cells(str(file)))}  {what[file.suffix]}")
    print("\nnext:")
    for command in COMMANDS:
        print(f"  meshctl {command} {shlex.quote(str(to.recipe))}")
    needed, (kind, count) = min(choice.ranks, sum(choice.shares.values())), here
    if choice.device != "cpu" and (kind != choice.device or count < needed):
        has = counted(count, f"{kind} device") if count else "no accelerator"
        print(
            f"\nIt wants {counted(needed, f'{choice.device} device')}, and this machine has {has}: launch it where they are."
        )
