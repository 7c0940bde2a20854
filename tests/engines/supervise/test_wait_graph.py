"""The ends of chains of waits, compared with a search of all paths, and the chains that lead to them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshctl.engines.supervise.waits import Waits, Worker, chain_to, ends_of

WORKERS = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 4))
GRAPHS = st.dictionaries(WORKERS, st.lists(WORKERS, max_size=3), max_size=10)


def workers_of(waits: Waits) -> set[Worker]:
    return {*waits, *(target for targets in waits.values() for target in targets)}


def reachable(waits: Waits, start: Worker) -> set[Worker]:
    found, more = {start}, [start]
    while more:
        for target in waits.get(more.pop(), ()):
            if target not in found:
                found.add(target)
                more.append(target)
    return found


@given(GRAPHS)
def test_an_end_is_reached_by_everybody_who_is_reached_from_it(waits: Waits) -> None:
    expected = {
        frozenset(reachable(waits, worker))
        for worker in workers_of(waits)
        if all(worker in reachable(waits, other) for other in reachable(waits, worker))
    }
    ends = ends_of(waits)
    assert {frozenset(end) for end in ends} == expected and len(ends) == len(expected)
    for worker in workers_of(waits):
        assert any(set(end) & reachable(waits, worker) for end in ends), "every chain has an end"


@given(GRAPHS)
def test_a_chain_leads_from_each_worker_that_depends_on_an_end_to_it(waits: Waits) -> None:
    for end in ends_of(waits):
        chain = chain_to(waits, end)
        assert all(target in waits[worker] for worker, target in chain)
        outside = {worker: target for worker, target in chain if worker not in end}
        assert len(outside) == sum(worker not in end for worker, _ in chain), "each of them once"
        depends = {worker for worker in workers_of(waits) if set(end) & reachable(waits, worker)}
        assert outside.keys() == depends - {*end}
        place = {worker: number for number, (worker, _) in enumerate(chain)}
        for worker, target in outside.items():
            assert target in end or place[target] > place[worker], "the end comes last"
