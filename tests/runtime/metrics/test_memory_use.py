from __future__ import annotations

from pathlib import Path

from meshctl.run.events import Journal, events_of
from meshctl.runtime.metrics.memory_use import MOST_S, MemoryUse, memory


def test_memory_is_that_of_this_process() -> None:
    found = memory()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    assert 0.5 < found["resident"] / (int(status["VmRSS"].split()[0]) * 1024) < 2
    assert found["peak"] >= found["resident"]


def test_a_long_run_has_few_events(tmp_path: Path) -> None:
    path = tmp_path / "train-0.jsonl"
    use = MemoryUse(Journal(path, "train", 0))
    begun = use._next
    for second in range(100_000):
        use.report(second, begun + second)
    steps = [event.step or 0 for event in events_of(path)]
    assert steps[:3] == [0, 1, 2] and len(steps) < 4000
    assert steps[-1] - steps[-2] == MOST_S
