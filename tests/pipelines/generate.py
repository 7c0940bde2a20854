"""Random recipes as plain data, with what happens to their runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tests.pipelines.block_draft import add_block
from tests.pipelines.draft import LAYOUTS, Draft
from tests.pipelines.sources import Sources

PROGRAM = str(Path(__file__).parent / "program.py")
METRICS = {
    **dict.fromkeys(("loss", "total", "peak"), ("number", "samples")),
    "logged": ("number",),
    "tick": ("ticks",),
}
"""Endpoint -> the names of its metrics."""
PROGRAMS = {
    "script": {"program": PROGRAM, "args": ["{run_dir}"]},
    "server": {"program": PROGRAM, "args": ["{run_dir}", "serve"], "service": True},
}


@dataclass(frozen=True)
class Resume:
    """A second run, which continues from a checkpoint of the first."""

    more: int
    """How many steps more than the first it has."""
    ranks: dict[str, int]
    """Group -> another number of data ranks; its components are then data-parallel."""
    layouts: dict[str, dict[str, Any]]
    """Component -> another layout on the same ranks."""


@dataclass(frozen=True)
class Scenario:
    recipe: dict[str, Any]
    stop_at: int = 0
    """The step in which a component asks for the end; 0 for never."""
    resume: Resume | None = None


@st.composite
def scenarios(draw: st.DrawFn, max_workers: int = 8, may_have_programs: bool = False) -> Scenario:
    """A scenario with at most `max_workers` workers, and with groups of programs, which run in processes only."""
    counts: dict[str, int] = {}
    for name in draw(st.sampled_from(["a", "ab", "ab", "abc"])):
        left = max_workers - sum(counts.values())
        if left:
            counts[name] = draw(st.integers(1, min(4, left)))
    draft = Draft(draw, counts)
    draft.saves = draft.one_in(2)
    draft.add_source("s0")
    for number in range(1, draw(st.integers(2, 8))):
        kind = draft.pick(["source", "call", "call", "call", "call", "tick", "sync", "block"])
        if kind == "block":
            add_block(draft, f"s{number}")
        else:
            getattr(draft, f"add_{kind}")(f"s{number}")
    names = draft.draw(st.permutations(list(draft.stages))) if draft.one_in(4) else list(draft.stages)
    stop_at = draft.draw(st.integers(1, 3)) if draft.one_in(6) and not streams(draft) else 0
    if stop_at:
        name = draft.pick(list(draft.components))
        draft.components[name]["args"]["stop_at"] = stop_at
    run = run_keys(draft, stop_at)
    workers = [name for name in draft.components if name[:2] in ("w_", "v_")]
    if workers and draft.one_in(6):
        draft.components[draft.pick(workers)]["args"]["nan_at"] = draft.draw(st.integers(1, 4))
        run |= draft.pick([{"on_nan": "ignore"}, {"on_nan": "ignore"}, {"on_nan": "stop"}, {}])
    recipe = {
        "groups": {n: {"ranks": counts[n], "device_type": "cpu"} for n in counts if n in draft.used_groups},
        "components": draft.components,
        "pipeline": {name: draft.stages[name] for name in names},
        "run": run,
    }
    resume = resume_of(draft) if draft.saves else None
    if may_have_programs:
        for name, keys in PROGRAMS.items():
            if draft.one_in(5):
                recipe["groups"][name] = {
                    "ranks": draft.draw(st.integers(1, 2)),
                    "device_type": "cpu",
                    **keys,
                }
    return Scenario(recipe, stop_at, resume)


def streams(draft: Draft) -> bool:
    return any(component["_target_"].endswith("Stream") for component in draft.components.values())


def metrics_of(stages: Mapping[str, Mapping[str, Any]], block: str = "") -> Iterator[str]:
    """The metrics that stages report."""
    for name, stage in stages.items():
        if "repeat" in stage:
            yield from metrics_of(stage["stages"], f"{name}.")
        method = stage.get("call", "").partition(".")[2]
        yield from (f"{block}{name}.{number}" for number in METRICS.get(method, ()))


def run_keys(draft: Draft, stop_at: int) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    sources = Sources(draft.stages, draft.components, epochs=1)
    is_ended_by_data = bool(sources.last_steps(0)) or any(
        sources.is_stream(name) for name in sources.bounding
    )
    if not is_ended_by_data or draft.one_in(2):
        keys["steps"] = draft.draw(st.integers(1, 7))
    if sources.last_steps(0) and draft.one_in(4):
        keys["epochs"] = 2
    if draft.one_in(3):
        keys["checks"] = "all"
    if draft.saves:
        keys["checkpoint"] = {"every": draft.draw(st.integers(0, 4)), "keep": draft.draw(st.integers(1, 3))}
    metrics = list(metrics_of(draft.stages))
    modes = [{}, {"mode": "max"}]
    if metrics and draft.saves and draft.one_in(2):
        keys["checkpoint"]["best"] = {
            "on": draft.pick(metrics),
            **draft.pick(modes),
            **draft.pick([{}, {"keep": 2}]),
        }
    if metrics and not streams(draft) and not stop_at and draft.one_in(4):
        patience = draft.pick([{"patience": 1}, {"patience": 1}, {"patience": 2}, {}])
        keys["stop"] = {"on": draft.pick(metrics), **draft.pick(modes), **patience}
    return keys


def resume_of(draft: Draft) -> Resume:
    changed = draft.pick([None, *draft.used_groups])
    ranks, layout = dict[str, int](), dict[str, Any]()
    if changed and draft.one_in(2):
        ranks = {changed: draft.draw(st.integers(1, 3))}
    elif changed:
        layout = draft.pick(LAYOUTS[draft.groups[changed]])  # one for all, so that samples still find home
    of_group = [name for name, one in draft.components.items() if one["group"] == changed]
    return Resume(draft.draw(st.integers(0, 3)), ranks, dict.fromkeys(of_group, layout) if layout else {})


def resumed(scenario: Scenario, step: int) -> dict[str, Any]:
    """The recipe of the second run, which continues after a step."""
    assert scenario.resume
    recipe, changed = scenario.recipe, scenario.resume.ranks
    groups = {
        n: group | ({"ranks": changed[n]} if n in changed else {}) for n, group in recipe["groups"].items()
    }
    components = {
        name: {
            key: item
            for key, item in component.items()
            if key != "parallel" or component["group"] not in changed
        }
        for name, component in recipe["components"].items()
    }
    for name, layout in scenario.resume.layouts.items():
        components[name]["parallel"] = layout
    run = dict(recipe["run"])
    if "steps" in run:
        run["steps"] = max(run["steps"], step + scenario.resume.more)
    return {**recipe, "groups": groups, "components": components, "run": run}


def overrides(scenario: Scenario, recipe: dict[str, Any]) -> list[str]:
    """The same change of the recipe, as overrides of a command line."""
    assert scenario.resume
    words = [f"groups.{name}.ranks={count}" for name, count in scenario.resume.ranks.items()]
    for name, component in scenario.recipe["components"].items():
        if "parallel" in component and "parallel" not in recipe["components"][name]:
            words.append(f"components.{name}.parallel={{dp_size: auto}}")
    for name, layout in scenario.resume.layouts.items():
        sizes = ", ".join(f"{key}: {as_word(value)}" for key, value in layout.items())
        words.append(f"++components.{name}.parallel={{{sizes}}}")
    return words + ([f"run.steps={recipe['run']['steps']}"] if "steps" in recipe["run"] else [])


def as_word(value: Any) -> str:
    """A size or an order of dims in the grammar of overrides."""
    return f"[{', '.join(value)}]" if isinstance(value, list) else str(value)
