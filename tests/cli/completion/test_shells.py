"""Completion in the shells themselves."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from meshctl.cli.app import app
from meshctl.cli.completion.sources import FOLDER, known_shells


@pytest.mark.parametrize("shell", known_shells())
def test_scripts_are_printed_and_right_to_their_shells(shell: str) -> None:
    done = CliRunner().invoke(app, ["completion", shell])
    assert (done.exit_code, done.stdout) == (0, (FOLDER / f"meshctl.{shell}").read_text())
    program = shutil.which(shell) or pytest.skip(f"{shell} is not here")
    assert subprocess.run([program, "-n", FOLDER / f"meshctl.{shell}"], capture_output=True).returncode == 0


def test_the_shell_may_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert "fish completes" in CliRunner().invoke(app, ["completion"]).stdout
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    done = CliRunner().invoke(app, ["completion"])
    error = "shell `tcsh` is not supported; available: `bash`, `fish` and `zsh`"
    assert (done.exit_code, done.stderr) == (2, f"error: {error}\n")


ARGV = {"bash": ["--norc", "--noprofile", "-i"], "zsh": ["-f", "-i"], "fish": ["--no-config", "-i"]}
BEGIN = {
    "bash": 'eval "$(meshctl completion bash)"',
    "zsh": 'autoload -Uz compinit; compinit -u -D; eval "$(meshctl completion zsh)"',
    "fish": "meshctl completion fish | source",
}
TYPED = (
    ("meshctl vali\tgr\t run.ste\t3", "validate grpo.yaml run.steps=3"),
    (
        "meshctl launch grpo.yaml layout@components.act\thsdp_\t",
        "launch grpo.yaml layout@components.actor.parallel=hsdp_tp",
    ),
    (
        "meshctl launch my\ta\tgroups.tr\tdev\tcu\t",
        "launch my runs/a recipe.yaml groups.train.device_type=cuda",
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize("shell", ARGV)
def test_in_a_real_shell(shell: str, place: Path) -> None:
    """Presses Tab in an interactive shell. A fake `meshctl` prints the arguments with which it is called."""
    program = shutil.which(shell) or pytest.skip(f"{shell} is not here")
    binary = place / "bin" / "meshctl"
    binary.parent.mkdir()
    answers = f'case "$1" in complete|completion) {sys.executable} -m meshctl "$@"; echo >> {place}/answers; exit;; esac'
    binary.write_text(f'#!{shutil.which("bash")}\n{answers}\necho "$@" >> {place}/calls\n')
    binary.chmod(0o755)
    lines, expected = zip(*TYPED, strict=True)
    assert in_terminal([program, *ARGV[shell]], BEGIN[shell], lines, place) == list(expected)


def in_terminal(argv: list[str], begin: str, lines: Sequence[str], place: Path) -> list[str]:
    """Returns the arguments of `meshctl` for each line. What follows a Tab is typed after `meshctl` has answered it,
    and a line after the command of the previous one has run. The shell reads all keys in their order."""
    env = {"PATH": f"{place}/bin:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(sys.path)}
    env |= {"TERM": "dumb", "HOME": f"{place}/bin", "LANG": "C.UTF-8"}
    child, terminal = pty.fork()
    if not child:
        os.execve(argv[0], argv, env)
    try:
        os.write(terminal, f"{begin}; echo rea''dy\n".encode())
        shown = [b""]
        read_until(terminal, shown, lambda: b"ready" in shown[0])
        for number, line in enumerate(lines, 1):
            for part in re.findall("[^\t]+\t?|\t", line):
                answered = len(lines_of(place / "answers"))
                os.write(terminal, part.encode())
                if part.endswith("\t"):
                    read_until(terminal, shown, lambda: len(lines_of(place / "answers")) > answered)  # noqa: B023
            os.write(terminal, b"\n")
            read_until(terminal, shown, lambda: len(lines_of(place / "calls")) >= number)  # noqa: B023
        return lines_of(place / "calls")
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(terminal)


def read_until(terminal: int, shown: list[bytes], is_done: Callable[[], bool]) -> None:
    """Reads what the shell shows, which else would block it. A shell that has ended raises `OSError`."""
    while not is_done():
        if select.select([terminal], [], [], 0.01)[0]:
            shown[0] += os.read(terminal, 1 << 16)


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
