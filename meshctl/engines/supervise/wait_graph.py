"""The graph of the waits between workers. Finds the workers that hold up others, and the chains to them.

ends_of(waits)          the ends of all chains: workers that wait for no other, and circles of workers
chain_to(waits, end)    pairs (waiting worker, awaited worker) on all paths to `end`
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence

Worker = tuple[str, int]
"""Group and rank."""
Waits = Mapping[Worker, Collection[Worker]]
"""Worker -> the workers for whom it waits."""


def name_of(worker: Worker) -> str:
    return f"{worker[0]}:{worker[1]}"


def ends_of(waits: Waits) -> list[tuple[Worker, ...]]:
    """Returns the ends of all chains. A worker that is not a key of `waits` waits for no other. An end is one
    worker that waits for no other, or a circle whose workers only wait for each other. From every worker at
    least one end can be reached."""
    found = []
    for component in _components(waits):
        members = set(component)
        if all(target in members for worker in component for target in waits.get(worker, ())):
            found.append(component)
    return found


def chain_to(waits: Waits, end: Sequence[Worker]) -> list[tuple[Worker, Worker]]:
    """Returns the waits by which workers depend on an end, as pairs (waiting worker, awaited worker). They
    are a tree whose root is the end, the pairs furthest from the root first. Each worker waits in one pair
    only, for a worker nearer to the end. Waits inside of a circle come last."""
    waiting = _waiting(waits)
    found, seen, queue = list[tuple[Worker, Worker]](), set(end), deque(end)
    while queue:
        target = queue.popleft()
        for worker in waiting.get(target, ()):
            if worker not in seen:
                seen.add(worker)
                found.append((worker, target))
                queue.append(worker)
    return [*reversed(found), *_inside(waits, end)]


def _inside(waits: Waits, end: Sequence[Worker]) -> Iterator[tuple[Worker, Worker]]:
    for worker in end:
        target = next((one for one in waits.get(worker, ()) if one in end), None)
        if target is not None:
            yield worker, target


def _waiting(waits: Waits) -> Waits:
    """Returns for each worker the workers that wait for it."""
    found: dict[Worker, list[Worker]] = {}
    for worker, targets in waits.items():
        for target in targets:
            found.setdefault(target, []).append(worker)
    return found


def _components(waits: Waits) -> list[tuple[Worker, ...]]:
    """Returns the strongly connected components (Kosaraju's algorithm, without recursion)."""
    order, waiting = _by_end_of_visit(waits), _waiting(waits)
    seen, found = set[Worker](), list[tuple[Worker, ...]]()
    for root in reversed(order):
        if root in seen:
            continue
        seen.add(root)
        component, stack = [root], [root]
        while stack:
            for worker in waiting.get(stack.pop(), ()):
                if worker not in seen:
                    seen.add(worker)
                    component.append(worker)
                    stack.append(worker)
        found.append(tuple(component))
    return found


def _by_end_of_visit(waits: Waits) -> list[Worker]:
    """Returns all workers in the order in which a depth-first search leaves them."""
    order, seen = list[Worker](), set[Worker]()
    for root in [*waits, *(target for targets in waits.values() for target in targets)]:
        if root in seen:
            continue
        seen.add(root)
        path = [(root, iter(waits.get(root, ())))]
        while path:
            worker, targets = path[-1]
            target = next((one for one in targets if one not in seen), None)
            if target is None:
                order.append(worker)
                path.pop()
            else:
                seen.add(target)
                path.append((target, iter(waits.get(target, ()))))
    return order
