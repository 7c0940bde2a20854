"""The components of the runs that the benchmark `faults` breaks. A case copies this file beside its recipe.

The variable `FAULT` states who does what: `WHO PLACE ACT`, several of them separated by `;`. WHO is
GROUP:RANK or GROUP. PLACE is `import`, `setup`, `save`, `close`, a step, or `always`. ACT is the name of a
function of this file.
"""

import ctypes
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import torch

from meshctl import Batch, Component, endpoint

STEP_S = 0.01
LINES = 100_000


def hold():
    time.sleep(1000)


def loop():
    while True:
        pass


def boom():
    raise ValueError("boom")


def boom_soon():
    time.sleep(0.05)
    raise ValueError("too late")


def vanish():
    os._exit(0)


def leave():
    sys.exit(0)


def segfault():
    ctypes.string_at(0)


def abort():
    os.abort()


def allocate():
    kept = []
    while True:
        kept.append(torch.ones(1 << 22))


def reserve():
    """Reserves address space, and does not touch it."""
    kept = []
    while True:
        kept.append(torch.empty(1 << 28))


def stubborn():
    """Ignores SIGTERM and never returns."""
    import signal

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hold()


def skip():
    return "skip"


def slow():
    time.sleep(10 * STEP_S)


def wait():
    time.sleep(1.5)


def change_clock():
    real = time.time
    time.time = lambda: real() + 3600.0


def print_lines():
    """Prints many lines as fast as the log takes them."""
    text = "".join(f"line {number:06d} of a log that must be complete\n" for number in range(LINES))
    sys.stdout.write(text)
    sys.stdout.flush()


BYTES = (
    b"half a line"
    + b"\r  10 %\r 100 %\n"
    + bytes(range(256))
    + b"\n\xff\xfe\xc3(\n"
    + b"no newline at the end"
)


def print_bytes():
    os.write(1, BYTES)


def have_children():
    """Starts 16 grandchildren, as data loaders do, half of them in sessions of their own and without the
    worker's output."""
    from torch.utils.data import DataLoader

    loader = DataLoader(range(1_000_000), num_workers=4, batch_size=2)
    loader.kept = iter(loader)
    next(loader.kept)
    KEPT.append(loader)
    KEPT.append(multiprocessing.get_context("spawn").Manager())
    for own_session in (False, True) * 6:
        quiet = subprocess.DEVNULL if own_session else None
        subprocess.Popen(["sleep", "1000"], start_new_session=own_session, stdout=quiet, stderr=quiet)


KEPT = []


def misdeeds(place):
    """Returns the acts of this worker at a place, and leaves a file that shows that it has come there."""
    who = f"{os.environ['MESHCTL_GROUP']}:{os.environ['RANK']}"
    found = []
    for text in filter(None, os.environ.get("FAULT", "").split(";")):
        whom, where, act = text.split()
        if where == str(place) and whom in (who, who.partition(":")[0]):
            Path(os.environ["REACHED"], f"{who}-{place}").touch()
            found.append(globals()[act]())
    return found


class Source(Component):
    def setup(self):
        misdeeds("setup")

    @endpoint
    def next(self, samples: range) -> Batch:
        misdeeds(self.step)
        misdeeds("always")
        time.sleep(STEP_S)
        return Batch({"x": torch.tensor(samples, dtype=torch.float32)})

    def close(self):
        misdeeds("close")


class Learner(Component):
    def __init__(self, mebibytes: float = 0.001):
        self.total = torch.zeros(int(mebibytes * 2**18))

    def setup(self):
        misdeeds("setup")

    @endpoint(collect="mean")
    def update(self, batch: Batch) -> dict[str, float]:
        found = misdeeds(self.step) + misdeeds("always")
        if "skip" not in found:
            self.total += self.collective("dp").all_reduce(batch["x"].sum())
        return {"total": float(self.total[0])}

    def state_dict(self):
        misdeeds("save")
        return {"total": self.total}

    def load_state_dict(self, state):
        self.total = state["total"]

    def close(self):
        misdeeds("close")


if "RANK" in os.environ:
    misdeeds("import")
