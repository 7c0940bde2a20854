"""`meshctl init [NAME]`: writes a recipe that validates and runs, and the Python file with its classes. A
recipe of ready-made classes gets small data instead.

Options that are left out have defaults. It writes all files or none, and overwrites existing ones only with
`--force`.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path

from meshctl.cli.output import refuse, why, write
from meshctl.dataclass import dataclass
from meshctl.package import install_command, missing_libraries
from meshctl.recipe import templates
from meshctl.recipe.fields import schema
from meshctl.recipe.templates import (
    COMMANDS,
    KINDS,
    Choice,
    WrongChoice,
    installed,
    module_of,
    stem_of,
)
from meshctl.run.directory import write_whole
from meshctl.text.english import counted, listed
from meshctl.topology.cluster import DEVICE_ALIASES
from meshctl.view.reports.text import cells, shown

FILE = "recipe.schema.json"
"""Default name of the schema in a recipe's folder."""
MODELINE = f"# yaml-language-server: $schema={FILE}\n"
PYTHON_FILES = {"script": "an example script", **dict.fromkeys(templates.ROLLOUTS, "its reward, to edit")}
PYTHON_FILES["agent"] = "its agent, to edit"
"""Kind -> description of its Python file; for other kinds it contains the classes of the recipe."""
DEFAULT_PROCESSES = 2
"""Default number of ranks on cpu."""
DEFAULT_DEVICES = 8
"""Default number of ranks on a device type that this machine does not have."""
Machine = tuple[str, int]
"""(device type, number of devices); ("cpu", 0) for a machine without accelerators."""


@dataclass(frozen=True)
class Options:
    """The options of the command. An option that was left out is empty."""

    kind: str = ""
    device: str = ""
    ranks: int | None = None
    layout: str = ""
    script: str = ""
    force: bool = False


def init(name: str, options: Options) -> int:
    """Writes the files, and returns the exit code."""
    try:
        here = machine()
        kind = options.kind or ("script" if options.script else next(iter(KINDS)))
        device = options.device.lower() or here[0]
        device = DEVICE_ALIASES.get(device, device)
        ranks = options.ranks
        if ranks is None:
            usual = {"cpu": max(DEFAULT_PROCESSES, len(Choice(kind).shares)), "mps": 1}
            ranks = here[1] if here[0] == device and here[1] else usual.get(device, DEFAULT_DEVICES)
        choice = Choice(kind, device, ranks, options.layout, options.script)
        templates.check(choice)
        return write_recipe(place_of(name, choice.kind), choice, options.force, here)
    except WrongChoice as wrong:
        return refuse(str(wrong))


def machine() -> Machine:
    """Returns the devices of this machine. Does not import torch and calls no driver."""
    from meshctl.engines.checks.device_files import DEVICES as FILES
    from meshctl.engines.checks.device_files import count_devices, device_list, is_rocm
    from meshctl.recipe.load import detected

    rocm = is_rocm()
    kind = "cuda" if rocm and count_devices("cuda", rocm) else detected()
    left = device_list(kind, os.environ, rocm)
    count = count_devices(kind, rocm) if kind in FILES else int(kind == "mps")
    count = min(count, len(left.names)) if left is not None else count
    return (kind, count) if count else ("cpu", 0)


# Writing


@dataclass(frozen=True)
class Place:
    """The folder and the name of the files to write."""

    folder: Path
    stem: str

    @property
    def recipe(self) -> Path:
        return self.folder / f"{self.stem}.yaml"


def place_of(name: str, kind: str) -> Place:
    """Returns the place of the recipe `name`: for `jobs/grpo`, the file `grpo.yaml` in `jobs/`; for an
    existing folder, a file in it that is named like the kind. Raises `WrongChoice`."""
    if "\0" in name:
        raise WrongChoice("a name must not contain NUL")
    path = Path(name or kind)
    if name.endswith(os.sep) or path.name in ("", "..") or os.path.isdir(path):
        return Place(path, kind)
    return Place(path.parent, stem_of(path.name))


def write_recipe(to: Place, choice: Choice, is_forced: bool, here: Machine) -> int:
    """Writes all files or none, prints the commands to try next, and returns the exit code."""
    if choice.script:
        choice = replace(choice, script=script_from(choice.script, to.folder))
    path = shlex.quote(str(to.recipe))
    own = [os.path.realpath(folder) for folder in ("", to.folder)]
    elsewhere = [folder for folder in sys.path if os.path.realpath(folder) not in own]
    names = (to.stem, module_of(to.stem))
    taken = [
        name
        for name in names
        if name.isidentifier()
        and (os.path.isfile(to.folder / name / "__init__.py") or installed(name, elsewhere))
    ]
    named = templates.files(choice, to.stem, module_of(to.stem, taken), path, MODELINE)
    texts = {to.folder / name: text for name, text in named.items()}
    existing = [str(file) for file in texts if os.path.lexists(file)]
    if is_forced:
        existing = [file for file in existing if not os.path.isfile(file)]
    if existing:
        exist, them = ("exists", "it") if len(existing) == 1 else ("exist", "them")
        return refuse(
            f"{listed(existing)} already {exist}: choose another NAME, or use `--force` to overwrite {them}"
        )
    data = {to.folder / name: text for name, text in templates.data(choice.kind).items()}
    texts |= {file: text for file, text in data.items() if not os.path.lexists(file)}
    texts |= for_editors(to.folder / FILE)
    try:
        new = [file for file in texts if not file.exists()]
        try:
            for file, text in texts.items():
                write_whole(file, text)
        except OSError:
            for file in new:
                file.unlink(missing_ok=True)
            raise
    except OSError as error:
        return refuse(f"`{to.folder}` cannot be written to: {why(error)}")
    report(to, list(texts), choice, here)
    return 0


def script_from(script: str, folder: Path) -> str:
    """Returns a script's path relative to the recipe's folder. Raises `WrongChoice` if the file does not
    exist."""
    if "\0" in script or not os.path.isfile(script):
        raise WrongChoice(f"script `{script}` does not exist")
    if set(script) & set("${}"):
        raise WrongChoice(f"`{script}` has a character in its name that is special in a recipe: $, {{ or }}")
    seen = script if os.path.isabs(script) else os.path.relpath(script, folder)
    return f"./{seen}" if seen.startswith("-") else seen


def for_editors(file: Path) -> dict[Path, str]:
    """Returns path -> text of the JSON Schema that the first line of a recipe names. Empty if the folder has
    the current schema already, or another file of that name."""
    text = schema_text()
    if not os.path.lexists(file):
        return {file: text}
    try:
        old = file.read_text(encoding="utf-8")
        ours = json.loads(old)["title"] == json.loads(text)["title"]
    except (OSError, ValueError, TypeError, KeyError):
        ours = False
    return {file: text} if ours and old != text else {}


def report(to: Place, written: list[Path], choice: Choice, here: Machine) -> None:
    """Prints what was written, and the commands to try next."""
    groups = ", ".join([*choice.shares, *(["judge"] if choice.has_judge else [])])
    what = {
        ".yaml": "its devices and its model",
        ".py": PYTHON_FILES.get(choice.kind, "its classes, to edit"),
        ".jsonl": "its data",
        ".json": "the keys of recipes, for editors",
    }
    roles = {
        file: "its tokenizer" if file.parent.name == "tokenizer" else what[file.suffix] for file in written
    }
    roles[to.recipe] = f"{counted(choice.workers, 'worker')}: {groups}"
    width = max(cells(str(file)) for file in written)
    for file in written:
        print(f"wrote {shown(str(file))}{' ' * (width - cells(str(file)))}  {roles[file]}")
    print("\nnext:")
    for command in COMMANDS:
        print(f"  meshctl {command} {shlex.quote(str(to.recipe))}")
    extras = templates.RECIPE_EXTRAS.get(choice.kind, "hf")
    missing = [one for extra in extras.split(",") for one in missing_libraries(extra) or ()]
    if choice.kind in templates.RECIPES and missing:
        print(f"\nIt needs {listed(missing)}, not installed here: {install_command(extras)}")
    needed, (kind, count) = min(choice.ranks, sum(choice.shares.values())), here
    if choice.device != "cpu" and (kind != choice.device or count < needed):
        has = counted(count, f"{kind} device") if count else "no accelerator"
        print(
            f"\nIt needs {counted(needed, f'{choice.device} device')}, but this machine has {has}: "
            "launch it on a machine that has them."
        )


# `meshctl schema`


def schema_text() -> str:
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def schema_command(out: str) -> int:
    """Prints the schema, or writes it to a file or into a folder. Returns the exit code."""
    if not out or out == "-":
        sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
        write(schema_text(), sys.stdout)
        return 0
    path = Path(out)
    path = path / FILE if out.endswith(os.sep) or path.is_dir() else path
    try:
        write_whole(path, schema_text())
    except (OSError, ValueError) as error:
        return refuse(f"`{path}` cannot be written: {why(error)}")
    print(
        f"wrote {path}; a recipe beside it begins with\n{MODELINE.replace(FILE, path.name)}",
        end="",
        file=sys.stderr,
    )
    return 0
