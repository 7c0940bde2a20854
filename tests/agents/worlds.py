"""An agent beside a sampler, in the process of a test. The sampler is a function from the text of a prompt to
the text of an answer, or a tiny model."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from meshctl import Batch
from meshctl.agents import Agent
from meshctl.data.examples import PromptLimits
from meshctl.runtime.batch.batch import Ragged
from meshctl.runtime.rank_context import RankContext
from meshctl.sampling.answers import AnswerSampler
from meshctl.sampling.continuous import Answer, Continuous, Request

END = 258
"""The end token of the tokenizer `byte`."""
HERE = "tests.agents.agents_of_users"
Reply = Callable[[str], str | None]
"""Returns None for a prompt that is not answered yet."""


class Scripted:
    """Answers with texts, one step for each call."""

    def __init__(self, reply: Reply, decode: Callable[[Sequence[int]], str], most: int) -> None:
        self._reply, self._decode, self._most = reply, decode, most
        self._waiting: dict[Any, Request] = {}
        self.requests: list[Request] = []
        self.aborted = 0

    def add(self, key: Any, request: Request) -> None:
        self._waiting[key] = request
        self.requests.append(request)

    def step(self) -> list[tuple[Any, int, Answer]]:
        found = []
        for key, request in [*self._waiting.items()]:
            text = self._reply(self._decode(request.prompt))
            if text is None:
                continue
            del self._waiting[key]
            tokens = [*text.encode(), END]
            most = min(request.max_new_tokens or self._most, self._most)
            draw = random.Random(request.seeds[0])
            logprobs = [-draw.random() for _ in tokens]
            reason = "stop" if len(tokens) <= most else "length"
            found.append((key, 0, Answer(tokens[:most], logprobs[:most], reason)))
        return found

    def abort(self, key: Any) -> None:
        self.aborted += self._waiting.pop(key, None) is not None

    def reload(self, version: int) -> None: ...

    def drop(self) -> None:
        self._waiting.clear()


class ScriptedSampler(AnswerSampler):
    """A sampler whose answers are those of a function."""

    end_tokens = (END,)
    model, config, tokenizer_name, group_size = "byte", {}, "byte", 1

    def __init__(self, reply: Reply, most: int = 512, positions: int | None = None) -> None:
        self._reply, self._most, self._positions = reply, most, positions

    @cached_property
    def stepper(self) -> Scripted:
        return Scripted(self._reply, self.tokenizer.decode, self._most)

    @cached_property
    def generator(self) -> Continuous:
        return Continuous(self.stepper)

    @property
    def limits(self) -> PromptLimits:
        return PromptLimits(259, self._positions, self._most, ValueError)  # type: ignore[arg-type]

    def _scores(self, texts: Batch) -> Ragged:
        raise NotImplementedError


class Logged(dict[str, list[tuple[float, float]]]):
    """The metrics of a component: name -> (value, weight) of each call."""

    def __call__(self, values: Mapping[str, float], weight: float) -> None:
        for name, value in values.items():
            self.setdefault(name, []).append((value, weight))

    def mean(self, name: str) -> float:
        return sum(value * weight for value, weight in self[name]) / sum(weight for _, weight in self[name])


@contextmanager
def agent(sampler: Reply | AnswerSampler, run: Path, /, **args: Any) -> Iterator[Agent]:
    """Returns a context with an agent whose `place.log` is `Logged`."""
    engine = sampler if isinstance(sampler, AnswerSampler) else ScriptedSampler(sampler)
    engine._context = engine._context or RankContext("sampler")
    made = Agent("sampler", **args)
    peers: dict[str, object] = {"sampler": engine}
    made._context = RankContext("agent", run_dir=run, log=Logged(), peers=peers, step=1)
    made.setup()
    try:
        yield made
    finally:
        made.close()
        if engine is not sampler:
            engine.close()


def questions(*texts: str) -> Batch:
    return Batch({"question": list(texts), "number": list(range(len(texts)))})


def rows(batch: Batch, name: str) -> list[list[Any]]:
    column = batch[name]
    assert isinstance(column, Ragged)
    return [row.tolist() for row in column.rows()]
