"""Systems with a driver, next to which meshctl is measured: each is a script of its own, run by an
interpreter that has the system.

A script reads one JSON list a line and answers with one:

    ["open", producers, consumers, nbytes]    -> its forms, when the workers stand
    ["steps", form, count]              -> seconds of each step, as its driver sees them
    ["close"]                           -> []; the workers of the last "open" are gone

They get an environment of their own, because Twinkle needs an older numpy than constraints.txt pins; it needs
neither meshctl nor its constraints, which the environment may name. Ray alone fits beside meshctl: `pip
install -e '.[bench]'`, then `--peers` without a path.

    python3.11 -m venv .venv/peers
    env -u PIP_CONSTRAINT .venv/peers/bin/pip install torch ray twinkle-kit
    .venv/bin/python benchmarks/data_plane.py --peers .venv/peers/bin/python
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PEERS = {"Ray": "over_ray", "Twinkle": "over_twinkle"}
"""Name -> module."""
ENVIRON = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"}
"""Ray's workers are as nice as ours: left alone, they give way to whatever else runs."""


class PeerError(RuntimeError):
    """A peer that cannot be had, or that broke."""


class Peer:
    """One script in a process of its own, with a folder for what it leaves."""

    def __init__(self, name: str, python: str) -> None:
        self.forms: Sequence[str] = ()
        self._errors = TemporaryFile("w+", errors="replace")  # noqa: SIM115 it is closed with the peer
        self._folder = TemporaryDirectory(prefix="peer", ignore_cleanup_errors=True)
        environ = {**os.environ, **ENVIRON, "RAY_AUTH_TOKEN": token_hex(16), "RAY_TMPDIR": self._folder.name}
        command = [python, "-m", f"{__name__}.{PEERS[name]}"]
        try:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environ,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
            )
        except OSError as error:
            raise PeerError(str(error)) from None

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # the end of its input
        self._errors.close()
        self._folder.cleanup()

    def open(self, producers: int, consumers: int, nbytes: int) -> None:
        self.forms = self._ask("open", producers, consumers, nbytes)

    def steps(self, form: str, count: int) -> list[float]:
        seconds: list[float] = self._ask("steps", form, count)
        return seconds

    def close(self) -> None:
        self._ask("close")

    def _ask(self, *words: Any) -> Any:
        assert self._process.stdin and self._process.stdout
        try:
            self._process.stdin.write(json.dumps(words) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # what it said last says why
        line = self._process.stdout.readline()
        if not line:
            raise PeerError(self._last_words())
        return json.loads(line)

    def _last_words(self) -> str:
        self._process.wait()
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().splitlines() if line.strip()]
        return lines[-1] if lines else f"it ended with {self._process.returncode}"


def serve(system: Any) -> None:
    """The script's side: `system` has `forms`, `open`, `steps` and `close`. Whatever else is printed goes to
    stderr."""
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        verbs: dict[str, Callable[..., Any]] = {
            "open": system.open,
            "steps": system.steps,
            "close": system.close,
        }
        for line in sys.stdin:
            verb, *words = json.loads(line)
            answer = verbs[verb](*words)
            print(json.dumps(answer or []), file=out, flush=True)
