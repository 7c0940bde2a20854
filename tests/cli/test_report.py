"""`meshctl report`, as a user calls it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.commands import meshctl
from tests.contract.launches import old_runs
from tests.contract.pinned import DATA

OLD = old_runs()[0]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a run of an earlier version, in the folder of runs."""
    shutil.copytree(DATA / "runs" / OLD, tmp_path / "runs" / "contract" / OLD, symlinks=True)
    return tmp_path


def test_the_page_is_in_the_run_directory_or_where_it_is_wanted(place: Path) -> None:
    done = meshctl(place, "report")
    page = place / "runs" / "contract" / OLD / "report.html"
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{page}\n", "")
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>") and "train:0 failed in stage metrics, step 5" in text
    assert meshctl(place, "report", "contract", "-o", "it.html").stdout == "it.html\n"
    shown = text.partition("<footer>")[0]
    assert (place / "it.html").read_text(encoding="utf-8").startswith(shown)
    assert meshctl(place, "report", "-o", "-").stdout.startswith(shown)


def test_two_runs(place: Path) -> None:
    other = place / "runs" / "contract" / "other"
    shutil.copytree(place / "runs" / "contract" / OLD, other, symlinks=True)
    recipe = other / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("name: contract", "name: another"))
    done = meshctl(place, "report", f"contract/{OLD}", "contract/other")
    file = f"report-contract-{OLD}-and-contract-other.html"
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{file}\n", "")
    assert "<ins>+ name: another\n</ins>" in (place / file).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["contrat"], 3, "the run `contrat` does not exist below runs: did you mean `contract`?"),
        (["contract", "contrat"], 3, "the run `contrat` does not exist below runs"),
        (["contract", "contract", "contract"], 2, "a report shows one run or two, not 3"),
        (["-o", "runs"], 2, "`runs` cannot be written: it is a folder"),
        (["-o", "none.yaml/x.html"], 2, "`none.yaml/x.html` cannot be written: its folder is a file"),
    ],
)
def test_errors_are_one_line(words: list[str], code: int, message: str, place: Path) -> None:
    (place / "none.yaml").touch()
    done = meshctl(place, "report", *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(f"error: {message}") and done.stderr.count("\n") == 1


def test_damaged_files_of_a_run(place: Path) -> None:
    run = place / "runs" / "contract" / OLD
    (run / "recipe.yaml").write_text("name: [\ntoken: hf_abcdefghijklmnopqrstuvwxyz\n")
    (run / "metrics.jsonl").write_text('{"step":1,"time":\nnull\n{"step":2,"ti')
    (run / "events" / "train-0.jsonl").write_bytes(b'\xff\n{"name":"step"}\n{"name":"step","gro')
    done = meshctl(place, "report", "-o", "-")
    assert (done.returncode, done.stderr) == (0, "")
    assert "name: [" in done.stdout and "hf_abcdef" not in done.stdout
    (run / "plan.json").write_text("{}")
    done = meshctl(place, "report")
    assert done.returncode == 3 and done.stderr.startswith(f"error: {run / 'plan.json'} cannot be read")
