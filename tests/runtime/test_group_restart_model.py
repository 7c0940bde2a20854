"""A model of workers that exchange values while one group restarts: who waits for whom, without processes.

A worker runs receives, collectives and sends, step by step. A value goes to one consumer after another, so a
group may die when only some of them have it. The protocol is that of `runtime.group_restarts`: receivers keep
what they have, all other workers reopen their routes before the group begins, and it begins after the last
step that all of them have.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples

GROUP = "restarting"
STEPS, SLOTS = 8, 2


class Rank(NamedTuple):
    group: str
    number: int


class Stage(NamedTuple):
    """A stage that takes values of earlier ones, by number, and may meet its peers in a collective."""

    group: str
    inputs: tuple[int, ...]
    meets: bool


class Operation(NamedTuple):
    kind: str
    """`receive`, `meet` or `send`."""
    stage: int
    """The stage of the received or sent value, or that of the collective."""
    other: Rank | None
    """The consumer of a sent value."""
    to: int = -1
    """The stage that takes the value."""


class Model:
    def __init__(self, stages: list[Stage], sizes: dict[str, int], chosen: random.Random) -> None:
        self.stages, self.chosen = stages, chosen
        self.ranks = [Rank(group, number) for group, size in sizes.items() for number in range(size)]
        self.programs = {rank: [*self.program(rank)] for rank in self.ranks}
        self.done = dict.fromkeys(self.ranks, 0)
        """Rank -> the number of operations that it has done."""
        self.sent: defaultdict[tuple[Rank, Rank, int, int], int] = defaultdict(int)
        """Producer, consumer, and the stages of a route -> the last step that was sent."""
        self.has: defaultdict[tuple[Rank, int, int], int] = defaultdict(int)
        """Consumer and stages of a route -> the last step that it has received."""
        self.closed: set[Rank] = set()
        """The ranks that have not reopened their routes to the group."""

    def of(self, group: str) -> list[Rank]:
        return [rank for rank in self.ranks if rank.group == group]

    def program(self, rank: Rank) -> Iterator[Operation]:
        """Yields what a rank does in a step."""
        for number, stage in enumerate(self.stages):
            if stage.group != rank.group:
                continue
            yield from (Operation("receive", source, None, number) for source in stage.inputs)
            if stage.meets:
                yield Operation("meet", number, None)
            for target, other in enumerate(self.stages):
                if number in other.inputs:
                    yield from (Operation("send", number, to, target) for to in self.of(other.group))

    def at(self, rank: Rank) -> tuple[int, Operation] | None:
        """Returns the step and the operation to which a rank has come; None at the end."""
        step, place = divmod(self.done[rank], len(self.programs[rank]) or 1)
        return (step + 1, self.programs[rank][place]) if self.programs[rank] and step < STEPS else None

    def can_do(self, rank: Rank) -> bool:
        if (now := self.at(rank)) is None or (rank.group == GROUP and self.closed):
            return False
        step, (kind, stage, to, target) = now
        if kind == "meet":
            return all(self.done[peer] >= self.done[rank] for peer in self.of(rank.group))
        source = self.stages[stage].group
        if GROUP in (source, to.group if to else rank.group) and {rank, *([to] if to else [])} & self.closed:
            return False
        if kind == "receive":
            return all(self.sent[peer, rank, stage, target] >= step for peer in self.of(source))
        assert to
        return step - self.has[to, stage, target] <= SLOTS

    def do(self, rank: Rank) -> None:
        now = self.at(rank)
        assert now
        step, (kind, stage, to, target) = now
        if kind == "receive":
            self.has[rank, stage, target] = max(step, self.has[rank, stage, target])
        elif to:
            route = rank, to, stage, target
            self.sent[route] = max(step, self.sent[route])
        self.done[rank] += 1

    def kill(self) -> None:
        """The group dies, and its successors agree on the step after which they begin."""
        first = STEPS
        for rank in self.of(GROUP):
            first = min(first, self.done[rank] // (len(self.programs[rank]) or 1))
        for (consumer, stage, _), step in [*self.deliveries()]:
            first = (
                min(first, step) if self.stages[stage].group == GROUP and consumer.group != GROUP else first
            )
        for rank in self.of(GROUP):
            self.done[rank] = first * len(self.programs[rank])
        for producer, consumer, stage, target in [*self.sent]:
            if producer.group == GROUP:  # what was on its way is lost
                self.sent[producer, consumer, stage, target] = (
                    first if consumer.group == GROUP else self.has[consumer, stage, target]
                )
        for consumer, stage, target in [*self.has]:
            if consumer.group == GROUP:
                self.has[consumer, stage, target] = first
        self.closed = {rank for rank in self.ranks if rank.group != GROUP}

    def deliveries(self) -> Iterator[tuple[tuple[Rank, int, int], int]]:
        for target, stage in enumerate(self.stages):
            for source in stage.inputs:
                for rank in self.of(stage.group):
                    yield (rank, source, target), self.has[rank, source, target]

    def reopens(self, rank: Rank, in_collectives: bool) -> bool:
        """Whether a rank that cannot go on reopens its routes."""
        now = self.at(rank)
        return in_collectives or now is None or now[1].kind != "meet"

    def run(self, kills: int, *, in_collectives: bool = True) -> bool:
        """Runs all steps in an arbitrary order, with deaths of the group. Returns whether all ranks end."""
        while True:
            if kills and self.chosen.random() < 0.05:
                kills -= 1
                self.kill()
            able = [rank for rank in self.ranks if self.can_do(rank)]
            open_next = [rank for rank in self.closed if self.reopens(rank, in_collectives)]
            if not able and not open_next:
                return all(self.at(rank) is None for rank in self.ranks)
            rank = self.chosen.choice([*able, *open_next])
            if rank in self.closed and rank in open_next:
                self.closed.discard(rank)
            else:
                self.do(rank)


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[list[Stage], dict[str, int]]:
    groups = [GROUP, "first", "second"]
    sizes = {group: draw(st.integers(1, 3)) for group in groups}
    stages: list[Stage] = []
    for number in range(draw(st.integers(2, 5))):
        inputs = draw(st.sets(st.integers(0, number - 1), max_size=2)) if number else set[int]()
        stages.append(Stage(draw(st.sampled_from(groups)), tuple(sorted(inputs)), draw(st.booleans())))
    return stages, sizes


@given(pipelines(), st.integers(0, 4), st.integers(0, 1 << 30))
@settings(max_examples=examples(300, 20_000))
def test_no_death_of_a_group_leads_to_a_circle(
    pipeline: tuple[list[Stage], dict[str, int]], kills: int, seed: int
) -> None:
    assert Model(*pipeline, random.Random(seed)).run(kills)


def test_a_circle_needs_a_rank_that_waits_in_a_collective_and_does_not_reopen() -> None:
    stages = [Stage(GROUP, (), False), Stage("first", (0,), True)]
    runs = [Model(stages, {GROUP: 2, "first": 2}, random.Random(seed)) for seed in range(200)]
    assert not all(run.run(2, in_collectives=False) for run in runs)
