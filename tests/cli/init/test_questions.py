"""`meshctl init`: its questions, on a terminal and without one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from meshctl.cli import init as command
from meshctl.recipe.templates import KINDS, RECIPES, Choice
from tests.cli.commands import MAIN
from tests.cli.init.conftest import names
from tests.cli.terminal import Terminal


def answered(
    *answers: str, name: str = "", has: command.Machine = ("cpu", 0), force: bool = False
) -> tuple[Choice, str]:
    given = iter(answers)
    found = command.questions(name, has, force, lambda prompt: next(given))
    assert next(given, None) is None
    return found


@pytest.mark.parametrize(
    ("answers", "given", "expected"),
    [
        ([""] * 5, {}, (Choice("train", "cpu", 2, "fsdp"), "train")),
        ([""] * 4, {"name": "x", "has": ("cuda", 8)}, (Choice("train", "cuda", 8, "fsdp"), "x")),
        (["2", "cuda", "16", "HSDP", "first"], {}, (Choice("grpo", "cuda", 16, "hsdp"), "first")),
        (["distill", "1", "2", "jobs/d"], {}, (Choice("distill", "cpu", 2), "jobs/d")),
        (["script", "mine.py", "2", "8", "s"], {}, (Choice("script", "cuda", 8, "", "mine.py"), "s")),
        (["1", "mps", "m"], {}, (Choice("train", "mps", 1), "m")),
        (["script", "", "cpu", "2", ""], {"force": True}, (Choice("script", "cpu", 2), "script")),
    ],
)
def test_answers_are_numbers_or_words_and_enter_accepts_the_default(
    answers: list[str], given: dict[str, object], expected: tuple[Choice, str], here: Path
) -> None:
    for there in ("mine.py", "script.yaml"):
        (here / there).touch()
    assert answered(*answers, **given) == expected  # type: ignore[arg-type]


def test_a_wrong_answer_is_asked_again(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for there in ("mine.py", "script.yaml"):
        (here / there).touch()
    answers = ("19", "what", "grpo", "cpu", "1", "many", "2", "a b", "fine")
    assert answered(*answers) == (Choice("grpo", "cpu", 2), "fine")
    output = capsys.readouterr().out
    assert output.count(f"  a number from 1 to 12, or a word: {', '.join(KINDS)}\n") == 2
    assert "on cpu it needs at least 2 ranks" in output and "  an integer\n" in output
    assert "is not a valid name of a run" in output
    answers = ("script", "mien.py", "mine.py", "cpu", "2", "", "other")
    assert answered(*answers) == (Choice("script", "cpu", 2, "", "mine.py"), "other")
    output = capsys.readouterr().out
    assert "  script `mien.py` does not exist\n" in output and "  `script.yaml` already exists\n" in output


def test_questions_fit_a_terminal(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind in KINDS:
        for has in (("cpu", 0), ("cuda", 8)):
            ranks = "100" if kind in RECIPES else "100000"
            own = ["", "", ranks, ""] if kind == "script" else ["", ranks, "", ""]
            answered(kind, *own, has=has)
    output = capsys.readouterr().out
    assert "processes; this machine has no accelerator\n" in output
    assert max(map(len, output.splitlines())) < 80


def test_on_a_terminal_it_asks(here: Path) -> None:
    terminal = Terminal(here, "init")
    for answer in ("3", "cpu", "2", "jobs/mine"):
        terminal.wait_for("]: ")
        terminal.type(f"{answer}\r")
    assert terminal.end() == 0 and "meshctl launch jobs/mine.yaml" in terminal.shown
    assert names(here) == {"jobs/mine.yaml", "jobs/mine.py"}
    terminal = Terminal(here, "init", "first", "--kind", "grpo")
    assert terminal.end() == 0 and "?" not in terminal.shown
    assert names(here) == {"jobs/mine.yaml", "jobs/mine.py", "first.yaml", "first.py"}


@pytest.mark.parametrize(
    ("key", "code", "word"), [("\x03", 130, "nothing was written"), ("\x04", 2, "no answer was given")]
)
def test_ctrl_c_and_the_end_of_input_write_nothing(key: str, code: int, word: str, here: Path) -> None:
    terminal = Terminal(here, "init")
    for keys in ("grpo\r", key):
        terminal.wait_for("]: ")
        terminal.type(keys)
    assert terminal.end() == code and word in terminal.shown and "Traceback" not in terminal.shown
    assert names(here) == set()


@pytest.mark.parametrize("stdin", ["</dev/null", "<&-"])
def test_without_a_terminal_it_asks_nothing(stdin: str, here: Path) -> None:
    line = ["sh", "-c", f'"$@" {stdin}', "-", sys.executable, "-c", MAIN, "init"]
    done = subprocess.run(line, cwd=here, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and names(here) == {"train.yaml", "train.py"}
