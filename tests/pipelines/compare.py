"""The first difference between a run and the model of its recipe, in one line."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from tests.pipelines.calls import Called, Worker
from tests.pipelines.model import Expected, Saved
from tests.pipelines.run import Ran


def first_difference(expected: Expected, ran: Ran) -> str:
    """Empty if there is none."""
    return next(differences(expected, ran), "")


def differences(expected: Expected, ran: Ran) -> Iterator[str]:
    if ran.last != expected.last:
        yield f"the run ended after step {ran.last}, the model after {expected.last}"
    for worker in expected.called:
        yield from _in_calls(worker, expected, ran.seen.get(worker, ()))
    for step in sorted({*expected.metrics, *ran.metrics}):
        yield from _in_metrics(step, expected.metrics.get(step), ran.metrics.get(step))
    if ran.ended_by.partition(": its best value is ")[0] not in expected.ended_by:
        yield f"the run ended by {ran.ended_by!r}, the model by {sorted(expected.ended_by)}"
    if not equal(list(ran.best), list(expected.best)):
        yield f"the best checkpoints are {ran.best}, in the model {expected.best}"
    yield from _in_checkpoints(expected, ran.saved)


def _in_calls(worker: Worker, expected: Expected, seen: Sequence[Called]) -> Iterator[str]:
    wanted = expected.called[worker]
    if expected.before_end is not None:
        # The calls of the step in which a stream ended come after those of the last step, and before the closing calls.
        count = expected.before_end[worker]
        for called in seen[count:]:
            is_first = (
                called.step == expected.last + 1 and (called.component, called.method) in expected.may_begin
            )
            if called.step > expected.last and not is_first:
                yield f"{worker[0]}:{worker[1]}: {shown(called)}, which is not part of the run"
                return
        closing = [called for called in seen[count:] if called.step <= expected.last]
        wanted = [*wanted[:count], *without_weights(wanted[count:])]
        seen = [*seen[:count], *without_weights(closing)]
    for place in range(max(len(wanted), len(seen))):
        want = wanted[place] if place < len(wanted) else None
        have = seen[place] if place < len(seen) else None
        if want is None or have is None or not same(want, have):
            yield f"{worker[0]}:{worker[1]}: {shown(have)}, the model: {shown(want)}"
            return


def without_weights(calls: Sequence[Called]) -> list[Called]:
    """The calls without loads, and without versions in their batches: a sync may have run in the step of the
    end, too."""
    return [replace(one, arguments=_unversioned(one.arguments)) for one in calls if one.method != "load"]


def _unversioned(value: Any) -> Any:
    if isinstance(value, dict) and "ids" in value:
        return {"ids": value["ids"], "versions": [None] * len(value["ids"])}
    return list(map(_unversioned, value)) if isinstance(value, list) else value


def same(one: Called, other: Called) -> bool:
    is_loaded = one.method in ("load", "resume")  # before the first step, a component has no step
    names = (one.component, one.method) == (other.component, other.method)
    return names and (is_loaded or one.step == other.step) and equal(one.arguments, other.arguments)


def equal(one: Any, other: Any) -> bool:
    """Whether plain data are equal, numbers nearly so."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, float) or isinstance(other, float):
        if one is None or other is None:
            return False
        return math.isclose(one, other, rel_tol=1e-6) or (math.isnan(one) and math.isnan(other))
    return bool(one == other)


def shown(called: Called | None) -> str:
    if called is None:
        return "nothing"
    arguments = ", ".join(map(_argument, called.arguments))
    return f"{called.component}.{called.method}({arguments}) in step {called.step}"


def _argument(value: Any) -> str:
    if isinstance(value, dict) and "ids" in value:
        ids = [".".join(map(str, id)) for id in value["ids"]]
        versions = ["" if version is None else f"@{version}" for version in value["versions"]]
        return "[" + " ".join(id + version for id, version in zip(ids, versions, strict=True)) + "]"
    return "[" + ", ".join(map(_argument, value)) + "]" if isinstance(value, list) else str(value)


def _in_metrics(step: int, wanted: Any, found: Any) -> Iterator[str]:
    if wanted is None or found is None:
        yield f"step {step} has the metrics {found}, in the model {wanted}"
        return
    for name in sorted({*wanted, *found}):
        if name not in wanted or name not in found or not equal(wanted[name], found[name]):
            yield f"step {step}: {name} is {found.get(name, 'missing')}, in the model {wanted.get(name, 'missing')}"


def _in_checkpoints(expected: Expected, saved: Sequence[Saved]) -> Iterator[str]:
    steps, wanted = [one.step for one in saved], [one.step for one in expected.saved]
    if steps != wanted:
        yield f"checkpoints after the steps {steps}, in the model {wanted}"
        return
    for have, want in zip(saved, expected.saved, strict=True):
        if have.given != want.given:
            yield f"step-{have.step} has the positions {have.given}, in the model {want.given}"
        # In a run of processes, states are compared when they are loaded.
        if have.calls and have.calls != want.calls:
            yield f"step-{have.step} has the state {have.calls}, in the model {want.calls}"
