"""The end of a run: all workers agree on one last step, and end after it. They agree on the step of a
checkpoint that is requested in the run in the same way.

    planned     After `setup` each source announces its number of batches. The smallest of these and
                `run.steps` is the last step.
    requested   A signal, or a component's `stop`. The launcher asks every worker which step it has begun, and
                makes the next step the last. A worker that has answered begins no further step until it
                receives the decision, which takes a few milliseconds.
    failed      The same, where a wrong number was found: neither a last checkpoint is written nor a stage
                called that runs at the end.
    saved       A checkpoint is requested, and the run goes on. The step after which all save is agreed
                as a requested end is.
    ended       A stream ended unannounced in step k. The last step was k - 1: a worker begins no stage of
                step k until it knows that every stream had data for it (`runtime.schedule`). Most learn
                it from the values that they receive. The others ask: `is_given`.

Both sides communicate through the control store, under one prefix per attempt. A step costs no message:
each worker has a listener thread that sleeps in `wait`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.network.control_store import Store, StoreLost

PREFIX = "ending/"
"""The prefix of the keys of the agreement in the store, below that of the attempt."""
FOREVER = timedelta(days=100)
ENDLESS = 2**62
"""The last step of a run that only a stop ends."""
LEFT = "left"
"""The key that exists once a worker takes part in no further step, and the prefix of the keys of those that
do not."""
KEPT_CALLS = 256
"""The number of calls of a stream after which their entries are deleted from the store."""


@dataclass(frozen=True)
class StopRequest:
    """A request for the end of the run."""

    reason: str
    ended: int | None = None
    """The step in which a stream ended; None for a plain stop."""
    has_failed: bool = False
    """True if the run ends without a last checkpoint and without its stages at the end."""


def has_left(store: Store, job_rank: int) -> bool:
    """Returns whether a worker takes part in no further step. Its connections may end from then on."""
    return store.check([f"{LEFT}/{job_rank}"])


class Proposer:
    """The launcher's side. `job_ranks` are those of the workers of components; programs take no part."""

    def __init__(self, store: Store, job_ranks: Sequence[int]) -> None:
        self._store, self._job_ranks = store, tuple(job_ranks)
        self._begun = [f"begun/{job_rank}" for job_rank in job_ranks]
        """The keys of the answers of all workers."""
        self._asks = self._words = 0
        self._proposed = self._has_failed = False
        self._last: int | None = None
        self._saves = 0
        """The number of checkpoints that were requested."""
        self.is_saving = False
        """True if the step of a checkpoint is being agreed."""

    def asked(self) -> StopRequest | None:
        """Returns the next request of a worker, or None. It does not wait."""
        if not self._store.check([f"asked/{self._asks}"]):
            return None
        request = json.loads(self._store.get(f"asked/{self._asks}"))
        self._asks += 1
        return StopRequest(request["reason"], request["ended"])

    def propose(self, asked: StopRequest) -> None:
        """Begins the decision about the last step, and does not wait: it asks every worker which step it has
        begun. If a stream has ended, all workers find the last step alone."""
        self._has_failed = self._has_failed or asked.has_failed
        if asked.ended is None and not self._proposed:
            self._proposed = True
            self._announce("stop", 0)

    def save(self) -> None:
        """Begins the decision about a step after which all workers save, and does not wait. Does nothing
        while another one is made, or once an end is proposed."""
        if not self.is_saving and not self._proposed:
            self.is_saving = True
            self._saves += 1
            self._announce("save", self._saves)

    def _poll_save(self) -> None:
        """Announces the step of a checkpoint. No step is announced if a worker has run its last one: the
        others end after the same one."""
        answers = [f"saves/{self._saves}/{job_rank}" for job_rank in self._job_ranks]
        if self._store.check([LEFT]):
            step = 0
        elif self._store.check(answers):
            step = 1 + max(map(int, self._store.multi_get(answers)))
        else:
            return
        self.is_saving = False
        self._announce("saved", step)

    def poll(self) -> int | None:
        """Returns the agreed last step, or None before there is one. Announces what is decided. It does not
        wait."""
        if self.is_saving:
            self._poll_save()
        if self._proposed and self._last is None and self._store.check(self._begun):
            self._last = 1 + max(map(int, self._store.multi_get(self._begun)), default=0)
            self._announce("failed" if self._has_failed else "last", self._last)
        return self._last

    @property
    def words(self) -> int:
        """The number of announcements so far."""
        return self._words

    def close(self) -> None:
        """Ends the workers' listener threads, whose processes may live on."""
        self._announce("over", 0)

    def _announce(self, what: str, step: int) -> None:
        self._store.set(f"word/{self._words}", json.dumps([what, step]))
        self._words += 1


class StopAgreement:
    """A worker's side: `begin(step)` returns whether that step is part of the run."""

    def __init__(
        self,
        store: Store,
        listener: Store,
        job_rank: int,
    ) -> None:
        """`listener` is a second connection to the same store, for the listener thread."""
        self._store, self._listener, self._job_rank = store, listener, job_rank
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._begun = 0
        self.has_failed = False
        """True if the run ends without a last checkpoint and without its stages at the end. It is known
        before any worker begins the last step."""
        self.last = ENDLESS
        """The last step as far as it is known; `ENDLESS` before that."""
        self.announced = ENDLESS
        """The last step where it is known before any worker begins it, so that all workers see the same in
        that step."""
        self._limit = ENDLESS
        self._awaited: set[str] = set()
        """The decisions for which a worker that has answered waits: `stop`, `save`."""
        self._received = 0
        """The number of announcements of the launcher that were processed."""
        self._cuts: set[int] = set()
        """The steps after which requested checkpoints are saved, from the running step on."""
        threading.Thread(target=self._listen, daemon=True, name="ending").start()

    def is_cut(self, step: int) -> bool:
        """Returns whether a requested checkpoint is saved after a step that this worker has begun."""
        return step in self._cuts

    def plan(self, steps: int, batches: Mapping[str, int | None], sources: Sequence[str]) -> list[int | None]:
        """Agrees on the planned last step. `batches` has the last step of each source that this worker
        reports, None for a stream without a length; `sources` names all sources. `steps` is `run.steps`; 0
        means that the data alone decide.

        Returns the last step of each of `sources`, in their order. Where one is None the run may end
        unannounced.
        """
        for source, steps_of in batches.items():
            self._store.set(f"batches/{source}", json.dumps(steps_of))
        keys = [f"batches/{source}" for source in sources]
        known = [self._awaited_value(key) for key in keys]  # other workers may still be in setup
        planned = min(
            [known_steps for known_steps in known if known_steps is not None] + ([steps] if steps else []),
            default=ENDLESS,
        )
        with self._changed:
            self.last = min(self.last, planned)
            self.announced = min(self.announced, planned)
        return known

    def length_on_first(self, source: str, length: int | None, *, is_first: bool) -> int | None:
        """Returns the length of a source on its first producer; `length` is that on this worker. All
        producers of the source call it."""
        key = f"length/{source}"
        if is_first:
            self._store.set(key, json.dumps(length))
            return length
        found: int | None = self._awaited_value(key)
        return found

    def _awaited_value(self, key: str) -> Any:
        self._store.wait([key], FOREVER)
        return json.loads(self._store.get(key))

    def begin(self, step: int) -> bool:
        """Returns whether this step is part of the run. It waits only while a last step is being agreed."""
        with self._lock:
            while self._limit < step <= self.last:
                self._changed.wait()
            if step <= self.last:
                self._begun = step
            return step <= self.last

    def await_words(self, number: int) -> None:
        """Waits until the first `number` announcements of the launcher are processed. For a worker that
        joins a run."""
        with self._lock:
            while self._received < number:
                self._changed.wait()

    def ask(self, reason: str, ended: int | None = None) -> None:
        """Requests the end of the run from the launcher. It does not wait."""
        number = self._store.add("asks", 1) - 1
        self._store.set(f"asked/{number}", json.dumps({"reason": reason, "ended": ended}))

    def give(self, stream: str, number: int, *, has_data: bool) -> None:
        """Publishes whether a stream had data in its call with this number, for the workers that ask."""
        self._store.set(f"given/{stream}/{number}", json.dumps(has_data))

    def is_given(self, stream: str, number: int, readers: int) -> bool:
        """Returns whether a stream had data in its call with this number. It waits for the call. `readers` is
        the number of workers that ask for each call."""
        key = f"given/{stream}/{number}"
        has_data: bool = self._awaited_value(key)
        if number % KEPT_CALLS == 0 and self._store.add(f"read/{stream}/{number}", 1) == readers:
            for old in range(number - KEPT_CALLS, number):
                self._store.delete_key(f"given/{stream}/{old + 1}")
            self._store.delete_key(f"read/{stream}/{number}")
        return has_data

    def leave(self) -> None:
        """Publishes the last step as this worker's answer to all later stop requests, and that it takes part
        in no further step."""
        self._store.set(f"begun/{self._job_rank}", str(self._begun))
        self._store.set(f"{LEFT}/{self._job_rank}", "")
        self._store.set(LEFT, "")

    def _listen(self) -> None:
        with suppress(StoreLost):  # the launcher has ended, and this process ends with it
            self._listen_to_launcher()

    def _listen_to_launcher(self) -> None:
        for number in count():
            self._listener.wait([f"word/{number}"], FOREVER)
            what, step = json.loads(self._listener.get(f"word/{number}"))
            with self._changed:
                if what == "over":
                    return
                if what in ("stop", "save"):
                    self._limit = self._begun
                    self._awaited.add(what)
                    key = f"begun/{self._job_rank}" if what == "stop" else f"saves/{step}/{self._job_rank}"
                    self._listener.set(key, str(self._begun))
                else:
                    self._decided(what, step)
                self._received = number + 1
                self._changed.notify_all()

    def _decided(self, what: str, step: int) -> None:
        """Takes a step that the launcher has decided. A failure after the planned last step was begun
        changes nothing: some worker may already be saving."""
        if what == "saved":
            self._cuts = {step, *(one for one in self._cuts if one >= self._begun)}
        elif what == "last":
            self.announced = min(self.announced, step)
        elif what == "failed" and step <= self.announced:
            self.announced, self.has_failed = ENDLESS, True
        if what != "saved":
            self.last = min(self.last, step)
        self._awaited.discard("save" if what == "saved" else "stop")
        if not self._awaited:
            self._limit = ENDLESS
