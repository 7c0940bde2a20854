"""The logs of real runs: complete at any rate and after kills, on a full disk, and within their bound."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from processes import Launch, Launched, plan_of, wait

from meshctl.plan.model import Plan, Program
from tests.log_text import output_of

PRINTS = """
import os, sys, time
rank, count, rate = int(os.environ["RANK"]), int(sys.argv[1]), float(sys.argv[2])
began, number = time.monotonic(), 0
while number < count:
    due = min(count, int(rate * (time.monotonic() - began)) + 1)
    for number in range(number, due):
        print(f"{rank} {number} " + "x" * 50)
    number = due
    sys.stdout.flush()
    time.sleep(0.001)
"""


def prints(folder: Path, count: int, rate: float = 1e9, more: str = "", **run_keys: object) -> Plan:
    """Returns a plan with two workers that print numbered lines, `rate` a second each, and then run the code
    `more`."""
    (folder / "script.py").write_text(PRINTS + more)
    return plan_of(folder, ("say", Program(("script.py", str(count), str(rate)))), **run_keys)


def lines(rank: int, count: int) -> str:
    return "".join(f"{rank} {number} {'x' * 50}\n" for number in range(count))


def log(run: Launched, rank: int) -> Path:
    return run.run.log("say", rank)


def test_the_last_lines_of_a_worker_that_is_killed_are_in_its_log_and_in_the_error(
    launch: Launch, tmp_path: Path
) -> None:
    dies = "import faulthandler, signal\nif rank == 1: os.kill(os.getpid(), signal.SIGSEGV)\ntime.sleep(60)\n"
    run = launch(prints(tmp_path, 3000, more=dies.replace("signal\n", "signal; faulthandler.enable()\n", 1)))
    assert run.end() == 5
    assert "error: say:1 failed: killed by SIGSEGV\nFatal Python error: Segmentation fault" in run.output()
    assert output_of(log(run, 1)).startswith(lines(1, 3000) + "Fatal Python error")


@pytest.mark.slow
def test_a_bounded_log_has_the_newest_lines(launch: Launch, tmp_path: Path) -> None:
    run = launch(prints(tmp_path, 20_000, log_keep=1_000_000))
    assert run.end() == 0, run.output()
    for rank in range(2):
        path = log(run, rank)
        newest = output_of(path).partition("====\n")[2]
        assert newest and lines(rank, 20_000).endswith(newest)
        assert "lines before it were dropped (run.logs)" in path.read_text()
        assert {file.name for file in path.parent.glob(f"{rank}.*")} == {f"{rank}.log", f"{rank}.log.1"}
        assert all(file.stat().st_size <= 500_000 for file in path.parent.glob(f"{rank}.*"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "runs"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(mount, stderr=subprocess.DEVNULL).returncode:
        pytest.skip("file systems cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.slow
def test_a_full_disk_fails_no_worker_that_prints(launch: Launch, tmp_path: Path, small_disk: Path) -> None:
    """The workers fill the disk, and print until their logs state that something is missing."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(1 << 19))
    more = f"""
open({str(tmp_path)!r} + f"/full-{{rank}}", "w").close()
while "missing here" not in open({str(small_disk)!r} + f"/log-{{rank}}", errors="replace").read():
    print("more", flush=True)
    time.sleep(0.01)
print("last")
"""
    plan = prints(tmp_path, 20_000, more=more)
    run = launch(plan)
    for rank in range(2):
        (small_disk / f"log-{rank}").symlink_to(log(run, rank))
    wait(lambda: all((tmp_path / f"full-{rank}").exists() for rank in range(2)), "a full disk")
    assert os.statvfs(small_disk).f_bavail == 0
    ballast.unlink()
    assert run.end() == 0, run.output()
    texts = [output_of(log(run, rank)).partition("==== meshctl: ") for rank in range(2)]
    assert any(begin for begin, *_ in texts)  # one worker may have filled the disk alone
    for rank, (begin, note, end) in enumerate(texts):
        whole, *_ = begin.rsplit("\n", 2)  # the disk may have become full inside a line or its time
        assert lines(rank, 20_000).startswith(whole)
        assert "bytes are missing here: No space left on device" in note + end and end.endswith("last\n")


@pytest.mark.nightly
def test_100_000_lines_a_second_of_8_workers_are_complete(launch: Launch, tmp_path: Path) -> None:
    plan = prints(tmp_path, 125_000, rate=12_500.0)
    plan = replace(plan, groups=(replace(plan.groups[0], workers=8),))
    run = launch(plan)
    assert run.end() == 0, run.output()
    for rank in range(8):
        assert output_of(log(run, rank)) == lines(rank, 125_000)
