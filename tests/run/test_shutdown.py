"""All workers agree on the end of a run, whoever requests it, and whenever."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import HashStore

from meshctl.run.shutdown import ENDLESS, KEPT_CALLS, Proposer, StopAgreement, StopRequest
from tests.hang import HANG_S


@pytest.fixture
def store() -> HashStore:
    made = HashStore()
    made.set_timeout(timedelta(days=1))
    return made


class Watched:
    """A connection to the store that shows when the listener has read two words of the launcher."""

    def __init__(self, store: HashStore) -> None:
        self._store, self.has_read_two = store, threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        if keys == ["word/2"]:
            self.has_read_two.set()
        self._store.wait(keys, timeout)


def test_what_all_workers_know_of_a_stream_is_deleted(store: HashStore) -> None:
    producer, *others = [StopAgreement(store, store, job_rank) for job_rank in range(3)]
    before = store.num_keys()
    for number in range(1, 2 * KEPT_CALLS + 1):
        producer.give("batch", number, has_data=True)
        assert all(other.is_given("batch", number, 2) for other in others)
    assert store.num_keys() == before


def test_a_streams_end_is_no_request_for_a_last_step(store: HashStore) -> None:
    ending, proposer = StopAgreement(store, store, 0), Proposer(store, [0])
    assert ending.begin(7)
    proposer.propose(StopRequest("the data ended", 7))
    assert proposer.poll() is None and ending.begin(8)


@pytest.mark.parametrize("first", [StopRequest("NaN", has_failed=True), StopRequest("SIGINT")])
def test_a_run_that_fails_has_no_announced_last_step(store: HashStore, first: StopRequest) -> None:
    """So nothing is saved in it and no stage at the end runs; also where a signal was before."""
    ending, proposer = StopAgreement(store, store, 0), Proposer(store, [0])
    ending.plan(9, {}, [])
    assert ending.begin(4)
    proposer.propose(first)
    proposer.propose(StopRequest("NaN", has_failed=True))
    store.wait(["begun/0"], timedelta(seconds=HANG_S))  # the worker has answered
    assert proposer.poll() == 5
    assert ending.begin(5) and not ending.begin(6)
    assert ending.has_failed and ending.announced == ENDLESS


def test_a_failure_in_the_planned_last_step_changes_nothing(store: HashStore) -> None:
    """Some worker may already save in it, and its peers must do the same."""
    listener = Watched(store)
    ending, proposer = StopAgreement(store, listener, 0), Proposer(store, [0])
    ending.plan(4, {}, [])
    assert ending.begin(4)
    proposer.propose(StopRequest("NaN", has_failed=True))
    store.wait(["begun/0"], timedelta(seconds=HANG_S))
    assert proposer.poll() == 5
    assert listener.has_read_two.wait(HANG_S)  # the worker knows the decision
    assert not ending.begin(5)
    assert not ending.has_failed and ending.announced == 4


@settings(max_examples=20)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=4), st.integers(0, 3), st.booleans())
def test_all_workers_stop_after_one_step_that_none_had_begun_and_save_after_the_same_steps(
    paces: list[int], requests: int, is_planned: bool
) -> None:
    """Checkpoints may be requested at any time, also while the run ends."""
    store = HashStore()
    store.set_timeout(timedelta(days=1))
    proposer = Proposer(store, range(len(paces)))
    saved: dict[int, list[int]] = {}

    def work(job_rank: int) -> None:
        ending, cuts, step = StopAgreement(store, store, job_rank), list[int](), 0
        ending.plan(40 if is_planned else 0, {}, [])
        while ending.begin(step + 1):
            step += 1
            if ending.is_cut(step):
                cuts.append(step)
            time.sleep(paces[job_rank] / 1e5)
        saved[job_rank] = [*cuts, step]  # the last step
        ending.leave()

    workers = [threading.Thread(target=work, args=(job_rank,), daemon=True) for job_rank in range(len(paces))]
    for worker in workers:
        worker.start()
    for _ in range(requests):
        proposer.save()
        time.sleep(0.001)
        proposer.poll()
    if not is_planned:
        proposer.propose(StopRequest("SIGINT"))
    while any(worker.is_alive() for worker in workers):
        proposer.poll()
        time.sleep(0.001)
    assert len(saved) == len(paces) and len({tuple(steps) for steps in saved.values()}) == 1
    assert is_planned or proposer.poll() == saved[0][-1]
