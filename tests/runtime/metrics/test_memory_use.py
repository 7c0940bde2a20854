from __future__ import annotations

from pathlib import Path

from meshctl.runtime.metrics.memory_use import memory


def test_memory_is_that_of_this_process() -> None:
    found = memory()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    assert 0.5 < found["resident"] / (int(status["VmRSS"].split()[0]) * 1024) < 2
    assert found["peak"] >= found["resident"]
