"""Reads one input as the commands do, and checks all conditions."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
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
from tests.recipe.fuzzing.inputs import CODE, CORRECT, Input, corpus

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
    yield config.composed(loaded) + config.composed_json(loaded)
    yield config.origins_text(loaded) + config.origins_json(loaded)
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
