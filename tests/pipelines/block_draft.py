"""A random block of stages that is being made, for `draft.Draft`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import lcm
from typing import Any

from hypothesis import strategies as st

from tests.pipelines.draft import Draft, Value, meet


@dataclass
class BlockDraft(Draft):
    """The stages of a block. Its `values` are those of its stages, and those that it may take from outside."""

    outer: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The stages outside."""
    over: str = ""
    input_kinds: tuple[str, ...] = ("one", "one", "pair", "list", "also")

    def rows(self) -> list[str]:
        inner = [name for name in self.stages if self.values[name].kind == "rows"]
        return [*inner, self.over] if self.over else inner

    def has_same_layout(self, stage: str, component: str) -> bool:
        return self.is_like(self.stages.get(stage) or self.outer[stage], component)

    def is_joined_by_user(self, stage: str) -> bool:
        return str(self.stages[stage]["call"]).endswith(".peak") and "collect" not in self.stages[stage]

    def times(self, value: Value) -> dict[str, Any]:
        if self.stages and self.one_in(8):
            return {"after": [self.pick(list(self.stages))]}
        return {}


def add_block(draft: Draft, name: str) -> None:
    """Adds a block that repeats a source until its data end, or minibatches over a value from outside."""
    until = draft.one_in(2)
    over = "" if until else draft.pick(draft.rows())
    if over and draft.one_in(3):
        draft.add_on(f"{name}_groups", over, draft.pick(["twins", "thrice"]))
        over = f"{name}_groups"
    if over and draft.one_in(2):
        draft.add_on(f"{name}_like", over, "take")
    base = Value("rows", f"{name}.p0", passed=("p0",)) if until else draft.values[over]
    values = {
        other: value
        for other, value in draft.values.items()
        if (value.kind in ("numbers", "list") or (value.kind == "rows" and not until))
        and (value.kind != "rows" or value.samples == base.samples)
        and meet(base, value)
    }
    inside = BlockDraft(draft.draw, draft.groups, draft.components, {}, values, outer=draft.stages, over=over)
    first = 0
    if until:
        inside.stages["p0"], base.columns = block_source(inside)
        inside.values["p0"] = base
        first = 1
    for number in range(first, first + draft.pick([1, 2, 3, 4])):
        inside.add_call(f"p{number}")
    names = draft.draw(st.permutations(list(inside.stages))) if draft.one_in(4) else list(inside.stages)
    last = inside.values[names[-1]]
    if inside.is_joined_by_user(names[-1]):
        last.kind = "metric"  # how it joins passes is known to nobody
    passed = tuple(one for one in last.passed if one in draft.stages)
    period = lcm(*(inside.values[name].period for name in inside.stages))
    whens = [inside.values[name].when for name in inside.stages if inside.values[name].when]
    samples = last.samples if over and last.samples == base.samples else f"{name}.{names[-1]}"
    value = replace(last, samples=samples, passed=passed, period=period, when=whens[0] if whens else "")
    repeat: dict[str, Any] = {"until": "p0"}
    if over:
        repeat = {"over": over, "size": draft.pick([1, 2, 3, 5, 50]), "times": draft.pick([1, 1, 2, 3])}
        repeat |= draft.pick([{}, {"seed": 3}])
    times = draft.times(value)
    draft.stages[name] = {"repeat": repeat, "stages": {one: inside.stages[one] for one in names}, **times}
    draft.values[f"{name}.{names[-1]}"] = value
    if draft.one_in(2):
        add_consumer(draft, f"{name}_after", f"{name}.{names[-1]}")


def add_consumer(draft: Draft, name: str, taken: str) -> None:
    """Adds a stage that takes the value of a block."""
    value = draft.values[taken]
    leads = [one for one in draft.rows() if meet(draft.values[one], value)]
    if value.kind == "rows":
        draft.add_on(name, taken, "take")
    elif value.kind in ("numbers", "list") and leads:
        lead = draft.pick(leads)
        draft.add_on(name, lead, "pair")
        draft.stages[name]["in"] = {"one": lead, "other": taken}
        draft.values[name] = draft.merged(draft.values[name], value, draft.values[name].columns)


def block_source(draft: Draft) -> tuple[dict[str, Any], frozenset[str]]:
    """The source of a block, and its column."""
    group, kind = draft.pick(list(draft.groups)), draft.pick(["Sized", "Sized", "Stream"])
    length = draft.pick(range(1, 25))
    component = draft.component(f"held_{kind.lower()}_{group}_{draft.pick('xy')}", group, kind, length=length)
    stage: dict[str, Any] = {"call": f"{component}.next", "samples": draft.pick(range(4, 10))}
    if draft.one_in(8):
        stage["execute"] = "first"
    return stage, frozenset({component})
