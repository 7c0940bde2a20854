"""All workers agree on the end of a run, whoever requests it, and whenever."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import HashStore

from meshctl.run.shutdown import ENDLESS, Proposer, StopAgreement, StopRequest


@pytest.fixture
def store() -> HashStore:
    made = HashStore()
    made.set_timeout(timedelta(days=1))
    return made


def test_the_least_of_steps_and_data_is_planned(store: HashStore) -> None:
    ending = StopAgreement(store, store, 0, [0])
    assert ending.plan(20, {"a": 12, "b": None}, ["a", "b"]) == [12, None]
    assert ending.last == 12
    assert ending.begin(12) and not ending.begin(13)


def test_without_steps_and_data_only_a_stop_ends_it(store: HashStore) -> None:
    ending = StopAgreement(store, store, 0, [0])
    assert ending.plan(0, {}, []) == []
    assert ending.last == ENDLESS and ending.begin(10**9)


@settings(max_examples=20)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=4), st.integers(0, 20))
def test_all_workers_stop_after_one_step_that_none_had_begun(paces: list[int], delay: int) -> None:
    store = HashStore()
    store.set_timeout(timedelta(days=1))
    proposer = Proposer(store, range(len(paces)))
    ran: dict[int, int] = {}

    def work(job_rank: int) -> None:
        ending = StopAgreement(store, store, job_rank, range(len(paces)))
        step = 0
        while ending.begin(step + 1):
            step += 1
            time.sleep(paces[job_rank] / 1e5)
        ran[job_rank] = step
        ending.leave()

    workers = [threading.Thread(target=work, args=(job_rank,), daemon=True) for job_rank in range(len(paces))]
    for worker in workers:
        worker.start()
    time.sleep(delay / 1000)
    proposer.propose(StopRequest("SIGINT"))
    while (last := proposer.poll()) is None:
        time.sleep(0.001)
    for worker in workers:
        worker.join(5)
    assert ran == dict.fromkeys(range(len(paces)), last)


def test_requests_of_workers_are_received_once_and_in_order(store: HashStore) -> None:
    ending, proposer = StopAgreement(store, store, 0, [0]), Proposer(store, [0])
    assert proposer.asked() is None
    ending.ask("converged")
    ending.ask("the data of `batch` ended", ended=7)
    assert proposer.asked() == StopRequest("converged")
    assert proposer.asked() == StopRequest("the data of `batch` ended", 7)
    assert proposer.asked() is None


def test_a_stream_that_ends_drops_what_was_begun(store: HashStore) -> None:
    informed = threading.Event()
    ending, proposer = StopAgreement(store, store, 0, [0], informed.set), Proposer(store, [0])
    assert ending.begin(7)
    proposer.propose(StopRequest("the data ended", 5))
    assert informed.wait(5)
    assert ending.last == 4 and ending.dropped(7) and not ending.dropped(4)
    assert ending.agree(4) == 4


def test_workers_complete_a_step_together_or_not_at_all(store: HashStore) -> None:
    """The data end in step 5 for worker 0 alone: the others of its group do not wait for it in a collective."""
    workers, proposer = (
        [StopAgreement(store, store, rank, range(3)) for rank in range(3)],
        Proposer(store, range(3)),
    )
    with ThreadPoolExecutor() as pool:
        assert all(pool.map(lambda worker: worker.is_completed(4, range(3)), workers))
        waiting = [pool.submit(worker.is_completed, 5, range(3)) for worker in workers[1:]]
        proposer.propose(StopRequest("the data ended", 5))
        assert [one.result(10) for one in waiting] == [False, False]


def test_a_stop_after_a_streams_end_changes_nothing(store: HashStore) -> None:
    informed = threading.Event()
    ending, proposer = StopAgreement(store, store, 0, [0], informed.set), Proposer(store, [0])
    assert ending.begin(7)
    proposer.propose(StopRequest("the data ended", 9))
    proposer.propose(StopRequest("SIGTERM"))
    assert proposer.poll() == 8 and informed.wait(5)
    assert ending.begin(8) and not ending.begin(9)


def test_a_worker_that_left_has_answered(store: HashStore) -> None:
    ending, proposer = StopAgreement(store, store, 0, [0]), Proposer(store, [0])
    ending.plan(3, {}, [])
    for step in (1, 2, 3):
        assert ending.begin(step)
    ending.leave()
    proposer.propose(StopRequest("SIGTERM"))
    assert proposer.poll() == 4


@pytest.mark.parametrize("first", [StopRequest("NaN", has_failed=True), StopRequest("SIGINT")])
def test_a_run_that_fails_has_no_announced_last_step(store: HashStore, first: StopRequest) -> None:
    """So nothing is saved in it and no stage at the end runs; also where a signal was before."""
    words = threading.Semaphore(0)
    ending, proposer = StopAgreement(store, store, 0, [0], words.release), Proposer(store, [0])
    ending.plan(9, {}, [])
    assert ending.begin(4)
    proposer.propose(first)
    proposer.propose(StopRequest("NaN", has_failed=True))
    assert words.acquire(timeout=5)  # the worker has answered
    assert proposer.poll() == 5
    assert ending.begin(5) and not ending.begin(6)
    assert ending.has_failed and ending.announced == ENDLESS


def test_a_failure_in_the_planned_last_step_changes_nothing(store: HashStore) -> None:
    """Some worker may already save in it, and its peers must do the same."""
    words = threading.Semaphore(0)
    ending, proposer = StopAgreement(store, store, 0, [0], words.release), Proposer(store, [0])
    ending.plan(4, {}, [])
    assert ending.begin(4)
    proposer.propose(StopRequest("NaN", has_failed=True))
    assert words.acquire(timeout=5)
    assert proposer.poll() == 5
    assert words.acquire(timeout=5)  # the worker knows the decision
    assert not ending.begin(5)
    assert not ending.has_failed and ending.announced == 4
