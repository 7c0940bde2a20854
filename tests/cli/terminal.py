"""A command of meshctl with a pseudo-terminal as its controlling terminal."""

from __future__ import annotations

import os
import select
import time
from pathlib import Path

from tests.command_server import server
from tests.hang import HANG_S

OPENS = """
import os, sys
terminal = os.open({name!r}, os.O_RDWR)
for number in range(3):
    os.dup2(terminal, number)
os.close(terminal)
sys.stdout = os.fdopen(1, "w", closefd=False)
sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
"""
"""The terminal that the leader of a session opens first controls it."""


class Terminal:
    def __init__(self, folder: Path, *words: str) -> None:
        self._master, self._slave = os.openpty()
        program, null = OPENS.format(name=os.ttyname(self._slave)), Path(os.devnull)
        self.pid = server().start(folder, *words, env=os.environ, files=[null, null], program=program)
        self.shown = ""
        self._waited = 0

    def wait_for(self, text: str) -> None:
        """Reads until a text appears, after the one of the previous call."""
        while (found := self.shown.find(text, self._waited)) < 0:
            self._read()
        self._waited = found + len(text)

    def wait_until_shown(self, text: str) -> None:
        """Reads until a text has appeared, before or after the one of the previous call."""
        while text not in self.shown:
            self._read()

    def type(self, line: str, reader: int = 0) -> None:
        """Types once a process, by default the command, waits for input: readline misses a signal between its
        prompt and that."""
        while Path(f"/proc/{reader or self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
            time.sleep(0.01)
        os.write(self._master, line.encode())

    def _read(self) -> None:
        assert select.select([self._master], [], [], HANG_S)[0], self.shown
        self.shown += os.read(self._master, 4096).decode(errors="replace")

    def end(self) -> int:
        if not self.shown:
            self._read()  # the command has opened the terminal
        os.close(self._slave)
        try:
            while data := os.read(self._master, 4096):
                self.shown += data.decode(errors="replace")
        except OSError:  # the last process has closed it
            pass
        os.close(self._master)
        return server().wait(self.pid)
