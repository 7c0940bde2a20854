"""The judgement of the run of `doctor --run`, on made-up metrics.

python -m tests.engines.checks.test_paths      regenerates the golden table; read the difference
"""

from __future__ import annotations

from pathlib import Path

import pytest

from meshctl.diagnostics.health import Check
from meshctl.engines.checks.paths import MESHES, MODES, Expected, Row, judge
from meshctl.view.reports.health import table

GOLDEN = Path(__file__).parent / "golden" / "paths.txt"
EXPECTED = Expected(samples=64, ranks=2)
USED = {
    "slice_dp": ("shared_memory",),
    "first": ("shared_memory", "tcp"),
    "tp": ("mixed",),
    "slice": ("shared_memory",),
    "all": ("mixed",),
    "peer": ("shared_memory",),
    "balance": ("mixed",),
    "home": ("shared_memory", "tcp"),
}
OPERATIONS = ("all_reduce", "send_recv")


def row(step: int, **changes: float) -> Row:
    """Returns the metrics of a step. Keys of `changes` have `__` for the dot."""
    found: dict[str, float | None] = {"step": step}
    for mode, metrics in USED.items():
        found |= {f"{mode}.rows": float(EXPECTED.rows(mode)), f"{mode}.wrong": 0.0}
        for metric in metrics:
            found |= {f"{mode}.{metric}": 1.234 * step, f"{mode}.{metric}_wrong": 0.0}
    for stage in MESHES:
        for name in OPERATIONS:
            found |= {f"{stage}.{name}": 0.5 * step, f"{stage}.{name}_wrong": 0.0}
    found |= {"sum.wrong": 0.0, "sync.wrong": 0.0, "sync.sync": 12.345 * step}
    return found | {key.replace("__", "."): value for key, value in changes.items()}


def checks(*rows: Row) -> tuple[Check, ...]:
    return judge(rows, EXPECTED)


CASES = {
    "all is right": checks(row(1), row(2)),
    "tcp changes a value": checks(row(1), row(2, first__wrong=2.0, first__tcp_wrong=2.0)),
    "a rank whose numbers do not count": checks(row(1, tp__wrong=1.0)),
    "rows are lost": checks(row(1), row(2, all__rows=127.0)),
    "a reduced number is wrong": checks(row(1, sum__wrong=1.0), row(2)),
    "weights are wrong": checks(row(1, sync__wrong=1.0), row(2, sync__wrong=2.0)),
    "a collective is wrong": checks(row(1, collectives_two__send_recv_wrong=0.5)),
    "nothing was measured": checks(),
}


def pinned() -> str:
    shown = {
        name: [check for check in found if check.state != "ok"] or found for name, found in CASES.items()
    }
    return "\n".join(f"== {name}\n{table(found)}" for name, found in shown.items())


def test_golden() -> None:
    assert pinned() == GOLDEN.read_text()


@pytest.mark.parametrize("found", CASES.values(), ids=CASES)
def test_each_path_is_there_once_and_problems_have_a_remedy(found: tuple[Check, ...]) -> None:
    assert len({(check.subject, check.name) for check in found}) == len(found)
    assert {check.name for check in found} >= {*MODES, "sum", "weights"}
    assert all((check.state == "ok") == (not check.remedy) for check in found)


if __name__ == "__main__":
    GOLDEN.write_text(pinned())
