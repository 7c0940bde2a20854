"""Fuzzes the commands that read recipes. For any files, file names, overrides and environment, they must end
with a report and do nothing else.

    python -m tests.recipe.fuzzing --inputs 100000            mutates golden, correct and shipped recipes

Half of the inputs are recipes with random bytes and pieces; in the other half, only numbers are changed, so that
many are correct and are drawn. Each input is validated and printed in every format, as by `validate`, `config` and, for a correct recipe, `show-topology`,
whole and in parts; and completions are requested. No input may raise an exception, take more than 2 seconds of
CPU time, start a process, open a socket, import a module or write a file; the spans of the report are in the
text, and the output contains no control characters and no values of environment variables. The first input that
violates a condition is written to `fuzz-found.yaml`, with its other parts in the first line.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import NoReturn

import typer.main

from meshctl.cli import config
from meshctl.cli.completion.line import answer
from meshctl.cli.show_topology import FORMATS as PICTURES
from meshctl.cli.show_topology import draw_in
from meshctl.plan.model import Plan
from meshctl.plan.resolve import resolve
from meshctl.plan.views.difference import difference
from meshctl.plan.views.selection import Selection, select
from meshctl.plan.views.topology import Topology, topology
from meshctl.recipe.load import Loaded, load
from meshctl.text.bounded import UNSEEN
from meshctl.view.reports import FORMATS, Checked, Findings
from tests.paths import ROOT
from tests.recipe.mutations import OVERRIDES as OVERRIDES_OF

# Inputs

GOLDEN, CORRECT_RECIPES = (Path(__file__).parent / name for name in ("golden", "correct"))
CODE = (str(GOLDEN), str(CORRECT_RECIPES), str(ROOT / "recipes"))
"""Folders of the components of the recipes."""
ENVIRONMENT = {
    **{"HOME": "secret-home", "X": "secret-x", "N": "7", "KIND": "cpu", "EMPTY": ""},
    "ODD": "\x1b[31m\u202e${X}",
}
PIECES = (
    *("${", "}", "${seed}", "${oc.env:HOME}", "${oc.env:X,1}", "${a.b}", "${.x}", "${..x}"),
    *("${nope:1}", "???", "null", "~", "-1", "1e3", "010", "1:30", "yes", "on:", ".inf", ".nan"),
    *("0x1F", "1_000", "999999999999999999999", "''", '"', "'", "&a ", "*a", "<<: *a", "- ", ": "),
    *("? ", "[", "]", "{", "}", "#", "|", ">", "%YAML 1.1\n", "---\n", "...\n"),
    *("!!python/object/apply:os.system ['x']", "!x ", "\t", "\r\n", "\ufeff", "\x00", "\x1b[31m"),
    *("\u2028", "漢字", "é", "\U0001f600", "@", "`", ",", "=", "  ", "\n", "\n  "),
    *("defaults:\n  - base\n", "_self_", "auto", "ranks: ", "device_type: ", "parallel: "),
    *("tp_size: ", "pipeline:\n", "call: ", "in: ", "sync: ", "_target_: ", "optional "),
    *("override ", "pkg://os", "structured://x", "hydra: {searchpath: ['pkg://evil']}\n"),
    *("- /layout@components.a.parallel: dp\n", "package: _global_"),
)
KEYS = (
    *("seed", "run.steps", "groups.train.ranks", "components.actor.parallel.tp_size"),
    *("components.actor.parallel", "layout@components.actor.parallel", "run", "groups"),
)
VALID_OVERRIDES = tuple(sorted({override for some in OVERRIDES_OF.values() for override in some}))
NUMBER = re.compile(rb"(?<![\w.])\d+(?![\w.])")
NUMBERS = (b"1", b"2", b"3", b"4", b"8", b"64", b"0", b"1000000")
OVERRIDES = (
    *("+", "++", "~", "=", "[", "]", "{", "}", ",", "'", '"', "\\", "range(1,3)", "choice(1,2)"),
    *("a.b", "0", "null", "${seed}", " ", "()", "@", ":"),
)
INCLUDES = (
    *("base", "./near", "conf/own", "layout@components.actor.parallel: own", "run@run: quick", "near@vars"),
)
"""Entries of defaults lists."""
NAMES = (
    *("recipe.yaml", "r\u202e.yaml", "a b.yml", "-x.yaml", "\x1b[31m.yaml", "token=abc.yaml", "漢.yaml"),
    "x" * 200 + ".yaml",
)


@dataclass(frozen=True)
class Input:
    recipe: bytes
    overrides: tuple[str, ...] = ()
    name: str = "recipe.yaml"
    files: Mapping[str, bytes] = field(default_factory=dict)
    """The other files of the recipe's folder."""
    environ: Mapping[str, str] = field(default_factory=lambda: ENVIRONMENT)
    word: str = ""
    """The word to complete; empty for no completion."""


def corpus() -> list[bytes]:
    return [path.read_bytes() for path in (*sorted(GOLDEN.glob("*.yaml")), *_correct())]


def _correct() -> list[Path]:
    return [*sorted(CORRECT_RECIPES.glob("*.yaml")), *sorted((ROOT / "recipes").glob("*.yaml"))]


def mutated(recipes: list[bytes], chance: random.Random) -> Input:
    """Returns a recipe with a few changed parts, and sometimes with overrides, included files or an unusual
    name."""
    change = chance.choice((_changed, _with_other_numbers))
    is_correct = change is _with_other_numbers
    recipe = change(chance.choice(recipes[-len(_correct()) :] if is_correct else recipes), recipes, chance)
    files = {}
    if chance.random() < 0.3:
        entries = chance.choices(INCLUDES, k=chance.randrange(1, 5))
        listed = "".join(f"  - {entry}\n" for entry in [*entries, "_self_"])
        recipe = f"defaults:\n{listed}".encode() + recipe
        names = ("near", "base", "conf/own", "conf/layout/own", "conf/run/quick")
        files = {
            f"{name}.yaml": _changed(_included(chance) + chance.choice(recipes), recipes, chance)
            for name in names
        }
    return Input(
        recipe,
        tuple(_override(chance) for _ in range(chance.choice((0, 0, 0, 1, 2)))),
        chance.choice(NAMES) if chance.random() < 0.2 else "recipe.yaml",
        files,
        {name: text for name, text in ENVIRONMENT.items() if chance.random() < 0.8},
        _override(chance)[: chance.randrange(30)] if chance.random() < 0.3 else "",
    )


def _included(chance: random.Random) -> bytes:
    header = chance.choice(("", "", "# @package _global_\n", "# @package run\n", "# @package a.b\n"))
    return f"{header}defaults: [{chance.choice(('', './near', 'base', '/conf/own@_here_', '_self_'))}]\n".encode()


def _changed(text: bytes, recipes: list[bytes], chance: random.Random) -> bytes:
    recipe = bytearray(text)
    for _ in range(chance.choice((1, 1, 2, 3, 5, 8))):
        at = chance.randrange(len(recipe) + 1)
        match chance.randrange(7):
            case 0:
                recipe[at : at + chance.randrange(1, 20)] = b""
            case 1:
                recipe[at:at] = bytes(chance.randrange(256) for _ in range(chance.randrange(1, 4)))
            case 2:
                other = chance.choice(recipes)
                start = chance.randrange(len(other) + 1)
                recipe[at:at] = other[start : start + chance.randrange(200)]
            case 3:
                lines = recipe.split(b"\n")
                lines.insert(chance.randrange(len(lines) + 1), chance.choice(lines))
                recipe = bytearray(b"\n".join(lines))
            case 4:
                many = chance.choice((1, 1, 1, 2, 100))
                recipe[at : at + chance.randrange(4)] = chance.choice(PIECES).encode() * many
            case _:
                recipe[at:at] = chance.choice(PIECES).encode()
    return bytes(recipe)


def _with_other_numbers(text: bytes, recipes: list[bytes], chance: random.Random) -> bytes:
    """Replaces up to three numbers."""
    for _ in range(chance.randrange(4)):
        if found := list(NUMBER.finditer(text)):
            at = chance.choice(found)
            text = text[: at.start()] + chance.choice(NUMBERS) + text[at.end() :]
    return text


def _override(chance: random.Random) -> str:
    if chance.random() < 0.3:
        return chance.choice(VALID_OVERRIDES)
    pieces = (*OVERRIDES, *PIECES, *KEYS)
    made = f"{chance.choice(('', '', '+', '++', '~'))}{chance.choice(KEYS)}={chance.choice(pieces)}"
    for _ in range(chance.choice((0, 0, 1, 3))):
        at = chance.randrange(len(made) + 1)
        made = made[:at] + chance.choice(pieces) + made[at + chance.randrange(3) :]
    return made.replace("\x00", "")


CORRECT = Input(
    b"defaults: [layout@components.a.parallel: dp, _self_]\n"
    b"groups: {g: {ranks: 2, device_type: cpu}, p: {ranks: 1, device_type: cpu, program: recipe.yaml}}\n"
    b"components: {a: {_target_: meshctl.components.Cycle, group: g, args: {path: x.jsonl}}}\n"
    b"pipeline: {b: {call: a.next, samples: 4}}\nrun: {steps: 1}\n"
)


# One input, read as the commands do, and all conditions

LIMIT_S = 2
"""Maximum processor time in seconds to read an input, and to show it in one way."""
WATCHED = (
    *("subprocess.Popen", "os.system", "os.exec", "os.fork", "os.posix_spawn", "socket.connect"),
    *("socket.bind", "shutil.rmtree", "os.remove"),
)


class Found(Exception):
    """An input violates a condition."""


@dataclass
class Watch:
    """Records the audit events of reading one recipe. An audit hook can never be removed."""

    on: bool = False
    seen: tuple[str, ...] = ()
    modules: frozenset[str] = frozenset()

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if not self.on:
            return
        written = event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")
        if event in WATCHED or written:
            self.seen += (f"{event} {arguments[0]}",)

    @contextmanager
    def watching(self) -> Iterator[None]:
        self.seen, self.modules, self.on = (), frozenset(sys.modules), True
        try:
            yield
        finally:
            self.on = False
        if self.seen:
            raise Found(f"it did something: {', '.join(self.seen)}")
        if new := [name for name in set(sys.modules) - self.modules if not _is_ours(name)]:
            raise Found(f"it imported {', '.join(sorted(new))}")


def _is_ours(name: str) -> bool:
    """Whether a module belongs to the reader of recipes; omegaconf imports `attr`, and Hydra `packaging`."""
    first = name.split(".")[0]
    return (
        first in ("meshctl", "hydra", "omegaconf", "antlr4", "yaml", "attr", "packaging")
        or first in sys.stdlib_module_names
    )


WATCH = Watch()


def check(one: Input, folder: Path) -> Loaded:
    """Reads and prints a recipe, and checks all conditions. Raises `Found`."""
    _write(one, folder)
    with WATCH.watching():
        try:
            with _limited():
                path, detect = (str(folder), *CODE), lambda: "cpu"
                loaded = load(one.name, one.overrides, folder, path=path, environ=one.environ, detect=detect)
            shown, drawn = "", _shown(one, loaded)
            while True:
                with _limited():
                    more = next(drawn, None)
                if more is None:
                    break
                shown += more
        except Found:
            raise
        except BaseException as error:
            raise Found(f"{type(error).__name__}: {error}") from error
    if "\x1b" in shown or "\x00" in shown or UNSEEN.search(shown):
        raise Found("what is shown drives the terminal")
    if "secret-" in shown and b"secret-" not in one.recipe:
        raise Found("the output contains a value of the environment")
    _check_spans(loaded)
    return loaded


def _write(one: Input, folder: Path) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name, content in {**one.files, one.name: one.recipe}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def _shown(one: Input, loaded: Loaded) -> Iterator[str]:
    """Yields the output of the commands that read recipes."""
    checked = Checked(one.name, 1 if loaded.report.errors else 0, loaded.report, "")
    for name in FORMATS:
        yield import_module(f"meshctl.view.reports.{name}").draw(Findings((checked,)))
    for with_origins in (False, True):
        yield "".join(config.printed(loaded, with_origins, format) for format in ("text", "json"))
    if not loaded.report.errors and loaded.readable:
        plan = resolve(loaded.recipe, loaded.endpoints)
        plan.to_json()
        drawn = topology(plan)
        yield from (draw_in(picture.whole, drawn) for picture in PICTURES.values())
        yield from _parts(plan, drawn)
    if not one.word:
        return
    words = ["meshctl", "validate", one.name, one.word]
    yield from answer("zsh", words, {})
    line = " ".join(words)
    point = str(len(line.encode("utf-8", "surrogateescape")))
    yield from answer("bash", [], {"COMP_LINE": line, "COMP_POINT": point})


def _parts(plan: Plan, drawn: Topology) -> Iterator[str]:
    """Yields pictures of parts of a plan, and of the difference to the same plan."""
    parts = [Selection(node=0)]
    parts += [Selection(rank=(group.name, 0)) for group in plan.groups[:1]]
    parts += [Selection(component=component.name) for component in plan.components[:1]]
    for picture in PICTURES.values():
        if picture.difference:
            yield draw_in(picture.difference, difference(drawn, drawn))
        for part in parts:
            if picture.zoom:
                yield draw_in(picture.zoom, select(plan, drawn, part), drawn)
            elif picture.selects:
                yield draw_in(picture.whole, drawn, part)


def _check_spans(loaded: Loaded) -> None:
    lines = dict(loaded.report.sources)
    for found in loaded.report.diagnostics:
        for span in filter(None, (found.primary, *found.seconds)):
            if span.file in lines and not (
                1 <= span.line <= max(1, len(lines[span.file])) and span.column >= 1 and span.width >= 0
            ):
                raise Found(f"{found.code} points at {span}, which is not there")


@contextmanager
def _limited() -> Iterator[None]:
    def too_long(signum: int, frame: FrameType | None) -> NoReturn:
        raise Found(f"it took more than {LIMIT_S} seconds of the processor")

    before = signal.signal(signal.SIGPROF, too_long)
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def warm(folder: Path) -> None:
    """Imports the modules that are imported on use, before the audit begins."""
    os.chdir(folder)
    typer.main.get_command = cache(typer.main.get_command)  # a third of the time of a completion
    inputs = (CORRECT, Input(b"a: 1\n"), Input(corpus()[0], ("seed=1", "+x@vars=y"), word="run."))
    pictures = {name for one in PICTURES.values() for name in (one.whole, one.zoom, one.difference) if name}
    for name in (
        *(f"reports.{name}" for name in FORMATS),
        *(f"pictures.{name}" for name in sorted(pictures)),
    ):
        import_module(f"meshctl.view.{name}")
    for one in inputs:
        with suppress(Found):
            check(one, folder)
    assert not check(CORRECT, folder).report.errors


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    place, chance, recipes, start = Path.cwd(), random.Random(options.seed), corpus(), time.monotonic()
    sys.addaudithook(WATCH)
    with tempfile.TemporaryDirectory() as folder:
        warm(Path(folder))
        for number in range(1, options.inputs + 1):
            made = mutated(recipes, chance)
            try:
                check(made, Path(folder))
            except Found as found:
                rest = f"# {replace(made, recipe=b'')!r}\n".encode(errors="replace")
                (place / "fuzz-found.yaml").write_bytes(rest + made.recipe)
                sys.exit(f"{found}; the input is in fuzz-found.yaml")
            if number % 10_000 == 0 or number == options.inputs:
                print(f"{number} inputs, {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
