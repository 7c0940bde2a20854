"""An engine that generates the answers of many calls together, on a thread of its own.

call --submit--> Stepper.add          prompts join the answers that are running
                 Stepper.step         one decoding step of all of them
call <--future-- the answers of a call, once all of them have ended

A call whose future is cancelled is aborted.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import field, replace
from typing import Any, Protocol

from meshctl.dataclass import dataclass
from meshctl.runtime.event_loop import Advances, start_thread

IDLE_S = 1.0
"""Seconds without a call after which the thread ends, so that it keeps no model that nobody uses."""
UNKNOWN = -1
"""The version of weights that no sync has sent."""


@dataclass(frozen=True, eq=False)
class Request:
    """A prompt, and the seeds of its answers."""

    prompt: Sequence[int]
    seeds: Sequence[int]
    max_new_tokens: int | None = None
    """The most tokens of an answer, if that is less than those of the sampler; None for these."""
    stop: tuple[str, ...] = ()
    """Texts that end an answer, beside those of the sampler."""


@dataclass(frozen=True)
class Sampling:
    """The distribution from which answers are drawn, and their ends."""

    max_new_tokens: int
    temperature: float = 1.0
    """The divisor of the logits. With 0, the most likely token is taken."""
    top_p: float = 1.0
    """Only the most likely tokens, whose probabilities add up to at least this number, can be drawn."""
    top_k: int = 0
    """The number of most likely tokens that can be drawn; 0 for all."""
    stop_tokens: tuple[int, ...] = ()
    stop_texts: tuple[str, ...] = ()
    """The tokens and texts that end an answer. The one that ended it is its last part."""

    @classmethod
    def of(
        cls, max_new_tokens: int, temperature: float, top_p: float, top_k: int, stop: Sequence[int | str]
    ) -> Sampling:
        """Returns the sampling of the arguments of a sampler."""
        tokens = tuple(one for one in stop if not isinstance(one, str))
        texts = tuple(one for one in stop if isinstance(one, str))
        return cls(max_new_tokens, temperature, top_p, top_k, tokens, texts)

    def within(self, request: Request) -> Sampling:
        """Returns the sampling of a request, which may end its answers earlier."""
        most = min(request.max_new_tokens or self.max_new_tokens, self.max_new_tokens)
        return replace(self, max_new_tokens=most, stop_texts=(*self.stop_texts, *request.stop))


@dataclass(frozen=True)
class Answer:
    """The answer to one prompt."""

    tokens: Sequence[int]
    """The sampled tokens, the end token included."""
    logprobs: Sequence[float]
    """The log-probability of each sampled token in the distribution from which it was drawn."""
    finish_reason: str
    """`stop`, or `length` if the answer has the maximum number of tokens."""
    versions: Sequence[int] = ()
    """The version of the weights that sampled each token; empty if no weights were loaded."""


class Stepper(Protocol):
    """An engine that generates answers step by step. One thread calls it."""

    def add(self, key: Any, request: Request) -> None: ...

    def step(self) -> Iterable[tuple[Any, int, Answer]]:
        """Samples a token of each running answer. Returns those that have ended: the key of the request, the
        index among its seeds, and the answer."""

    def abort(self, key: Any) -> None:
        """Drops a request, which may have ended."""

    def reload(self, version: int) -> None:
        """Notes that the weights have changed, and are those of `version`. What was computed of running
        answers with the old weights is computed again. No step runs meanwhile."""

    def drop(self) -> None:
        """Drops all requests, after a step has failed."""


@dataclass(eq=False)
class _Call:
    requests: Sequence[Request]
    future: Future[list[Answer]] = field(default_factory=Future)
    answers: dict[tuple[int, int], Answer] = field(default_factory=dict)

    missing: int = 0
    """The number of answers that have not ended."""

    def __post_init__(self) -> None:
        self.missing = sum(len(one.seeds) for one in self.requests)


class Continuous:
    """Generates the answers of calls with a stepper."""

    def __init__(self, stepper: Stepper) -> None:
        self._stepper = stepper
        self._changed = threading.Condition()
        """Guards all that follows, and is notified when it changes."""
        self._new: list[_Call] = []
        self._running: set[_Call] = set()
        self._pauses, self._is_stepping, self._is_closed = 0, False, False
        self._thread: threading.Thread | None = None
        self.version: int | None = None
        """The version of the weights; None before the first ones that have a version."""

    def submit(self, requests: Sequence[Request]) -> Future[list[Answer]]:
        """Begins to generate answers, and returns their future: the answers to each request, in order."""
        call = _Call(requests)
        if not call.missing:
            call.future.set_result([])
            return call.future
        with self._changed:
            self._new.append(call)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = start_thread(self._run, "sampling engine")
        return call.future

    @property
    def is_idle(self) -> bool:
        """True if no answers are running."""
        with self._changed:
            return not self._has_work

    @contextmanager
    def loading(self, version: int | None) -> Iterator[None]:
        """Returns a context in which the weights may be changed, to those of `version`. No step runs."""
        with self.paused():
            yield
            self.version = version
            self._stepper.reload(UNKNOWN if version is None else version)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Returns a context in which no step runs."""
        with self._changed:
            self._pauses += 1
            self._changed.wait_for(lambda: not self._is_stepping)
        try:
            yield
        finally:
            with self._changed:
                self._pauses -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Ends the thread. Answers that are running are lost."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._changed.wait_for(lambda: self._is_closed or self._may_step, IDLE_S):
                    if not self._has_work:
                        self._thread = None  # the next call starts another one
                        return
                if self._is_closed:
                    return
                new, self._new, self._is_stepping = self._new, [], True
            ended = self._step(new)
            Advances.add()
            with self._changed:
                self._is_stepping = False
                self._changed.notify_all()
            for call in ended:
                if call.future.set_running_or_notify_cancel():
                    call.future.set_result([call.answers[key] for key in sorted(call.answers)])

    @property
    def _may_step(self) -> bool:
        return self._has_work and not self._pauses

    @property
    def _has_work(self) -> bool:
        return bool(self._new or self._running)

    def _step(self, new: list[_Call]) -> list[_Call]:
        new = [call for call in new if not call.future.cancelled()]
        cancelled = [call for call in self._running if call.future.cancelled()]
        self._running.difference_update(cancelled)
        self._running.update(new)
        try:
            for call in cancelled:
                for number in range(len(call.requests)):
                    self._stepper.abort((call, number))
            if not self._running:
                return []
            for call in new:
                for number, request in enumerate(call.requests):
                    self._stepper.add((call, number), request)
            found = self._stepper.step()
        except Exception as error:  # of the model or of its engine: each call raises it
            failed, self._running = self._running, set()
            self._stepper.drop()
            for call in failed:
                if call.future.set_running_or_notify_cancel():
                    call.future.set_exception(error)
            return []
        ended = list[_Call]()
        for (call, number), index, answer in found:
            call.answers[number, index], call.missing = answer, call.missing - 1
            if not call.missing:
                self._running.remove(call)
                ended.append(call)
        return ended
