"""Components that record what they receive in a block."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from meshctl.plan.model import Block, Plan, Stage
from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.component import Component, endpoint
from meshctl.topology.modes import Dispatch
from tests.runtime import in_process
from tests.runtime.in_process import Outcome
from tests.runtime.pipelines import Echo, Source
from tests.runtime.plans import Input, call, plan

EVAL = Block("eval", until="eval.questions")


SHARED = Dispatch(allow_empty=True)


class Held(Source):
    """A source of questions with a known length."""

    def __init__(self, length: int, seen: list[Any] | None = None) -> None:
        self.length, self.seen = length, seen

    def __len__(self) -> int:
        return self.length

    @endpoint
    def next(self, samples: range) -> Batch | None:
        if self.seen is not None:
            self.seen.append((self.step, self.rank, samples))
        return super().next(samples)


class HeldStream(Held):
    """The same source without a length. It ends by returning None."""

    __len__ = None  # type: ignore[assignment]

    @endpoint
    def next(self, samples: range) -> Batch | None:
        rest = [number for number in samples if number < self.length]
        return super().next(range(rest[0], rest[-1] + 1)) if rest else None


class Exam(Component):
    """Records its inputs, and returns the mean number of their samples."""

    def __init__(self, seen: list[Any]) -> None:
        self.seen = seen

    @endpoint
    def answer(self, batch: Batch) -> Batch:
        self.seen.append((self.step, self.rank, ids(batch)))
        return batch.with_columns(answer=batch["x"] * 2)

    @endpoint(collect="mean")
    def score(self, batch: Batch) -> dict[str, float]:
        self.log({"logged": 1.0}, weight=len(batch))
        self.seen.append((self.step, self.rank, ids(batch)))
        return {"x": float(batch["x"].float().mean()) if len(batch) else float("nan")}

    @endpoint(collect="sum")
    def count(self, batch: Batch) -> dict[str, float]:
        return {"n": float(len(batch))}

    @endpoint(collect="mean")
    def against(self, batch: Batch, scale: Any) -> dict[str, float]:
        self.seen.append((self.step, self.rank, ids(batch), scale))
        return {"x": 0.0}

    @endpoint(dispatch="all")
    def note(self, value: Any) -> None:
        self.seen.append((self.step, self.rank, value if not isinstance(value, Batch) else ids(value)))

    @endpoint
    def draw(self, batch: Batch) -> Batch:
        return batch.with_columns(drawn=torch.rand(len(batch)))


def ids(batch: Batch) -> list[int]:
    return [id for (id,) in batch.ids.tolist()]


def inside(name: str, what: str, *inputs: str | Input, every: int = 1, **more: Any) -> Stage:
    made = tuple(part if isinstance(part, Input) else Input((part,), dispatch=SHARED) for part in inputs)
    return call(f"eval.{name}", what, *made, every=every, block="eval", **more)


def evaluation(
    *stages: Stage,
    workers: dict[str, int],
    every: int = 1,
    steps: int = 2,
    samples: int = 4,
    before: tuple[Stage, ...] = (),
    **run: Any,
) -> Plan:
    """A training of one stage and a block `eval`, on the groups `a` (sources) and `b`."""
    block = [inside("questions", "held.next", samples=samples, every=every), *stages]
    job = plan(
        workers,
        {"data": ("a", {}), "held": ("a", {}), "echo": ("b", {}), "exam": ("b", {})},
        [call("batch", "data.next", samples=6), call("train", "echo.take", "batch"), *before, *block],
        steps=steps,
        **run,
    )
    return replace(job, blocks=(EVAL,))


def execute(job: Plan, held: type[Held] = Held, length: int = 10, **more: Any) -> tuple[Outcome, list[Any]]:
    seen: list[Any] = []
    data = more.pop("data", Source)

    def make(name: str, rank: int) -> Component:
        if name == "held":
            return held(length)
        return data() if name == "data" else Exam(seen) if name.startswith("exam") else Echo([])

    return in_process.run(job, make, **more), seen


def values(outcome: Outcome, stage: str, name: str) -> dict[int, list[tuple[float, float]]]:
    """Returns step -> the (value, weight) of a metric in each call."""
    found: dict[int, list[tuple[float, float]]] = {}
    for event in outcome.events:
        if event.name == "metric" and event.stage == stage and name in event.value["values"]:
            part = event.value["values"][name], event.value["weight"]
            found.setdefault(event.step or 0, []).append(part)
    return found


def mean(parts: list[tuple[float, float]]) -> float:
    filled = [(value, weight) for value, weight in parts if weight]
    return sum(value * weight for value, weight in filled) / sum(weight for _, weight in filled)


def passes(seen: list[Any], what: str, step: int, ranks: int) -> list[list[tuple[int, ...]]]:
    """Returns the ids of each pass, over all data ranks."""
    by_rank = [
        [some for kind, at, who, some in seen if (kind, at, who) == (what, step, rank)]
        for rank in range(ranks)
    ]
    return [sorted(id for some in parts for id in some) for parts in zip(*by_rank, strict=True)]
