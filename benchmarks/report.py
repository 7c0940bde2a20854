"""Measures `meshctl report` for a run of 64 workers and 100,000 steps, and the size of its page.

    python benchmarks/report.py [--workers 64] [--steps 100000] [--rounds 3]

The run directory is made by the writers of meshctl: `folded` for the events of old steps,
`Journal` for those of the newest ones (three files of 1 MiB for each worker), the rows of eight metrics, and
the observer that keeps `state.json`. The command is started as a user does. Medians of several rounds count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.watching import MadeRun, measured
from meshctl.run import clock
from meshctl.run.directory import write_whole
from meshctl.run.event_folding import KEPT_SEGMENTS, folded
from meshctl.run.events import SEGMENT_BYTES, Event, folded_name

GOALS = {"seconds": 10.0, "megabytes": 5.0}
LINE_BYTES = 190
"""About the size of a `step` event."""


class LongRun(MadeRun):
    """A run whose old steps are folded."""

    def __init__(self, folder: Path, workers: int, steps: int) -> None:
        self._began_at, self._step = time.time() - steps, 0
        clock.now = lambda: self._began_at + self._step  # a step a second
        self._old = max(0, steps - (KEPT_SEGMENTS + 1) * SEGMENT_BYTES // LINE_BYTES)
        super().__init__(folder, workers)
        while self._step < steps:
            if self._step < self._old:
                self._step += 1
                self.write_row()
            else:
                self.step()

    def prepare(self) -> None:
        for group, stage in (("one", "batch"), ("two", "total")):
            steps = list[Event]()
            for step in range(1, self._old + 1):
                value = {
                    "seconds": 1.0,
                    "stages": {stage: 0.5 + step % 9 / 100},
                    "waits": {stage: 0.1},
                    "routes": {},
                }
                steps.append(Event("step", group, 0, step, value=value, time=self._began_at + step))
            events, _ = folded((), steps)
            for rank in range(self.plan.group(group).workers):
                texts = (json.dumps(vars(replace(event, rank=rank))) + "\n" for event in events)
                write_whole(self.run.events / folded_name(f"{group}-{rank}", 9), "".join(texts))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = LongRun(folder, args.workers, args.steps)
        made.end()
        time.sleep(1)
        rounds = [measured(folder, "report", "-o", "page.html") for _ in range(args.rounds)]
        size = (folder / "page.html").stat().st_size / 1e6
    seconds = statistics.median(one.seconds for one in rounds)
    memory = max(one.megabytes for one in rounds)
    cpu = statistics.median(one.cpu for one in rounds)
    cases = [
        {
            "what": "report",
            "value": round(seconds, 2),
            "goal": GOALS["seconds"],
            "ok": seconds <= GOALS["seconds"],
        },
        {
            "what": "MB of the page",
            "value": round(size, 2),
            "goal": GOALS["megabytes"],
            "ok": size <= GOALS["megabytes"],
        },
    ]
    cases[0] |= {"cpu": round(cpu, 2), "megabytes": round(memory, 1)}
    for case in cases:
        print(f"{case['what']:<20} {case['value']:>8} {case['goal']:>6}")
    first, second = cases
    print(
        json.dumps({"name": "report", **first, "ok": all(case["ok"] for case in cases), "others": [second]})
    )


if __name__ == "__main__":
    main()
