"""The event `restarted`: the whole run or a single group starts again, and groups may change their size.

`engines/supervise/head.py` lists its fields. Displays, reports, traces and trackers show its line.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshctl.run.events import Event


def restart_line(event: Event) -> str:
    """Returns the line about a restart, `restarted after step 40: train:1 failed: killed by SIGKILL`; with
    `, train with 3 of 4 workers` after the step if groups change their size. `rollout restarts alone` is the
    beginning where a single group restarts."""
    if group := event.value.get("group"):
        return f"{group} restarts alone: {event.value.get('cause', '')}"
    where = f"after step {event.step}" if event.step else "from the beginning"
    sizes = [f", {size_change(name, *pair)}" for name, pair in sizes_in(event.value.get("sizes"))]
    return f"restarted {where}{''.join(sizes)}: {event.value.get('cause', '')}"


def sizes_in(sizes: object) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yields (group, numbers of its workers before and after) of the field of an event."""
    for name, pair in sizes.items() if isinstance(sizes, dict) else ():
        if isinstance(pair, list) and len(pair) == 2 and all(isinstance(one, int) for one in pair):
            yield str(name), (pair[0], pair[1])


def size_change(group: str, before: int, after: int) -> str:
    """Returns `train with 3 of 4 workers`, or `train with 4 workers again`."""
    return (
        f"{group} with {after} of {before} workers"
        if after < before
        else f"{group} with {after} workers again"
    )
