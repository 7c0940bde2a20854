"""The components of generated recipes. Every endpoint records what it is called with.

A record is a list [COMPONENT, RANK, STEP, METHOD, ARGUMENTS]. It goes to the list `seen` of the component where
a test has set one, and otherwise to a file of this process in the folder `seen` of the run. Of a batch, the
record has the ids and the versions of the weights; its columns are compared with the ids here.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from typing import Any

import torch

from meshctl import Batch, CollectMode, Component, DispatchMode, Ragged, endpoint
from meshctl.topology.modes import Dispatch
from meshctl.topology.samples import Run, SampleTable

ROW_LENGTHS = 5
"""Sample n has n modulo this number of tokens."""


def interleaved(table: SampleTable, parts: int, options: Dispatch) -> list[list[Run]]:
    return [table.select(range(part, table.total, parts)) for part in range(parts)]


def largest(parts: Sequence[tuple[Any, float]]) -> dict[str, float]:
    return {name: max(value[name] for value, _ in parts) for name in parts[0][0]}


INTERLEAVED = DispatchMode(partition=interleaved)
LARGEST = CollectMode(join=largest)


class Recorded(Component):
    seen: list[Any] | None = None

    def __init__(self, column: str, stop_at: int = 0, width: int = 0, nan_at: int = 0) -> None:
        """Batches that this component makes have the columns `column` and `column`_tokens. With a `width`, a row
        of `column` has so many numbers. It asks for the end of the run in the step `stop_at`, and its numbers
        are NaN in the step `nan_at`."""
        self.nan_at = nan_at
        self.column, self.stop_at, self.calls, self.width = column, stop_at, 0, width

    def record(self, method: str, *arguments: Any) -> None:
        line = [self.place.name, self.rank, self.step, method, [recorded(argument) for argument in arguments]]
        if self.seen is not None:
            self.seen.append(line)
        else:
            folder = self.run_dir / "seen"
            folder.mkdir(exist_ok=True)
            with (folder / f"{os.getpid()}.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
        if method not in ("load", "resume"):
            self.calls += 1
            if self.step == self.stop_at and self.rank == 0:
                self.stop("enough")

    def number(self, value: float) -> float:
        return math.nan if self.step == self.nan_at else value

    def rows(self, numbers: list[int]) -> Batch:
        tokens = [torch.full((number % ROW_LENGTHS,), number) for number in numbers]
        column = torch.tensor(numbers, dtype=torch.int64)
        if self.width:
            column = column[:, None].repeat(1, self.width)
        columns = {self.column: column}
        return Batch({**columns, f"{self.column}_tokens": Ragged.of(tokens)})


def recorded(value: Any) -> Any:
    if isinstance(value, Batch):
        check_columns(value)
        versions = value["@version"].tolist() if "@version" in value else [None] * len(value)
        return {"ids": value.ids.tolist(), "versions": versions}
    return [recorded(item) for item in value] if isinstance(value, list) else value


def numbers_of(batch: Batch) -> list[int]:
    """The numbers of the samples of a source that the rows descend from."""
    return [number for number, *_ in batch.ids.tolist()]


def check_columns(batch: Batch) -> None:
    """Raises `ValueError` if a column has rows of other samples than the ids say."""
    numbers = numbers_of(batch)
    for name in batch.names:
        column = batch[name]
        if isinstance(column, Ragged):
            found = [row.tolist() for row in column.rows()]
            wanted: list[Any] = [[number] * (number % ROW_LENGTHS) for number in numbers]
        else:
            wide = column.reshape(len(numbers), -1) if numbers else column[:, None]
            found, wanted = wide[:, 0].tolist(), numbers
            if not bool((wide == wide[:, :1]).all()):
                raise ValueError(f"a row of column {name} has numbers of several samples")
        if found != wanted:
            raise ValueError(f"column {name} has {found} for the samples {numbers}")


class Endless(Recorded):
    @endpoint
    def next(self, samples: range) -> Batch:
        self.record("next", [samples.start, samples.stop])
        return self.rows(list(samples))


class Sized(Recorded):
    def __init__(self, column: str, length: int, stop_at: int = 0, width: int = 0) -> None:
        super().__init__(column, stop_at, width)
        self.length = length

    def __len__(self) -> int:
        return self.length

    @endpoint
    def next(self, samples: range) -> Batch | None:
        self.record("next", [samples.start, samples.stop])
        return self.rows(list(samples))


class Stream(Recorded):
    """Has `length` samples, and does not say so."""

    def __init__(self, column: str, length: int, stop_at: int = 0, width: int = 0) -> None:
        super().__init__(column, stop_at, width)
        self.length = length

    @endpoint
    def next(self, samples: range) -> Batch | None:
        self.record("next", [samples.start, samples.stop])
        left = [number for number in samples if number < self.length]
        return self.rows(left) if left else None


class Worker(Recorded):
    def __init__(self, column: str, keep: int = 2, stop_at: int = 0, width: int = 0, nan_at: int = 0) -> None:
        """`drop` keeps the samples whose number is a multiple of `keep`."""
        super().__init__(column, stop_at, width, nan_at)
        self.keep = keep

    @endpoint
    def take(self, batch: Batch) -> Batch:
        self.record("take", batch)
        return self.rows(numbers_of(batch))

    @endpoint
    def same(self, batch: Batch) -> Batch:
        self.record("same", batch)
        return batch

    @endpoint
    def reverse(self, batch: Batch) -> Batch:
        self.record("reverse", batch)
        return batch.take(list(range(len(batch)))[::-1])

    @endpoint
    def thrice(self, batch: Batch) -> Batch:
        self.record("thrice", batch)
        return batch.repeat(3)

    @endpoint
    def twins(self, batch: Batch) -> Batch:
        self.record("twins", batch)
        return self.rows([number for number in numbers_of(batch) for _ in range(2)])

    @endpoint
    def drop(self, batch: Batch) -> Batch:
        self.record("drop", batch)
        return batch.where([number % self.keep == 0 for number in numbers_of(batch)])

    @endpoint
    def parts(self, batch: Batch) -> Batch:
        self.record("parts", batch, list(batch.minibatches(2)))
        return batch

    @endpoint
    def pair(self, one: Batch, other: Any) -> Batch:
        self.record("pair", one, other)
        return self.rows(numbers_of(one))

    @endpoint
    def logged(self, batch: Batch) -> Batch:
        self.record("logged", batch)
        self.log({"number": self.number(mean(batch))}, weight=len(batch))
        return batch

    @endpoint(collect="mean")
    def loss(self, batch: Batch) -> dict[str, float]:
        """The mean over no samples is not a number."""
        self.record("loss", batch)
        return {"number": self.number(mean(batch)), "samples": len(batch)}

    @endpoint(collect="sum")
    def total(self, batch: Batch) -> dict[str, float]:
        self.record("total", batch)
        return {"number": self.number(sum(numbers_of(batch))), "samples": len(batch)}

    @endpoint(dispatch="tests.pipelines.parts:INTERLEAVED")
    def spread(self, batch: Batch) -> Batch:
        self.record("spread", batch)
        return self.rows(numbers_of(batch))

    @endpoint(collect="tests.pipelines.parts:LARGEST")
    def peak(self, batch: Batch) -> dict[str, float]:
        self.record("peak", batch)
        return {"number": sum(numbers_of(batch)), "samples": len(batch)}

    @endpoint(collect="sum")
    def tick(self) -> dict[str, float]:
        self.record("tick")
        return {"ticks": 1}

    def load_weights(self, stream: Any) -> None:
        [(_, weight)] = list(stream)
        self.record("load", int(weight))


class Trainer(Worker):
    """Its state and its weights are the number of calls of its endpoints."""

    def state_dict(self) -> dict[str, Any]:
        return {"calls": torch.tensor(self.calls)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.calls = int(state["calls"])
        self.record("resume", self.calls)

    def weights(self) -> dict[str, torch.Tensor]:
        return {"calls": torch.tensor([self.calls])}


def mean(batch: Batch) -> float:
    numbers = numbers_of(batch)
    return sum(numbers) / len(numbers) if numbers else math.nan
