"""`rewards.Function`: which values a function gets, what it may return, and what happens if it fails."""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from meshctl import Batch, Ragged
from meshctl.rewards import Function, RewardError, component, processes
from tests.hang import HANG_S
from tests.paths import ROOT

MODULE = "tests.rewards.functions_of_users"
WORKERS = (0, 1)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample has so much time that only the tests of the time limit come to it."""
    monkeypatch.setattr(component, "TIMEOUT_S", HANG_S)


def stand_until(is_over: Callable[[], bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Stops the clock of the time limits until a condition is met, and advances it by 10 s then."""
    clock = SimpleNamespace(monotonic=lambda: 10.0 * is_over(), sleep=time.sleep)
    monkeypatch.setattr(processes, "time", clock)


class Logged(Function):
    """Collects its metrics."""

    def log(self, values: Mapping[str, float], weight: float = 1.0) -> None:
        self.metrics = {**getattr(self, "metrics", {}), **values}


@contextmanager
def judge(**args: Any) -> Iterator[Logged]:
    made = Logged(**args)
    made.setup()
    try:
        yield made
    finally:
        made.close()


def batch_of(*responses: str, **columns: Any) -> Batch:
    return Batch({"response": list(responses), **columns}).repeat(1)


@pytest.mark.parametrize("workers", WORKERS)
def test_the_parameters_name_the_columns(workers: int) -> None:
    given = batch_of("4", "5", solution=["4", "4"], other=[1, 2])
    with judge(function=f"{MODULE}.plain", workers=workers) as one:
        scored = one.score(given)
    assert scored["rewards"].tolist() == [1.0, 0.0] and scored["rewards"].dtype == torch.float32
    assert scored.names == (*given.names, "rewards") and scored.ids.tolist() == given.ids.tolist()
    assert one.metrics == {"reward": 0.5, "reward_std": 0.0, "failed": 0}  # each prompt has one answer


@pytest.mark.parametrize("workers", WORKERS)
def test_values_are_plain_data_and_the_same_everywhere(workers: int) -> None:
    given = Batch(
        {
            "value": [{"a": (1, 2), 3: 2**70}],
            "ids": Ragged.of([torch.tensor([1, 2])]),
            "flag": torch.tensor([True]),
        }
    )
    with judge(function=f"{MODULE}.types", columns={"tokens": "ids"}, workers=workers) as one:
        assert one.score(given)["rewards"].tolist() == [1.0]


@pytest.mark.parametrize("workers", WORKERS)
def test_functions_are_added_with_their_weights(workers: int) -> None:
    functions = {f"{MODULE}.several": {"weight": 2, "scale": 10}, f"{MODULE}.with_default": 0.5}
    with judge(functions=functions, workers=workers) as one:
        scored = one.score(batch_of("a b", "c"))
    assert scored["rewards"].tolist() == [60.25, 20.25]
    assert one.metrics["several"] == 20.0 and one.metrics["several/words"] == 1.5
    assert one.metrics["with_default"] == 0.5


def test_further_numbers_of_one_function_are_metrics() -> None:
    with judge(function=f"{MODULE}.several", options={"scale": 2}, workers=0) as one:
        one.score(batch_of("a b", "c"))
    assert one.metrics == {"reward": 4.0, "reward_std": 0.0, "failed": 0, "words": 1.5}


def test_groups_with_equal_rewards_are_dropped() -> None:
    groups = Batch({"response": ["4", "5", "6"], "solution": ["4"] * 3}, ids=torch.arange(7, 10)).repeat(2)
    answers = groups.with_columns(response=["4", "5", "5", "6", "4", "4"])
    with judge(function=f"{MODULE}.plain", workers=0, drop_equal=True) as one:
        scored = one.score(answers)
    assert scored.ids.tolist() == [[7, 0], [7, 1]] and scored["rewards"].tolist() == [1.0, 0.0]
    assert one.metrics["equal"] == pytest.approx(2 / 3)
    assert one.metrics["reward_std"] == pytest.approx(0.5 / 3)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ("raise", "raised KeyError: 'no such thing' (functions_of_users.py:"),
        ("exit", "raised SystemExit: enough (functions_of_users.py:"),
        ("nan", "returned nan, not a finite number"),
        ("text", "returned 'good', not a number"),
    ],
)
def test_a_failed_sample_is_reported_and_dropped(
    workers: int, response: str, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = batch_of("a", response, "b", folder=[str(tmp_path)] * 3)
    with judge(function=f"{MODULE}.obedient", workers=workers) as one:
        scored = one.score(given)
    assert scored["response"] == ["a", "b"] and scored["rewards"].tolist() == [1.0, 1.0]
    assert scored.ids.tolist() == [[0, 0], [2, 0]] and one.metrics["failed"] == 1
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.message.startswith(f"step 0, sample 1.0: `{MODULE}.obedient` {reason}")


def test_a_failed_sample_may_have_a_declared_reward(tmp_path: Path) -> None:
    given = batch_of("raise", "a", folder=[str(tmp_path)] * 2)
    with judge(function=f"{MODULE}.obedient", workers=0, on_error=-1) as one:
        assert one.score(given)["rewards"].tolist() == [-1.0, 1.0]
    assert one.metrics["reward"] == 1.0 and one.metrics["failed"] == 1


def test_many_failures_have_one_warning_with_their_ids(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = batch_of(*["raise"] * 5, "a", folder=[str(tmp_path)] * 6)
    with judge(function=f"{MODULE}.obedient", workers=0) as one:
        one.score(given)
    assert len(caplog.records) == 4
    assert caplog.records[-1].message == "step 0: 2 further samples failed: 3.0, 4.0"


@pytest.mark.parametrize("on_error", ["drop", 0.0])
def test_a_reward_that_fails_for_every_sample_is_an_error(tmp_path: Path, on_error: str | float) -> None:
    given = batch_of("raise", "nan", folder=[str(tmp_path)] * 2)
    with (
        judge(function=f"{MODULE}.obedient", workers=0, on_error=on_error) as one,
        pytest.raises(RewardError, match=r"^all 2 samples failed: sample 0\.0: `.*` raised KeyError"),
    ):
        one.score(given)


def test_an_empty_batch_has_no_rewards() -> None:
    with judge(function=f"{MODULE}.number", workers=0) as one:
        assert one.score(batch_of())["rewards"].tolist() == []


def test_a_missing_column_is_named_with_those_there_are() -> None:
    with (
        judge(function=f"{MODULE}.plain", columns={"solution": "answer"}, workers=0) as one,
        pytest.raises(RewardError, match=r"no column `answer`; it has response\. .*`keep: \[answer\]`"),
    ):
        one.score(batch_of("a"))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({}, "the constructor needs `function` or `functions`"),
        ({"function": "math", "functions": {"math": 1}}, "`functions` and `function` exclude each other"),
        ({"functions": {"math": "much"}}, "the weight of function `math` is 'much', not a number"),
        ({"functions": {"math": True}}, "the weight of function `math` is True, not a number"),
        ({"function": "math", "workers": -1}, "`workers` is .*; it must be at least 0"),
        ({"function": "math", "timeout_s": 0}, "`timeout_s` is .*; it must be above 0"),
        ({"function": "math", "timeout_s": 5, "workers": 0}, "`timeout_s` needs `workers`"),
        ({"function": "math", "on_error": "skip"}, "`on_error` is `drop` or a number, not 'skip'"),
        ({"function": "math", "on_error": float("nan")}, "`on_error` is `drop` or a number"),
    ],
)
def test_invalid_arguments(args: dict[str, Any], message: str) -> None:
    with pytest.raises(RewardError, match=message):
        Function(**args)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"function": "exact_mach"}, "function `exact_mach` does not exist, did you mean `exact_match`"),
        ({"function": "no.such"}, "function `no.such`: module 'no' does not exist"),
        ({"function": f"{MODULE}.absent"}, f"module {MODULE} has no function 'absent'"),
        ({"function": f"{MODULE}.plain", "options": {"scale": 2}}, "has no option `scale`; .* are none"),
        ({"function": "length"}, "function `length` needs the option `max_tokens`"),
        ({"function": "length", "workers": 1}, "function `length` needs the option `max_tokens`"),
        (
            {"function": "exact_match", "columns": {"truth": "a"}},
            "`columns` names `truth`, .* response, solution",
        ),
    ],
)
def test_functions_that_cannot_be_used(args: dict[str, Any], message: str) -> None:
    with pytest.raises(RewardError, match=message), judge(**{"workers": 0, **args}):
        pass


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 / 0", r"cannot be imported: ZeroDivisionError: division by zero \(.*mine.py:1\)"),
        (
            "import os; os.kill(os.getpid(), 9)",
            "the process that imports the reward function was killed by SIGKILL",
        ),
        ("import os; os._exit(7)", "ended with exit code 7"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_a_module_that_cannot_be_imported(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RewardError, match=message), judge(function="mine.reward"):
        pass


# Processes


def test_processes_share_the_samples_and_have_no_file_of_the_parent() -> None:
    with open(ROOT / "README.md") as file:
        os.set_inheritable(file.fileno(), True)
        with judge(function=f"{MODULE}.process", workers=2) as one:
            pids = {int(pid) for pid in one.score(batch_of(*"abcdefgh"))["rewards"].tolist()}
            assert len(pids) == 2 and os.getpid() not in pids
        with judge(function=f"{MODULE}.files") as one:
            # its connection, and the folder that is being listed
            assert one.score(batch_of("a"))["rewards"].tolist() == [2.0]


@pytest.mark.parametrize(
    ("response", "reason"),
    [("hang", "took longer than 2 s"), ("die", "ended its process, which was killed by SIGSEGV")],
)
def test_a_sample_that_hangs_or_kills_its_process_fails_alone(
    response: str,
    reason: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stand_until(lambda: len([*tmp_path.glob("hangs-*")]) == 2, monkeypatch)
    given = batch_of("a", response, *"bcdef", response, folder=[str(tmp_path)] * 8)
    with judge(function=f"{MODULE}.obedient", workers=2, timeout_s=2) as one:
        scored = one.score(given)
        again = one.score(batch_of("a", folder=[str(tmp_path)]))
    assert scored["response"] == [*"abcdef"] and again["rewards"].tolist() == [1.0]
    assert [record.message for record in caplog.records] == [
        f"step 0, sample 1.0: {reason}",
        f"step 0, sample 7.0: {reason}",
    ]


def test_what_a_function_started_ends_with_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "child"
    stand_until(lambda: file.exists() and bool(file.read_text()), monkeypatch)
    given = batch_of("start", "a", folder=[str(tmp_path)] * 2)
    with judge(function=f"{MODULE}.obedient", timeout_s=3) as one:
        one.score(given)
        with pytest.raises(ProcessLookupError):
            wait_for(int(file.read_text()))


def wait_for(pid: int) -> None:
    """Waits for the end of a process. Raises `ProcessLookupError` if it has ended."""
    end = os.pidfd_open(pid)
    try:
        assert select.select([end], [], [], HANG_S)[0], "the end of a process makes its descriptor readable"
    finally:
        os.close(end)
    raise ProcessLookupError(pid)


PARENT = f"""
import sys, threading
from tests.rewards.test_function import batch_of, judge
with judge(function="{MODULE}.obedient", timeout_s={HANG_S}) as one:
    one.score(batch_of("hang", folder=[sys.argv[1]]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals the death of a parent")
def test_a_hanging_process_dies_with_its_parent(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pid")
    with subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], cwd=ROOT) as parent:
        child = int((tmp_path / "pid").read_text())
        end = os.pidfd_open(child)
        parent.send_signal(signal.SIGKILL)
        assert select.select([end], [], [], HANG_S)[0], "the end of a process makes its descriptor readable"
        os.close(end)
