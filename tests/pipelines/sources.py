"""The data of a recipe, for the model: docs/recipes.md, "Stages", on which samples come next and when they end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from tests.pipelines.shares import Rows, Sample, even

ENDLESS = 10**9
Stages = Mapping[str, Mapping[str, Any]]
Given = dict[int, tuple[range, Rows]]
"""Rank -> the numbers with which a source is called, and the samples that it returns."""


def is_source(stage: Mapping[str, Any]) -> bool:
    return "call" in stage and "in" not in stage


class Sources:
    def __init__(self, stages: Stages, components: Mapping[str, Any], epochs: int) -> None:
        self._stages = {name: stage for name, stage in stages.items() if is_source(stage)}
        self._components, self._epochs = components, epochs
        self.given = dict.fromkeys(self._stages, 0)
        """Source -> the number of samples that it has produced."""

    @property
    def bounding(self) -> list[str]:
        """The sources whose data end the run: those that are called most often, or what `ends_run` says."""
        in_steps = {name: stage for name, stage in self._stages.items() if "when" not in stage}
        least = min((stage.get("every", 1) for stage in in_steps.values()), default=0)
        return [n for n, stage in in_steps.items() if stage.get("ends_run", stage.get("every", 1) == least)]

    def is_stream(self, name: str) -> bool:
        """Whether a source ends without having said so."""
        return self._component(name)[0] == "Stream"

    @property
    def unannounced(self) -> list[str]:
        """The sources whose data may end unannounced."""
        return [name for name in self.bounding if self._length(name) is None]

    @property
    def are_open_ended(self) -> bool:
        """Whether the data may end unannounced."""
        return bool(self.unannounced)

    def last_steps(self, first: int) -> dict[str, int]:
        """Source -> the step of its last call in a run that continues after the step `first`, for the bounding
        sources with a `__len__`."""
        lasts = {}
        for name in self.bounding:
            if (length := self._length(name)) is not None:
                every, samples = self._stages[name].get("every", 1), self._stages[name]["samples"]
                calls = -(-max(0, length - self.given[name]) // samples)
                lasts[name] = (first // every + calls) * every
        return lasts

    def ended(self, step: int) -> list[str]:
        """The streams that are called in a step and have no samples left."""
        return [
            name
            for name in self.bounding
            if step % self._stages[name].get("every", 1) == 0 and self.given[name] >= self._stop(name)
        ]

    def next(self, name: str, producers: Sequence[int]) -> Given:
        start, length = self.given[name], self._length(name)
        stop = start + self._stages[name]["samples"]
        if length is not None and name in self.bounding:
            stop = min(stop, length)  # others run on past their length
        self.given[name] = stop
        return divided(range(start, stop), producers, self._stop(name))

    def _component(self, name: str) -> tuple[str, Mapping[str, Any]]:
        return component_of(self._stages[name], self._components)

    def _length(self, name: str) -> int | None:
        """The number of samples that a source announces for the whole run."""
        kind, args = self._component(name)
        return args["length"] * self._epochs if kind == "Sized" else None

    def _stop(self, name: str) -> int:
        """The number of the first sample that a stream does not have."""
        kind, args = self._component(name)
        return int(args["length"]) if kind == "Stream" else ENDLESS


def component_of(stage: Mapping[str, Any], components: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The class and the arguments of a source's component."""
    component = components[stage["call"].split(".")[0]]
    return component["_target_"].split(".")[-1], component["args"]


def passes_of(
    stage: Mapping[str, Any], components: Mapping[str, Any], producers: Sequence[int]
) -> Iterator[Given]:
    """What the source of a block gives in each pass. The first pass without samples is the end."""
    kind, args = component_of(stage, components)
    end = args["length"] if kind == "Sized" else ENDLESS
    for start in count(0, stage["samples"]):
        numbers = range(min(start, end), min(start + stage["samples"], end))
        yield divided(numbers, producers, args["length"])


def divided(numbers: range, producers: Sequence[int], stop: int) -> Given:
    """Divides the numbers of a call. There are samples below `stop`."""
    spans = even(len(numbers), len(producers))
    shares = {rank: numbers[span.start : span.stop] for rank, span in zip(producers, spans, strict=True)}
    return {
        rank: (share, Rows(tuple(Sample((number,)) for number in share if number < stop)))
        for rank, share in shares.items()
    }
