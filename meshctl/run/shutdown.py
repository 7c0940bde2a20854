"""How a run ends: all workers agree on one last step, and end after it.

    planned    after `setup` each source says how many batches it has; the least of these and `run.steps` is
               the last step
    asked      a signal, or a component's `stop`: the launcher asks every worker which step it has begun, and
               makes the next one
               the last. A worker that has answered begins no further step until it is told: a few
               milliseconds
    ended      a stream ran out in step k, unannounced: k - 1 was the last step, and what others began of k is
               dropped

Both sides speak through the launcher's store, under one prefix per attempt. A step costs no message: a
worker's ear is a thread that sleeps in `wait`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Protocol

FOREVER = timedelta(days=100)
ENDLESS = 2**62
"""The last step of a run that only a stop will end."""


class Store(Protocol):
    """What is needed of torch's store."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def add(self, key: str, amount: int, /) -> int: ...
    def check(self, keys: list[str], /) -> bool: ...
    def wait(self, keys: list[str], timeout: timedelta, /) -> None: ...


@dataclass(frozen=True)
class Asked:
    """What somebody asks for."""

    reason: str
    ended: int | None = None
    """The step in which a stream had nothing more; none for a plain stop."""


class Proposer:
    """The launcher's side. Only workers of components have a say; `places` are theirs."""

    def __init__(self, store: Store, places: Sequence[int]) -> None:
        self._store, self._places = store, tuple(places)
        self._asks = self._words = 0
        self._proposed = False
        self._last: int | None = None

    def asked(self) -> Asked | None:
        """The next thing that a worker asked for, if there is one; never waits."""
        if not self._store.check([f"asked/{self._asks}"]):
            return None
        said = json.loads(self._store.get(f"asked/{self._asks}"))
        self._asks += 1
        return Asked(said["reason"], said["ended"])

    def propose(self, asked: Asked) -> None:
        """Asks every worker which step it has begun, or tells them at once where a stream has ended. Returns
        at once."""
        if asked.ended is not None:
            self._tell("ended", asked.ended - 1)
        elif not self._proposed and self._last is None:
            self._proposed = True
            self._say("stop", 0)

    def poll(self) -> int | None:
        """The agreed last step, once there is one; never waits."""
        if (
            self._proposed
            and self._last is None
            and self._store.check([f"begun/{place}" for place in self._places])
        ):
            self._tell(
                "last", 1 + max((int(self._store.get(f"begun/{place}")) for place in self._places), default=0)
            )
        return self._last

    def close(self) -> None:
        """Lets the workers' ears go, where their processes live on."""
        self._say("over", 0)

    def _tell(self, what: str, last: int) -> None:
        if self._last is None or last < self._last:
            self._last = last
            self._say(what, last)

    def _say(self, what: str, step: int) -> None:
        self._store.set(f"word/{self._words}", json.dumps([what, step]))
        self._words += 1


class Ending:
    """A worker's side: `begin(step)` says whether there is such a step."""

    def __init__(
        self,
        store: Store,
        ear: Store,
        place: int,
        places: Sequence[int],
        told: Callable[[], None] = lambda: None,
    ) -> None:
        """`ear` is a second connection to the same store, for a thread that sleeps in its `wait`; `places`
        are all workers'.

        `told` is called on that thread when a last step is told: whoever waits inside a dropped step looks up
        then.
        """
        self._store, self._ear, self._place, self._places, self._told = store, ear, place, tuple(places), told
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._begun = 0
        self._limit = self._last = self._announced = ENDLESS
        threading.Thread(target=self._listen, daemon=True, name="ending").start()

    @property
    def last(self) -> int:
        """The last step, as far as it is known."""
        return self._last

    @property
    def announced(self) -> int:
        """The last step, where it is known before anybody begins it: all workers see the same in that step."""
        return self._announced

    def plan(self, steps: int, batches: Mapping[str, int | None], sources: Sequence[str]) -> list[int | None]:
        """Agrees on the planned last step: `batches` are those of the sources for which this worker speaks,
        `sources` are all.

        Batches are counted in steps; none for a stream that does not know. `steps` 0 means that only the data
        say. Returns what all said: where some stream does not know, the run may end unannounced, and all must
        `settle`.
        """
        for source, steps_of in batches.items():
            self._store.set(f"batches/{source}", json.dumps(steps_of))
        keys = [f"batches/{source}" for source in sources]
        if keys:
            self._store.wait(keys, FOREVER)  # others may take their time to set up
        known = [json.loads(self._store.get(key)) for key in keys]
        planned = min(
            [known_steps for known_steps in known if known_steps is not None] + ([steps] if steps else []),
            default=ENDLESS,
        )
        with self._changed:
            self._last = min(self._last, planned)
            self._announced = min(self._announced, planned)
        return known

    def begin(self, step: int) -> bool:
        """Whether this step is to be run. Waits only in the moment in which a last step is being agreed."""
        with self._lock:
            while self._limit < step <= self._last:
                self._changed.wait()
            if step <= self._last:
                self._begun = step
            return step <= self._last

    def ask(self, reason: str, ended: int | None = None) -> None:
        """Asks the launcher for an end; returns at once."""
        number = self._store.add("asks", 1) - 1
        self._store.set(f"asked/{number}", json.dumps({"reason": reason, "ended": ended}))

    def dropped(self, step: int) -> bool:
        """Whether a step that this worker has begun is one of those that are dropped."""
        return step > self._last

    def settle(self, step: int) -> int:
        """Where a stream may end unannounced: the step after which everybody is done, the least that any
        worker came to."""
        self._store.set(f"reached/{self._place}", str(step))
        keys = [f"reached/{place}" for place in self._places]
        self._store.wait(keys, FOREVER)
        return min(int(self._store.get(key)) for key in keys)

    def leave(self) -> None:
        """After the last step: answers for good, whoever asks later."""
        self._store.set(f"begun/{self._place}", str(self._begun))

    def _listen(self) -> None:
        for number in count():
            self._ear.wait([f"word/{number}"], FOREVER)
            what, step = json.loads(self._ear.get(f"word/{number}"))
            with self._changed:
                if what == "over":
                    return
                if what == "stop":
                    self._limit = self._begun
                    self._ear.set(f"begun/{self._place}", str(self._begun))
                else:
                    self._last = min(self._last, step)
                    self._announced = min(self._announced, step) if what == "last" else self._announced
                    self._limit = ENDLESS
                    self._changed.notify_all()
            self._told()
