"""Components of a run that is restarted: the sampler is killed once, and rank 1 of the trainer twice."""

import os
import signal
from pathlib import Path

from meshctl import Batch, Component, endpoint

FOLDER = Path(__file__).parent


class Sampler(Component):
    @endpoint
    def sample(self, batch: Batch) -> Batch:
        if self.step == 2:
            die(FOLDER / "sampler", times=1)
        return batch


class Trainer(Component):
    def setup(self) -> None:
        self.updates = 0

    @endpoint(collect="mean")
    def update(self, batch: Batch) -> dict[str, float]:
        if self.step == 4 and self.rank == 1:
            die(FOLDER / "trainer", times=2)
        self.updates += 1
        return {"updates": float(self.updates)}

    def state_dict(self) -> dict[str, int]:
        return {"updates": self.updates}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.updates = state["updates"]


def die(deaths: Path, times: int) -> None:
    """Kills this process, unless that has happened so many times."""
    count = len(deaths.read_text()) if deaths.exists() else 0
    if count < times:
        deaths.write_text("x" * (count + 1))
        os.kill(os.getpid(), signal.SIGKILL)
