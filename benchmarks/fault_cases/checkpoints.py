"""Damaged checkpoints at a resume, and a stale worker of an earlier attempt."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.fault_cases.case import Case, Measured, Place, error_line
from benchmarks.fault_cases.disks import ended


def resumed(place: Place, damage: Callable[[Path], None], *texts: str, step: int = 10) -> Measured:
    """Damages the newer checkpoint, of step 20, and resumes: from `step`, with one warning that contains
    `texts`."""
    run = place.launch("run.steps=20")
    if run.end():
        return Measured(error_line(run.output), False)
    damage(run.path / "checkpoints")
    again = place.launch("run.steps=30", recipe=str(run.path))
    code = again.end()
    warnings = [
        event["value"]["text"] for event in again.events("warning") if "damaged" in str(event["value"])
    ]
    [begun] = [event["step"] for event in again.events("resumed")]
    ok = code == 0 and begun == step and again.rows == list(range(1, 31))
    ok = ok and len(warnings) == (1 if texts else 0) and all(text in warnings[0] for text in texts)
    return Measured(f"exit {code}, from step {begun}: {' / '.join(warnings) or 'no warning'}", ok)


def corrupt(checkpoints: Path) -> None:
    file = checkpoints / "step-20" / "learner" / "__0_0.distcp"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def cut(checkpoints: Path) -> None:
    file = checkpoints / "step-20" / "learner" / "__0_0.distcp"
    os.truncate(file, file.stat().st_size // 2)


def lose(checkpoints: Path, name: str) -> None:
    (checkpoints / "step-20" / name).unlink()


def point(checkpoints: Path, target: str) -> None:
    (checkpoints / "latest").unlink()
    (checkpoints / "latest").symlink_to(target)


def none_whole(place: Place) -> Measured:
    run = place.launch("run.steps=20")
    run.end()
    for manifest in (run.path / "checkpoints").glob("step-*/learner/__0_0.distcp"):
        manifest.unlink()
    before = len(run.events("launched", "started"))
    again = place.launch("run.steps=30", recipe=str(run.path))
    code, line = again.end(), error_line(again.output)
    ok = code == 4 and len(again.events("launched", "started")) == before and "__0_0.distcp" in again.output
    return Measured(f"exit {code}: {line}", ok)


STALE = """
import json, os, sys
environ = json.load(open("environ.json"))
os.environ.clear()
os.environ.update(environ)
from meshctl.runtime.worker import main
sys.exit(main(environ))
"""


def stale_worker(place: Place) -> Measured:
    """A worker of the first attempt starts while the second one runs, with everything that it knew."""
    source = place.folder / "parts.py"
    source.write_text(
        source.read_text() + "import json\n"
        "if os.environ['MESHCTL_ATTEMPT'] == '0' and os.environ['RANK'] == '1':\n"
        "    json.dump(dict(os.environ), open('environ.json', 'w'))\n"
    )
    run = place.launch("+run.restarts=3", "run.steps=400")
    run.wait_for_step(12)
    run.kill("two:0")
    run.until(lambda: bool(run.events("resumed")), "the second attempt")
    with (place.folder / "stale").open("wb") as out:
        stale = subprocess.Popen([sys.executable, "-c", STALE], cwd=place.folder, stdout=out, stderr=out)
    code = run.end()
    is_over = ended(stale, 15.0)
    stale.kill()
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    is_whole = [row["step"] for row in rows] == list(range(1, 401))
    text = f"exit {code}, {len(rows)} rows; the stale worker ended with {stale.wait()}"
    return Measured(text, code == 0 and is_whole and is_over and stale.returncode != 0)


FALL_BACK = "the run resumes from step 10, with one warning that names file and both steps"
FILE = "__0_0.distcp"
CASES = [
    Case(
        22,
        "a byte of a checkpoint is wrong",
        FALL_BACK,
        lambda place: resumed(place, corrupt, FILE, "20", "10"),
    ),
    Case(22, "a file of it is cut", FALL_BACK, lambda place: resumed(place, cut, FILE, "20", "10")),
    Case(
        22,
        "a rank's file is missing",
        FALL_BACK,
        lambda place: resumed(place, partial(lose, name=f"learner/{FILE}"), FILE, "20", "10"),
    ),
    Case(
        22,
        "`latest` dangles",
        "the run resumes from step 20",
        lambda place: resumed(place, partial(point, target="step-7"), step=20),
    ),
    Case(
        22,
        "`latest` is foreign",
        "the run resumes from step 20",
        lambda place: resumed(place, partial(point, target="/etc"), step=20),
    ),
    Case(22, "none is whole", "exit 4 with the file, no worker is started", none_whole),
    Case(23, "it connects to the run", "it is turned away; every sample counts once", stale_worker),
]
