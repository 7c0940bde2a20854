"""`meshctl init`: its questions, on a terminal and without one."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from meshctl.cli import init as command
from meshctl.recipe.templates import (
    KINDS,
    RECIPES,
    Choice,
)
from tests.cli.commands import MAIN
from tests.cli.init.initialized import names
from tests.hang import HANG_S

# Questions


def answered(
    *answers: str, name: str = "", has: command.Machine = ("cpu", 0), force: bool = False
) -> tuple[Choice, str]:
    given = iter(answers)

    def ask(prompt: str) -> str:
        try:
            return next(given)
        except StopIteration:
            raise EOFError from None

    found = command.questions(name, has, force, ask)
    assert next(given, None) is None
    return found


def test_enter_accepts_the_default(here: Path) -> None:
    assert answered("", "", "", "", "") == (Choice("train", "cpu", 2, "fsdp"), "train")
    assert answered("", "", "", "", name="x", has=("cuda", 8)) == (Choice("train", "cuda", 8, "fsdp"), "x")


def test_answers_are_numbers_or_words(here: Path) -> None:
    (here / "mine.py").touch()
    assert answered("2", "cuda", "16", "HSDP", "first") == (Choice("grpo", "cuda", 16, "hsdp"), "first")
    assert answered("distill", "1", "2", "jobs/d") == (Choice("distill", "cpu", 2), "jobs/d")
    assert answered("script", "mine.py", "2", "8", "s") == (Choice("script", "cuda", 8, "", "mine.py"), "s")
    assert answered("1", "mps", "m") == (Choice("train", "mps", 1), "m")


def test_a_wrong_answer_is_asked_again(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert answered("19", "what", "grpo", "cpu", "1", "many", "2", "a b", "fine") == (
        Choice("grpo", "cpu", 2),
        "fine",
    )
    output = capsys.readouterr().out
    assert (
        output.count(
            "  a number from 1 to 12, or a word: train, grpo, distill, script, sft, sft_lora, dpo, reward_model, grpo_hf, grpo_vllm, ppo, distill_on_policy\n"
        )
        == 2
    )
    assert (
        "on cpu it needs at least 2 ranks" in output
        and "  an integer\n" in output
        and "is not a valid name of a run" in output
    )


def test_missing_and_existing_files_are_reported_at_once(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "mine.py").touch()
    (here / "script.yaml").touch()
    assert answered("script", "mien.py", "mine.py", "cpu", "2", "", "other") == (
        Choice("script", "cpu", 2, "", "mine.py"),
        "other",
    )
    output = capsys.readouterr().out
    assert "  script `mien.py` does not exist\n" in output and "  `script.yaml` already exists\n" in output
    assert answered("script", "", "cpu", "2", "", force=True) == (Choice("script", "cpu", 2), "script")


def test_questions_fit_a_terminal(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind, has in ((kind, has) for kind in KINDS for has in (("cpu", 0), ("cuda", 8))):
        answered(
            kind,
            *([""] if kind == "script" else []),
            *["", "100" if kind in RECIPES else "100000"],
            *([""] if kind != "script" else []),
            "",
            has=has,
        )
    output = capsys.readouterr().out
    assert (
        "processes; this machine has no accelerator\n" in output and max(map(len, output.splitlines())) < 80
    )


class Terminal:
    """`meshctl init` in a pseudo-terminal."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._own, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", MAIN, "init", *words], cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            preexec_fn=take_terminal,
        )  # fmt: skip
        os.close(theirs)
        self.output = ""

    def until(self, text: str) -> Terminal:
        while text not in self.output:
            assert select.select([self._own], [], [], HANG_S)[0], self.output
            try:
                self.output += os.read(self._own, 4096).decode()
            except OSError:  # the other end has closed
                raise AssertionError(self.output) from None
        return self

    def type(self, text: str) -> None:
        """Types once the command waits for input: a Ctrl-C between its question and that would end nothing."""
        self.output = ""
        while Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
            time.sleep(0.001)
        os.write(self._own, text.encode())

    def end(self) -> int:
        try:
            while part := os.read(self._own, 4096):
                self.output += part.decode()
        except OSError:
            pass
        os.close(self._own)
        return self.process.wait()


def take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_on_a_terminal_it_asks(here: Path) -> None:
    terminal = Terminal(here)
    for answer in ("3", "cpu", "2", "jobs/mine"):
        terminal.until("]: ").type(f"{answer}\r")
    assert terminal.end() == 0, terminal.output
    assert "meshctl launch jobs/mine.yaml" in terminal.output
    assert names(here) == {"jobs/mine.yaml", "jobs/mine.py", "jobs/recipe.schema.json"}


@pytest.mark.parametrize("words", [("first", "--yes"), ("first", "--kind", "grpo")])
def test_a_stated_answer_is_not_asked_for(words: tuple[str, ...], here: Path) -> None:
    terminal = Terminal(here, *words)
    assert terminal.end() == 0 and "?" not in terminal.output
    assert names(here) == {"first.yaml", "first.py"}


@pytest.mark.parametrize(
    ("key", "code", "word"), [("\x03", 130, "nothing was written"), ("\x04", 2, "no answer was given")]
)
def test_ctrl_c_and_the_end_of_input_write_nothing(key: str, code: int, word: str, here: Path) -> None:
    terminal = Terminal(here)
    terminal.until("]: ").type("grpo\r")
    terminal.until("]: ").type(key)
    assert terminal.end() == code, terminal.output
    assert word in terminal.output and "Traceback" not in terminal.output
    assert names(here) == set()


def test_a_closed_standard_input_is_no_terminal(here: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", '"$@" <&-', "-", sys.executable, "-c", MAIN, "init"],
        cwd=here,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "") and names(here) == {"train.yaml", "train.py"}


def test_without_a_terminal_it_asks_nothing(here: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "init"], cwd=here, input="", capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stderr == "" and names(here) == {"train.yaml", "train.py"}
