"""Fuzzes the reading of recipes: whatever the bytes and the overrides, it ends in a report and does nothing
else.

    python -m tests.recipe.fuzzing --inputs 100000            mutates the golden recipes, from one seed
    python -m tests.recipe.fuzzing --engine atheris           guided by coverage, if atheris is installed

For every input it checks that nothing is raised, that reading ends soon, that it starts no process, opens no
socket, imports nothing and writes no file, that the spans of its report are in the text, and that a recipe
without errors has a plan. The first input that breaks one of these is written to `fuzz-found.yaml`, with its
overrides in the first line.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import NoReturn

from meshctl.plan.resolve import resolve
from meshctl.recipe.load import Loaded, load
from meshctl.view.reports import FORMATS
from meshctl.view.reports.text import text

GOLDEN = Path(__file__).parent / "golden"
LIMIT_S = 10
"""Maximum time in seconds to read one input."""
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
OVERRIDES = (
    *("+", "++", "~", "=", "[", "]", "{", "}", ",", "'", '"', "\\", "range(1,3)", "choice(1,2)"),
    *("a.b", "0", "null", "${seed}", " ", "()", "@", ":"),
)
WATCHED = (
    *("subprocess.Popen", "os.system", "os.exec", "os.fork", "os.posix_spawn", "socket.connect"),
    *("socket.bind", "shutil.rmtree", "os.remove"),
)


class Found(Exception):
    """An input that breaks a promise."""


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
    """Returns whether a module belongs to what reads recipes; omegaconf imports `attr`, and Hydra `packaging`."""
    first = name.split(".")[0]
    return (
        first in ("meshctl", "hydra", "omegaconf", "antlr4", "yaml", "attr", "packaging")
        or first in sys.stdlib_module_names
    )


WATCH = Watch()


def check(recipe: bytes, overrides: list[str], folder: Path) -> Loaded:
    """Reads a recipe and checks everything that must be true. Raises `Found`."""
    (folder / "recipe.yaml").write_bytes(recipe)
    with _limited(), WATCH.watching():
        try:
            loaded = load(
                "recipe.yaml", overrides, folder, environ={"HOME": "secret-home"}, detect=lambda: "cpu"
            )
            drawn = text(loaded.report)
            if not loaded.report.errors and loaded.readable:
                resolve(loaded.recipe, loaded.endpoints).to_json()
        except Found:
            raise
        except BaseException as error:
            raise Found(f"{type(error).__name__}: {error}") from error
    if "\x1b" in drawn or "\x00" in drawn:
        raise Found("the report drives the terminal")
    if "secret-home" in drawn:
        raise Found("the report tells what is in the environment")
    _check_spans(loaded)
    return loaded


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
        raise Found(f"it took more than {LIMIT_S} seconds")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def corpus() -> list[bytes]:
    return [path.read_bytes() for path in sorted(GOLDEN.glob("*.yaml"))]


def mutated(recipes: list[bytes], chance: random.Random) -> tuple[bytes, list[str]]:
    """Returns a recipe with a few pieces changed, and sometimes overrides."""
    recipe = bytearray(chance.choice(recipes))
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
                recipe[at : at + chance.randrange(4)] = chance.choice(PIECES).encode() * chance.choice(
                    (1, 1, 1, 2, 100)
                )
            case _:
                recipe[at:at] = chance.choice(PIECES).encode()
    return bytes(recipe), [_override(chance) for _ in range(chance.choice((0, 0, 0, 1, 2)))]


def _override(chance: random.Random) -> str:
    pieces = (*OVERRIDES, *PIECES, *KEYS)
    made = f"{chance.choice(('', '', '+', '++', '~'))}{chance.choice(KEYS)}={chance.choice(pieces)}"
    for _ in range(chance.choice((0, 0, 1, 3))):
        at = chance.randrange(len(made) + 1)
        made = made[:at] + chance.choice(pieces) + made[at + chance.randrange(3) :]
    return made.replace("\x00", "")


def warm(folder: Path) -> None:
    """Imports what is imported on use, before anything is watched."""
    for recipe in (b"a: 1\n", corpus()[0]):
        check(recipe, ["seed=1", "+x@vars=y"], folder)
    for name in FORMATS:
        import_module(f"meshctl.view.reports.{name}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", choices=("mutations", "atheris"), default="mutations")
    options = parser.parse_args()
    sys.addaudithook(WATCH)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        warm(folder)
        if options.engine == "atheris":
            return guided(folder, options.inputs)
        chance, recipes, start = random.Random(options.seed), corpus(), time.monotonic()
        for number in range(1, options.inputs + 1):
            try_input(*mutated(recipes, chance), folder)
            if number % 10_000 == 0 or number == options.inputs:
                print(f"{number} inputs, {time.monotonic() - start:.0f} s", flush=True)


def try_input(recipe: bytes, overrides: list[str], folder: Path) -> None:
    try:
        check(recipe, overrides, folder)
    except Found as found:
        Path("fuzz-found.yaml").write_bytes(f"# overrides: {overrides!r}\n".encode(errors="replace") + recipe)
        sys.exit(f"{found}; the input is in fuzz-found.yaml")


def guided(folder: Path, inputs: int) -> None:
    """Runs libFuzzer through atheris; an input is a recipe and its overrides, separated by NUL."""
    import atheris

    atheris.instrument_all()

    def one(data: bytes) -> None:
        recipe, *overrides = data.split(b"\x00")
        try_input(recipe, [override.decode(errors="replace") for override in overrides[:3]], folder)

    seeds = folder / "seeds"
    seeds.mkdir()
    for number, recipe in enumerate(corpus()):
        (seeds / str(number)).write_bytes(recipe)
    atheris.Setup([sys.argv[0], f"-runs={inputs}", "-max_len=8192", str(seeds)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
