"""Examines a machine. All topics are measured at the same time, each in a child process with a time limit.

checks = examine(Requirements(runs="runs"))      # never raises, leaves no process and no file behind
checks = preflight(requirements)                 # what `launch` checks: in this process, without waiting
checks = problems(measured_quickly(requirements), requirements)     # the same, measured on another machine
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from functools import partial
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.diagnostics.health import Check
from meshctl.engines.checks import clock, devices, disk, limits, memory, network, versions
from meshctl.engines.checks.fork import in_fork
from meshctl.engines.checks.probe import Answer, Probe, in_one_line
from meshctl.engines.checks.requirements import Finding, Requirements

BUG = "this is a bug in meshctl; the machine itself may be fine"
BLOCKED_S = 5.0
"""Time limit of a topic that may block."""
UNKNOWN = "try again; `meshctl doctor` starts a child for each topic, which did not answer"


@dataclass(frozen=True)
class Topic:
    facts: Callable[..., Any]
    """The dataclass of facts. The function `measure` of the topic's module returns its fields as plain
    data."""
    judge: Callable[[Any, Requirements], Iterator[Finding]]
    seconds: float
    """The time limit of `measure`."""
    quickly: Callable[[Requirements], dict[str, Any]] | None = None
    """Returns facts within milliseconds, in this process; None for a topic that `launch` leaves out."""
    may_block: bool = False
    """True if `quickly` may never return, so that it is called in a fork."""
    clean: Callable[[Requirements], None] = lambda requirements: None
    """Removes the files that `measure` leaves behind if it is killed."""

    @property
    def judges_errors(self) -> bool:
        """True if the facts have a field `error`, so that `judge` reports a failed measurement itself."""
        return any(field.name == "error" for field in fields(self.facts))  # type: ignore[arg-type]


TOPICS: Mapping[str, Topic] = {
    "versions": Topic(versions.Facts, versions.judge, versions.SECONDS, versions.measure_quickly),
    "devices": Topic(devices.Facts, devices.judge, devices.SECONDS, devices.measure_quickly),
    "network": Topic(network.Facts, network.judge, network.SECONDS, lambda _: network.measure({})),
    "memory": Topic(memory.Facts, memory.judge, 10.0, lambda _: memory.measure({})),
    "limits": Topic(limits.Facts, limits.judge, 10.0, lambda _: limits.measure({})),
    "disk": Topic(disk.Facts, disk.judge, disk.SECONDS, disk.measure_quickly, True, disk.clean),
    "clock": Topic(clock.Facts, clock.judge, 10.0),
}
"""Subject -> topic, in the order of the report."""


def examine(requirements: Requirements) -> tuple[Check, ...]:
    """Returns the checks of all topics in the order of the table."""
    probes = dict[str, Probe]()
    try:
        for subject, topic in TOPICS.items():
            function = f"meshctl.engines.checks.{subject}:measure"
            probes[subject] = Probe(function, [asdict(requirements)], topic.seconds)
        return tuple(
            check
            for subject, probe in probes.items()
            for check in checks_of(subject, TOPICS[subject], probe.answer(), requirements)
        )
    finally:
        for subject, probe in probes.items():
            probe.close()
            if not probe.has_answered:
                TOPICS[subject].clean(requirements)


def preflight(requirements: Requirements) -> tuple[Check, ...]:
    """Returns the checks of a recipe that fail, and its warnings, without waiting for a disk that does not
    answer."""
    return problems(measured_quickly(requirements), requirements)


def measured_quickly(requirements: Requirements) -> dict[str, list[Any]]:
    """Returns the facts that `launch` checks as plain data: subject -> its facts, or None and the reason why
    they could not be measured."""
    found = dict[str, list[Any]]()
    for subject, topic in TOPICS.items():
        if topic.quickly is not None:
            try:
                found[subject] = [_facts_at_launch(topic.quickly, topic.may_block, requirements), ""]
            except Exception as error:  # a bug in a check prevents no launch
                found[subject] = [None, in_one_line(error)]
    return found


def problems(measured: Mapping[str, Sequence[Any]], requirements: Requirements) -> tuple[Check, ...]:
    """Returns the checks that fail by the facts of `measured_quickly`, perhaps those of another machine, and
    the warnings about a need of the recipe. A topic that could not be examined is a warning."""
    found = list[Check]()
    for subject, (facts, error) in measured.items():
        try:
            if facts is None:
                raise ValueError(error)
            findings = list(TOPICS[subject].judge(TOPICS[subject].facts(**facts), requirements))
        except Exception as wrong:
            found.append(_unexamined(subject, error or in_one_line(wrong), BUG))
            continue
        shown = [one for one in findings if one.state == "failure" or _is_shown(one)]
        found += [one.check(subject) for one in shown]
    return tuple(found)


def _facts_at_launch(
    quickly: Callable[[Requirements], dict[str, Any]], may_block: bool, requirements: Requirements
) -> dict[str, Any]:
    if not may_block:
        return quickly(requirements)
    try:
        found: dict[str, Any] = in_fork(partial(quickly, requirements), BLOCKED_S)
    except TimeoutError as error:
        return {"error": str(error)}
    return found


def _is_shown(finding: Finding) -> bool:
    return finding.state == "warning" and finding.is_of_recipe


def checks_of(subject: str, topic: Topic, answer: Answer, requirements: Requirements) -> tuple[Check, ...]:
    """Returns the checks of one topic. If `judge` fails on unexpected facts, the other topics are still
    reported."""
    if answer.value is None and not topic.judges_errors:
        return (_unexamined(subject, answer.error, UNKNOWN),)
    try:
        facts = topic.facts(error=answer.error) if answer.value is None else topic.facts(**answer.value)
        return tuple(finding.check(subject) for finding in topic.judge(facts, requirements))
    except Exception as error:
        return (_unexamined(subject, in_one_line(error), BUG),)


def _unexamined(subject: str, error: str, remedy: str) -> Check:
    return Check(subject, "all of it", "warning", f"could not be examined: {error}", remedy)
