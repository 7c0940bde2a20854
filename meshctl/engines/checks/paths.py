"""Judges the metrics of `components/paths.yaml`, the run of `doctor --run`: whether every path brought the
right values, and how fast it was.

    shared memory
      ok       slice_dp        2.41 GB/s
      failure  balance         3 rows are wrong
                               -> ...
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from meshctl.dataclass import dataclass
from meshctl.diagnostics.health import Check
from meshctl.engines.checks.requirements import Finding, failure, ok
from meshctl.text.english import counted

Row = Mapping[str, float | None]
"""A row of `metrics.jsonl`."""
TRANSPORTS = {
    "shared_memory": "shared memory",
    "tcp": "tcp",
    "cuda": "between devices",
    "mixed": "several transports",
}
"""Metric of `Receiver.take` -> the subject of its checks."""
MODES = ("slice_dp", "first", "tp", "slice", "all", "peer", "balance", "home")
"""The stages that receive rows."""
MESHES = {"collectives_one": "collectives of one", "collectives_two": "collectives of two"}
"""The stages that call collectives -> the subject of their checks."""
WRONG = "_wrong"
ADVICE = {
    "shared memory": "look for a sandbox that changes memfd or unix sockets, and test the memory",
    "tcp": "look for a proxy, a filter or a sandbox on the loopback interface",
    "between devices": "compare with MESHCTL_DEVICES=cpu; look at nvidia-smi topo -m, ACS and IOMMU settings",
}
"""Subject -> what to try if its rows are wrong."""
OTHER_ADVICE = "report it with the run directory, which is kept"


@dataclass(frozen=True)
class Expected:
    """The numbers of rows that arrive in each step."""

    samples: int
    ranks: int
    """The workers of the group that receives."""

    def rows(self, mode: str) -> int:
        return self.samples * self.ranks if mode in ("tp", "all") else self.samples


def judge(rows: Sequence[Row], expected: Expected, title: str = "") -> tuple[Check, ...]:
    """Returns a check for each path. `rows` are those of all steps, and speeds are the best of them. `title`
    precedes each subject."""
    found: dict[str, list[Finding]] = {subject: [] for subject in TRANSPORTS.values()}
    for mode in MODES:
        for subject, finding in _mode(rows, mode, expected.rows(mode)):
            found[subject].append(finding)
    found["values"] = [_stage(rows, "sum", "sum"), _stage(rows, "sync", "weights", "sync")]
    for stage, subject in MESHES.items():
        found[subject] = list(_collectives(rows, stage))
    return tuple(
        finding.check(f"{title}{subject}") for subject, findings in found.items() for finding in findings
    )


def _mode(rows: Sequence[Row], mode: str, count: int) -> Iterator[tuple[str, Finding]]:
    """Yields the finding about a mode for each transport that it used. `count` is the number of rows that
    must arrive in a step."""
    used = [metric for metric in TRANSPORTS if _values(rows, f"{mode}.{metric}")]
    if not used:
        yield TRANSPORTS["mixed"], failure(mode, "nothing was received", OTHER_ADVICE)
    problem = _problem(rows, mode, count)
    is_known = any(_is_wrong(rows, mode, metric) for metric in used)
    for metric in used:
        subject = TRANSPORTS[metric]
        if problem and (not is_known or _is_wrong(rows, mode, metric)):
            yield subject, failure(mode, problem, ADVICE.get(subject, OTHER_ADVICE))
        else:
            yield subject, ok(mode, _speed(rows, f"{mode}.{metric}"))


def _is_wrong(rows: Sequence[Row], mode: str, metric: str) -> bool:
    """Returns whether rows that came by a transport were wrong, on a rank whose metrics count."""
    return any(_values(rows, f"{mode}.{metric}{WRONG}"))


def _problem(rows: Sequence[Row], mode: str, count: int) -> str:
    """Returns what is wrong with the rows on all ranks; empty for nothing."""
    received, wrong = _values(rows, f"{mode}.rows"), int(sum(_values(rows, f"{mode}.wrong")))
    if set(received) != {float(count)}:
        numbers = ", ".join(f"{number:.0f}" for number in received)
        return f"{numbers} rows arrived in the steps, not {count} in each"
    return f"{wrong} of {counted(count * len(rows), 'row')} arrived with wrong values" if wrong else ""


def _stage(rows: Sequence[Row], stage: str, name: str, speed: str = "") -> Finding:
    """Returns the finding about a stage that compares numbers or weights."""
    wrong = _values(rows, f"{stage}.wrong")
    if not wrong or any(wrong):
        found = (
            f"wrong in {sum(map(bool, wrong))} of {counted(len(rows), 'step')}"
            if wrong
            else "was not compared"
        )
        return failure(name, found, OTHER_ADVICE)
    return ok(name, _speed(rows, f"{stage}.{speed}") if speed else "right")


def _collectives(rows: Sequence[Row], stage: str) -> Iterator[Finding]:
    suffix, start = WRONG, f"{stage}."
    names = [key for key in (rows[0] if rows else {}) if key.startswith(start) and key.endswith(suffix)]
    if not names:
        yield failure("all", "were not called", OTHER_ADVICE)
    for key in names:
        name = key.removeprefix(start).removesuffix(suffix)
        if any(_values(rows, key)):
            advice = "try it under plain torchrun: the library of the process group returns wrong values"
            yield failure(
                name, f"wrong in {sum(map(bool, _values(rows, key)))} of {counted(len(rows), 'step')}", advice
            )
        else:
            yield ok(name, _speed(rows, f"{start}{name}"))


def _values(rows: Sequence[Row], key: str) -> list[float]:
    return [value for row in rows if (value := row.get(key)) is not None]


def _speed(rows: Sequence[Row], key: str) -> str:
    """Returns the best speed of all steps."""
    best = max(_values(rows, key), default=0.0)
    return f"{best:.3g} GB/s"
