"""A rank that is slower than its peers is named once."""

from __future__ import annotations

from typing import Any

import pytest

from meshctl.engines.supervise.watches import JUDGED_STEPS, JUDGEMENTS, LASTING_S, Stragglers
from meshctl.run.events import Event

ENOUGH = 1 + JUDGED_STEPS * (JUDGEMENTS + 1)


def texts_of(stragglers: Stragglers) -> list[str]:
    return [note.value["text"] for note in stragglers.poll()]


def warnings(
    *seconds: float, in_collectives: tuple[float, ...] = (), steps: int = ENOUGH, each: float = 1.0
) -> list[str]:
    """Returns the warnings after some steps, which take `each` seconds."""
    stragglers = Stragglers()
    for step in range(1, steps + 1):
        for rank, time in enumerate(seconds):
            value: dict[str, Any] = {"stages": {"loss": time}, "seconds": each}
            if in_collectives:
                value["in_collectives"] = {"loss": in_collectives[rank]}
            stragglers.add(Event("step", "train", rank, step, value=value))
    found = texts_of(stragglers)
    assert texts_of(stragglers) == []
    return found


def test_a_slow_rank_is_named_with_its_time_and_that_of_its_peers() -> None:
    [text] = warnings(0.08, 0.8, 0.09, 0.08)
    assert text == ("train:1 is slow: stage loss takes 800 ms without collectives, and 80 ms on its peers")


@pytest.mark.parametrize(
    ("seconds", "more", "slow"),
    [
        ((0.8, 0.8, 0.8), {"in_collectives": (0.7, 0.7, 0.0)}, "train:2"),
        ((0.1, 0.8, 0.1), {"in_collectives": (0.0, 0.7, 0.0)}, ""),
        ((0.1, 0.15), {}, ""),
        ((0.001, 0.005), {}, ""),
        ((0.1,), {}, ""),
        ((0.1, 1.0), {"steps": JUDGED_STEPS}, ""),
        ((0.1, 1.0), {"each": LASTING_S / ENOUGH / 2}, ""),
        ((0.1, 1.0), {"each": LASTING_S / ENOUGH / 2, "steps": 3 * ENOUGH}, "train:1"),
    ],
)
def test_a_rank_is_slow_by_much_for_long_outside_of_collectives(
    seconds: tuple[float, ...], more: dict[str, Any], slow: str
) -> None:
    assert [text.partition(" is slow")[0] for text in warnings(*seconds, **more)] == ([slow] if slow else [])


def test_single_slow_steps_are_none() -> None:
    stragglers = Stragglers()
    for step in range(1, 5 * ENOUGH):
        for rank in range(2):
            time = 5.0 if rank and step % 3 == 0 else 0.1
            stragglers.add(
                Event("step", "train", rank, step, value={"stages": {"loss": time}, "seconds": 5.0})
            )
    assert texts_of(stragglers) == []
