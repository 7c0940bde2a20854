"""Answers that are generated together: prompts that join, pauses, failures, and `async def` endpoints."""

from __future__ import annotations

from concurrent.futures import Future
from threading import Thread
from time import sleep
from typing import Any

import pytest
import torch

from meshctl import Component, endpoint
from meshctl.hf.decoding import HfStepper
from meshctl.hf.model import Model
from meshctl.hf.sampler import Sampler
from meshctl.sampling.answers import VERSION, VERSIONS
from meshctl.sampling.continuous import Answer, Continuous, Request, Sampling
from tests.hf.test_sampler import ARCHITECTURES, CONFIG, prompts, sampler
from tests.hf.test_sampler import logprobs as logprobs_of

PROMPTS = [[97 + n for n in range(length)] for length in (5, 14, 2, 9, 1)]
REQUESTS = [Request(prompt, [17 * n, 17 * n + 1]) for n, prompt in enumerate(PROMPTS)]


def stepper(kind: str, **limits: Any) -> HfStepper:
    config = {**CONFIG, **ARCHITECTURES[kind]}
    module = Sampler(config, tokenizer="byte", max_new_tokens=1, dtype="float64").module
    sampling = Sampling(24, stop_tokens=tuple(range(120, 140)))
    return HfStepper(module, sampling, lambda rows: [""] * len(rows), **{"max_rows": 64, **limits})


def tokens(answers: list[Answer]) -> list[Any]:
    return [one.tokens for one in answers]


def logprobs(answers: list[Answer]) -> torch.Tensor:
    return torch.tensor([value for one in answers for value in one.logprobs])


@pytest.mark.parametrize("kind", ["qwen3", pytest.param("sliding", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("limits", [{}, {"max_rows": 3}, {"max_rows": 8, "max_tokens": 120}])
def test_prompts_that_join_running_answers_get_the_answers_that_they_get_alone(
    kind: str, limits: dict[str, int]
) -> None:
    alone = [answer for one in REQUESTS for answer in run(stepper(kind), [(0, one)])]
    joined = run(stepper(kind, **limits), [(3 * number, one) for number, one in enumerate(REQUESTS)])
    assert tokens(joined) == tokens(alone)
    assert len({len(one) for one in tokens(alone)}) > 3
    assert (logprobs(joined) - logprobs(alone)).abs().max() < 1e-12


def test_answers_go_on_with_new_weights_and_say_which_sampled_each_token() -> None:
    made = sampler(CONFIG, max_new_tokens=24, group_size=2, temperature=0.7)
    actors = [Model({**CONFIG, "initializer_range": size}, dtype="float64") for size in (0.3, 0.2, 0.1)]
    batch, steps = prompts((5, 9, 2)), 0
    step = made.generator._stepper.step

    def stepped() -> object:  # weights arrive in the middle of the answers
        nonlocal steps
        steps += 1
        if steps in (5, 12):
            made._loads = Thread(target=load, args=(steps,))
            made._loads.start()
            while not made.generator._pauses:
                sleep(0.001)
        return step()

    def load(version: int) -> None:
        made.place.version = version
        made.load_weights(actors[0 if not version else 1 if version == 5 else 2].weights())

    load(0)
    made.generator._stepper.step = stepped  # type: ignore[method-assign]
    found = made.sample(batch)
    versions = torch.cat(list(found.columns[VERSIONS].rows()))
    assert sorted({*versions.tolist()}) == [-1, 0, 5, 12]
    for actor, version in zip(actors, (0, 5, 12), strict=True):
        own = logprobs_of(actor, found, 0.7)
        is_own = versions == version
        assert (own - found["sampled_logprobs"].values)[is_own].abs().max() < 1e-10
    oldest = [row[row >= 0].min() for row in found.columns[VERSIONS].rows()]
    assert found.columns[VERSION].tolist() == oldest


def run(made: HfStepper, arrivals: list[tuple[int, Request]]) -> list[Answer]:
    """Steps until all answers have ended. An arrival is (number of steps before it, request)."""
    found: dict[tuple[int, int], Answer] = {}
    waiting, steps = list(enumerate(arrivals)), 0
    while len(found) < sum(len(one.seeds) for _, one in arrivals):
        while waiting and waiting[0][1][0] <= steps:
            number, (_, request) = waiting.pop(0)
            made.add(number, request)
        found |= {(key, index): answer for key, index, answer in made.step()}
        steps += 1
    return [found[key] for key in sorted(found)]


class Counting:
    """A stepper whose answers have as many tokens as their seed says."""

    def __init__(self) -> None:
        self.running: list[tuple[Any, int, int, list[int]]] = []
        self.steps, self.fails = 0, False

    def add(self, key: Any, request: Request) -> None:
        self.running += [(key, index, seed, []) for index, seed in enumerate(request.seeds)]

    def step(self) -> list[tuple[Any, int, Answer]]:
        self.steps += 1
        if self.fails:
            self.fails = False
            raise RuntimeError("the device is lost")
        for *_, sampled in self.running:
            sampled.append(self.steps)
        ended = [one for one in self.running if len(one[3]) == one[2]]
        self.running = [one for one in self.running if one not in ended]
        return [(key, index, Answer(found, [0.0] * len(found), "stop")) for key, index, _, found in ended]

    def drop(self) -> None:
        self.running.clear()


def test_calls_end_when_their_own_answers_have_ended() -> None:
    made = Continuous(Counting())
    with made.paused():
        long, short = made.submit([Request([1], [9, 2])]), made.submit([Request([1], [3]), Request([2], [1])])
        assert made.submit([]).result() == []
    assert [len(one.tokens) for one in short.result(9)] == [3, 1]
    assert [len(one.tokens) for one in long.result(9)] == [9, 2]
    made.close()


def test_a_failed_step_fails_the_calls_of_the_moment_and_no_later_one() -> None:
    counting = Counting()
    made = Continuous(counting)
    with made.paused():
        counting.fails = True
        futures: list[Future[list[Answer]]] = [made.submit([Request([1], [n])]) for n in (2, 4)]
    for one in futures:
        with pytest.raises(RuntimeError, match="the device is lost"):
            one.result(9)
    assert len(made.submit([Request([1], [2])]).result(9)) == 1
    made.close()


class Waits(Component):
    @endpoint(collect="mean")
    async def double(self, number: int) -> int:
        return 2 * number


class WaitsTwice(Waits):
    @endpoint
    async def double(self, number: int) -> int:
        return 2 * await super().double(number)


def test_a_call_of_an_async_endpoint_waits_for_its_result() -> None:
    assert Waits().double(4) == 8
    assert WaitsTwice().double(4) == 16


def test_a_call_that_is_cancelled_is_aborted_and_the_others_go_on() -> None:
    """Its answers leave those that are running, and its prompts those that wait."""
    alone = [answer for one in REQUESTS[1:] for answer in run(stepper("qwen3"), [(0, one)])]
    engine, steps = stepper("qwen3", max_rows=4), 0
    made, step = Continuous(engine), engine.step

    def stepped() -> Any:
        nonlocal steps
        steps += 1
        if steps == 3:
            assert first.cancel()
        return step()

    engine.step = stepped  # type: ignore[method-assign]
    with made.paused():
        first, others = made.submit(REQUESTS[:1]), made.submit(REQUESTS[1:])
    assert tokens(others.result()) == tokens(alone) and first.cancelled()
    made.close()
