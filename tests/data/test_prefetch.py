"""Worker processes: results in order and ahead of their use, failures in place, and no process that outlives its
parent."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count

import pytest

from meshctl.data.errors import DataError
from meshctl.data.prefetch import Prefetch, results
from tests.hang import HANG_S
from tests.paths import ROOT

pytestmark = pytest.mark.slow


def squares(numbers: range) -> list[int]:
    if 13 in numbers:
        raise DataError("13 is a bad number")
    return [number**2 for number in numbers]


def process_of(numbers: range) -> int:
    return os.getpid()


def killed(numbers: range) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def endless() -> Iterator[range]:
    return (range(start, start + 2) for start in count(0, 2))


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_results_come_in_order_until_one_fails(workers: int) -> None:
    made = results(squares, endless(), workers)
    assert [next(made) for _ in range(6)] == [[n**2, (n + 1) ** 2] for n in range(0, 12, 2)]
    with pytest.raises(DataError, match=r"^13 is a bad number$"):
        next(made)


def test_a_regular_call_is_computed_elsewhere_and_another_one_here() -> None:
    prefetch = Prefetch(process_of, workers=2)
    pids = [prefetch(range(start, start + 2)) for start in (0, 4, 8, 12)]
    here = os.getpid()
    assert [pid == here for pid in pids] == [True, False, False, False] and len(set(pids)) == 3
    assert prefetch(range(14, 15)) == here
    assert [prefetch(range(start, start + 2)) == here for start in (0, 4)] == [True, False]
    prefetch.close()


def test_a_process_that_is_killed_is_named() -> None:
    with pytest.raises(
        DataError, match=r"^a process that prepares samples was killed, .*: DataLoader worker"
    ):
        next(results(killed, endless(), workers=1))


PARENT = """
import os, sys
from tests.data.test_prefetch import endless, process_of
from meshctl.data.prefetch import results
made = results(process_of, endless(), workers=2)
print(next(made), next(made), flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals the death of a parent")
def test_no_process_outlives_its_parent() -> None:
    command = [sys.executable, "-c", PARENT]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as parent:  # type: ignore[call-overload]
        ends = [os.pidfd_open(int(pid)) for pid in parent.stdout.readline().split()]
        parent.kill()
        for end in ends:
            assert select.select([end], [], [], HANG_S)[0], (
                "the end of a process makes its descriptor readable"
            )
            os.close(end)
