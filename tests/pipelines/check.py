"""The property of random pipelines, for one scenario: what happens in a run is what the model of its recipe
does, also in a second run that continues from a checkpoint of the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hypothesis import event, note

from meshctl.recipe.compose.yaml_scalars import dump
from tests.pipelines.compare import first_difference
from tests.pipelines.generate import Scenario, overrides, resumed
from tests.pipelines.judged import Rows, WrongMetric, best_of, kept, stopped
from tests.pipelines.launcher import launch
from tests.pipelines.model import Expected, Model, Saved
from tests.pipelines.run import Ran, in_threads, read
from tests.pipelines.shares import Fault
from tests.pipelines.sources import ENDLESS


def check_in_threads(scenario: Scenario, file: Path, nodes: int = 0) -> None:
    first = _in_threads(scenario, scenario.recipe, file, None, nodes=nodes)
    if first and scenario.resume and first.saved:
        start = first.saved[len(first.saved) // 2]
        event("continues from a checkpoint")
        before = {step: row for step, row in first.metrics.items() if step <= start.step}
        second = resumed(scenario, start.step)
        if not is_over(second, before):
            _in_threads(scenario, second, file, start, before, nodes)


def is_over(recipe: Mapping[str, Any], before: Rows) -> bool:
    """Whether `run.stop` has ended the run before a checkpoint, by the metrics up to it."""
    return "stop" in recipe["run"] and bool(stopped(recipe["run"]["stop"], before))


def _in_threads(
    scenario: Scenario,
    recipe: Mapping[str, Any],
    file: Path,
    start: Saved | None,
    before: Rows = MappingProxyType({}),
    nodes: int = 0,
) -> Ran | None:
    note(f"{dump(recipe)}\n{start or ''}")
    plan, report = read(recipe, file)
    errors = [f"{one.code} {one.message}" for one in report.errors]
    ran = in_threads(plan, start, before, nodes) if plan else Ran(fault="; ".join(errors))
    return ran if compared(scenario, recipe, ran, start, before=before) else None


def check_in_processes(scenario: Scenario, folder: Path) -> None:
    recipe, file = scenario.recipe, folder / "recipe.yaml"
    note(dump(recipe))
    file.write_text(dump(recipe), encoding="utf-8")
    ran = launch(folder, file)
    expected = compared(scenario, recipe, ran, None)
    is_asked_to_end = bool(scenario.stop_at) or "stop" in recipe["run"]
    if expected and ran.folder and not is_asked_to_end:
        check_programs(recipe, ran.folder)
    if not expected or not scenario.resume or not ran.saved or not ran.folder:
        return
    second = resumed(scenario, ran.last)
    if second["run"].get("steps", ENDLESS) <= ran.last or is_over(second, expected.rows):
        return
    event("continues from a checkpoint")
    note(" ".join(overrides(scenario, second)))
    again = launch(folder, ran.folder, overrides(scenario, second))
    loaded = loaded_states(again)
    start = replace(ran.saved[-1], calls={name: only(states) for name, states in loaded.items()})
    if not again.fault:
        assert start.calls == expected.saved[-1].calls, f"the states {start.calls} were loaded"
    rows = {step: row for step, row in again.metrics.items() if step > start.step}
    compared(scenario, second, replace(again, metrics=rows), start, expected.rows, ran.saved)


def check_programs(recipe: Mapping[str, Any], folder: Path) -> None:
    """Each rank of a program has run to its end. Where a component or a metric asks for the end, programs are
    terminated, too."""
    ranks = recipe["groups"]["script"]["ranks"] if "script" in recipe["groups"] else 0
    found = sorted(path.name for path in folder.glob("program-*"))
    assert found == [f"program-{rank}" for rank in range(ranks)], f"programs ran: {found}"


def loaded_states(ran: Ran) -> dict[str, set[int]]:
    """Component -> the states that its ranks loaded."""
    found: dict[str, set[int]] = {}
    for called in (called for some in ran.seen.values() for called in some if called.method == "resume"):
        found.setdefault(called.component, set()).add(called.arguments[0])
    return found


def only(states: set[int]) -> int:
    [state] = states
    return state


def compared(
    scenario: Scenario,
    recipe: Mapping[str, Any],
    ran: Ran,
    start: Saved | None,
    before: Rows = MappingProxyType({}),
    earlier: Sequence[Saved] = (),
) -> Expected | None:
    """Compares a run with the model; None for a run that had to fail. `before` are the metrics up to the
    checkpoint from which it continues, and `earlier` the checkpoints that are still there."""
    may_stop = bool(scenario.stop_at) or "stop" in recipe["run"]
    last = ran.last if may_stop and not ran.fault else ENDLESS
    try:
        expected = Model(recipe, ran.seen, last, before).run(start)
    except WrongMetric as wrong:
        event("a metric is not a number")
        assert ran.fault, f"the run did not fail, the model: {wrong}"
        is_named = any(text in ran.fault for text in wrong.texts)
        assert is_named or fails_anyhow(recipe, ran, start), f"{ran.fault}, the model: {wrong}"
        return None
    except Fault as fault:
        event("has to fail")
        assert ran.fault, f"the run did not fail, the model: {fault}"
        return None
    if expected.may_fail and ran.fault:
        event("may fail")
        return None
    assert not ran.fault, f"the run failed: {ran.fault}"
    if ran.keeps:
        every = {one.step: one for one in (*earlier, *expected.saved)}
        steps = kept(recipe["run"]["checkpoint"], list(every), expected.rows)
        expected.saved = [every[step] for step in steps]
        if "best" in recipe["run"]["checkpoint"]:
            expected.best = best_of(recipe["run"]["checkpoint"]["best"], steps, expected.rows)
    difference = first_difference(expected, ran)
    assert not difference, difference
    event("runs")
    return expected


def fails_anyhow(recipe: Mapping[str, Any], ran: Ran, start: Saved | None) -> bool:
    """Whether a run fails that goes on after a metric that is not a number: the groups that run ahead may fail
    before others have reported the number."""
    try:
        Model({**recipe, "run": {**recipe["run"], "on_nan": "ignore"}}, ran.seen).run(start)
    except Fault:
        return True
    return False
