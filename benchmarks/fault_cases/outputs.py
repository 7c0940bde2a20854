"""Cases of the output of workers, and of the readers of meshctl's own output."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import termios
import time

from benchmarks.fault_cases.case import Case, Measured, Place, error_line
from benchmarks.fault_cases.endings import read_until_step
from benchmarks.fault_cases.parts import BYTES, LINES
from meshctl.run.logs import without_stamps


def many_lines(place: Place) -> Measured:
    """Eight workers print 100,000 lines each in one step."""
    words = ["groups.one.ranks=4", "groups.two.ranks=4", "run.steps=8"]
    run = place.launch(*words, fault="one 5 print_lines;two 5 print_lines")
    code = run.end()
    logs = [run.path / "logs" / group / f"{rank}.log" for group in ("one", "two") for rank in range(4)]
    counts = [log.read_text().count(" of a log that must be complete\n") for log in logs]
    return Measured(f"exit {code}, {sum(counts)} lines of 8 ranks", code == 0 and counts == [LINES] * 8)


def any_bytes(place: Place) -> Measured:
    run = place.launch("run.steps=8", fault="two:1 5 print_bytes")
    code = run.end()
    log = (run.path / "logs" / "two" / "1.log").read_bytes().decode("latin-1")
    found = without_stamps(log).encode("latin-1").count(BYTES)
    return Measured(f"exit {code}, found {found} times in the log", code == 0 and found == 1)


def piped(place: Place, shell: str, code: int, *texts: str, fault: str = "") -> Measured:
    """Runs the command in a shell whose pipe closes early. The exit code of meshctl is that of the run."""
    script = f"{shell.replace('RUN', chr(34) + '$@' + chr(34))}"
    run = place.launch("run.steps=30", fault=fault, before=["bash", "-c", script, "piped"])
    run.end()
    found, output = int((place.folder / "code").read_text()), run.output
    ok = found == code and all(text in output for text in texts)
    if not fault:
        ok = ok and run.rows == list(range(1, 31))
    return Measured(f"exit {found}: {error_line(output)}", ok)


def in_terminal(place: Place, name: str, *, is_resized: bool) -> Measured:
    terminal, theirs = pty.openpty()
    run = place.launch(
        "run.steps=150", env={"TERM": name, "COLUMNS": None}, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    shown = read_until_step(run, terminal, 5)
    for columns in (40, 200, 20, 80) if is_resized else ():
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        run.process.send_signal(signal.SIGWINCH)
        time.sleep(0.1)
    while run.process.poll() is None:
        shown += drained(terminal)
        time.sleep(0.02)
    code = run.end()
    os.close(terminal)
    has_escapes = b"\x1b[" in shown
    ok = code == 0 and len(run.rows) == 150 and (name != "dumb" or not has_escapes)
    return Measured(f"exit {code}, {len(run.rows)} steps, {'with' if has_escapes else 'no'} escapes", ok)


def drained(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:
        return b""


def without_streams(place: Place) -> Measured:
    """stdin, stdout and stderr are closed."""
    script = '"$@" <&- >&- 2>&-; echo $? > code'
    run = place.launch("run.steps=8", before=["bash", "-c", script, "closed"])
    run.end()
    code = int((place.folder / "code").read_text())
    return Measured(f"exit {code}, {len(run.rows)} steps", code == 0 and len(run.rows) == 8)


HEAD = "{ RUN; echo $? > code; } | head -n 3"
CASES = [
    Case(18, "8 ranks print 100,000 lines each at once", "no line is lost", many_lines),
    Case(19, "carriage returns, invalid UTF-8, no newline", "no byte is lost", any_bytes),
    Case(20, "`| head -n 3`", "the run goes on, exit 0", lambda place: piped(place, HEAD, 0)),
    Case(
        20,
        "`| head -n 1`, and a worker raises",
        "exit 5, the cause is shown",
        lambda place: piped(place, HEAD.replace("3", "1"), 5, "two:1 failed", "boom", fault="two:1 20 boom"),
    ),
    Case(20, "stdin, stdout and stderr are closed", "exit 0", without_streams),
    Case(
        20,
        "`TERM=dumb`",
        "exit 0, no escape sequences",
        lambda place: in_terminal(place, "dumb", is_resized=False),
    ),
    Case(
        20,
        "the terminal is resized",
        "exit 0",
        lambda place: in_terminal(place, "xterm-256color", is_resized=True),
    ),
]
