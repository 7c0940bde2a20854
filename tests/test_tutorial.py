"""The pages with whole recipes are true: their recipes are correct, their pictures are those that are drawn, and
the commands of the tutorial print the shown output. The cells of the notebook run, and no outputs are stored."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from meshctl.recipe.load import load
from meshctl.view.reports.text import text
from tests.command_server import call
from tests.paths import ROOT

DOCS = ROOT / "docs"
NOTEBOOK = DOCS / "notebook.ipynb"
PICTURES = runpy.run_path(str(DOCS / "pictures.py"))
PAGES = {
    path.name: page
    for path in sorted(DOCS.glob("*.md"))
    if PICTURES["PICTURE"].search(page := path.read_text(encoding="utf-8"))
}
TUTORIAL = PAGES["tutorial.md"]
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
DIGEST = re.compile(r"plan [0-9a-f]{16}")
PATH = re.compile(r"/\S*/runs/")
TIMES = 1.5
"""The largest ratio between a shown metric and one that is measured on another machine."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", PAGES)
def test_each_recipe_is_correct(page: str, folder: Path) -> None:
    PICTURES["write_files"](PAGES[page], folder)
    recipes = sorted(folder.glob("*.yaml"))
    assert recipes
    for recipe in recipes:
        found = load(recipe.name, [], folder).report.diagnostics
        assert not [one for one in found if one.severity != "note"], recipe.name


@pytest.mark.parametrize("page", PAGES)
def test_each_picture_is_the_one_that_is_drawn(page: str, folder: Path) -> None:
    PICTURES["write_files"](PAGES[page], folder)
    for file, drawn in PICTURES["drawn"](PAGES[page], folder):
        shown = (DOCS / file).read_text(encoding="utf-8")
        assert DIGEST.sub("plan", shown) == DIGEST.sub("plan", drawn), "run: python docs/pictures.py"


def test_no_picture_is_left_over() -> None:
    named = {file for page in PAGES.values() for _, file in PICTURES["PICTURE"].findall(page)}
    assert {f"pictures/{path.name}" for path in (DOCS / "pictures").iterdir()} == named


def test_an_error_of_the_tutorial_is_printed(folder: Path) -> None:
    PICTURES["write_files"](TUTORIAL, folder)
    [(command, shown)] = [one for one in commands() if one[1] and one[1][0].startswith("error[")]
    _, _, recipe, *overrides = shlex.split(command)
    assert text(load(recipe, overrides, folder).report).splitlines()[: len(shown)] == shown


def test_its_own_class_is_short() -> None:
    [code] = [block for block, name in PICTURES["BLOCK"].findall(TUTORIAL) if name == "examiner.py"]
    body = code[code.index("class ") :]
    assert 5 <= len([line for line in body.splitlines() if line.strip()]) <= 15


def commands() -> list[tuple[str, list[str]]]:
    """Returns the commands of the tutorial, in its order, each with the lines of its output."""
    found = []
    for block in re.findall(r"(?:^    .*\n)+", TUTORIAL, re.MULTILINE):
        lines = [line.removeprefix("    ") for line in block.splitlines()]
        if lines[0].startswith("$ "):
            found.append((lines[0].removeprefix("$ "), lines[1:]))
    return found


def form(line: str) -> str:
    """Returns a line without its numbers, folders and alignment."""
    return " ".join(NUMBER.sub("#", PATH.sub("/runs/", DIGEST.sub("plan", line))).split())


def run(folder: Path, command: str) -> list[str]:
    program, *words = shlex.split(command)
    if program == "meshctl":
        done = call(folder, *words)
    else:
        line = re.sub("^python ", f"{shlex.quote(sys.executable)} ", command)
        done = subprocess.run(line, shell=True, cwd=folder, capture_output=True, text=True)
    assert done.returncode == (1 if "error[" in done.stdout else 0), done.stdout + done.stderr
    return done.stdout.splitlines()


def assert_near(shown: str, printed: str) -> None:
    """Compares the first and the last value of a metric: `metrics.loss  5.8 -> 0.001282`."""
    for ours, theirs in zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True):
        assert float(ours) == pytest.approx(float(theirs), rel=TIMES - 1, abs=0.02), (shown, printed)


@pytest.mark.slow_suite
def test_each_command_prints_the_shown_output(folder: Path) -> None:
    pytest.importorskip("transformers")
    PICTURES["write_files"](TUTORIAL, folder)
    for command, shown in commands():
        printed = run(folder, command)
        for line in shown:
            if line == "...":
                continue
            same = [index for index, one in enumerate(printed) if form(one) == form(line)]
            assert same, (command, line, printed)
            if " -> " in line and "." in line.split()[0]:
                assert_near(line, printed[same[0]])
            del printed[: same[0] + 1]


@pytest.mark.slow
def test_the_cells_of_the_notebook_run(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    cells = [
        cell
        for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]
    assert len(cells) >= 4 and all(
        cell["outputs"] == [] and cell["execution_count"] is None for cell in cells
    )
    program = "\n".join("".join(cell["source"]) for cell in cells)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
