"""An engine without vLLM. It repeats the last token of the prompt, and records its calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from meshctl.sampling.continuous import Answer, Sampling
from meshctl.vllm import Sampler
from meshctl.vllm.options import EngineOptions, Sampled


class FakeEngine:
    max_length = 32
    vocabulary_size = 259
    end_tokens: Sequence[int] = (7,)
    is_tied = True
    version = "default"
    finish_reason = "length"

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self.calls: list[str] = []
        self.requests: list[tuple[str, Sequence[int], int]] = []
        self.seeds: list[int] = []
        self.sampling: Sampling | None = None
        self.names: list[str] = []

    def add(self, name: str, prompt: Sequence[int], sampling: Sampling, seed: int) -> None:
        self.sampling = sampling
        self.requests.append((name, prompt, seed))

    def step(self) -> list[tuple[str, Sampled]]:
        assert self.sampling
        self.calls.append("step")
        waiting, self.requests = self.requests, []
        self.seeds += [seed for _, _, seed in waiting]
        return [(name, self._answer(prompt, self.sampling)) for name, prompt, _ in waiting]

    def abort(self, names: Sequence[str]) -> None:
        self.calls.append("abort")

    def _answer(self, prompt: Sequence[int], sampling: Sampling) -> Sampled:
        tokens = [prompt[-1]] * sampling.max_new_tokens
        answer = Answer(tokens, [-0.5] * len(tokens), self.finish_reason)
        return Sampled(answer, [self.version] * len(tokens))

    def score(self, texts: Sequence[Sequence[int]]) -> list[list[float]]:
        self.calls.append("score")
        return [[-float(token) for token in text[1:]] for text in texts]

    def start_update(self) -> None:
        self.calls.append("start_update")
        self.names = []

    def update(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        self.calls.append("update")
        self.names += [name for name, _ in weights]

    def finish_update(self, version: str) -> None:
        self.calls.append("finish_update")
        self.version = version

    def sleep(self) -> None:
        self.calls.append("sleep")

    def wake(self, *parts: str) -> None:
        self.calls.append(" ".join(["wake", *parts]))

    def close(self) -> None:
        self.calls.append("close")


class FakeSampler(Sampler):
    """A sampler with a `FakeEngine`."""

    def new_engine(self, options: EngineOptions) -> Any:
        return FakeEngine(options)
