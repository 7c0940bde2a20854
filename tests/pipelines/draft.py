"""A random recipe that is being made: its components are those of `parts.py`, its stages fit together."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import lcm
from typing import Any

from hypothesis import strategies as st

PARTS = "tests.pipelines.parts"
ORDER = {"order": ["tp", "cp", "fsdp", "dp", "pp"]}
LAYOUTS: dict[int, list[dict[str, Any]]] = {
    1: [{}],
    2: [{}, {"dp_size": 2}, {"fsdp_size": 2}, {"tp_size": 2}, {"pp_size": 2}, {"cp_size": 2},
        {"ulysses_size": 2}],
    3: [{}, {"fsdp_size": 3}, {"tp_size": 3}, {"ulysses_size": 3}],
    4: [{}, {"tp_size": 2}, {"fsdp_size": 2}, {"pp_size": 2}, {"fsdp_size": 2, "tp_size": 2},
        {"pp_size": 2, "tp_size": 2}, {"pp_size": 2, "fsdp_size": 2}, {"tp_size": 4},
        {"cp_size": 2, "fsdp_size": 2}, {"fsdp_size": 2, "ulysses_size": 2}, {"ulysses_size": 2},
        {"fsdp_size": 4, "ulysses_size": 2}, {"tp_size": 2, "fsdp_size": 2} | ORDER,
        {"pp_size": 2, "fsdp_size": 2} | ORDER, {"ulysses_size": 2, "fsdp_size": 2} | ORDER],
}  # fmt: skip
"""Number of workers -> layouts; `dp_size` is what they leave."""
ROWS = ["take", "take", "same", "reverse", "thrice", "twins", "drop", "parts", "logged", "spread"]
"""Endpoints of one batch that return a batch."""
NUMBERS = ["loss", "total", "peak"]
WIDE = 600
"""The width of columns that do not fit into a message."""


@dataclass
class Value:
    """What the generator knows of a stage's value."""

    kind: str
    """`rows`, `numbers` or `list`."""
    samples: object = None
    """Equal for values of the same samples."""
    columns: frozenset[str] = frozenset()
    period: int = 1
    when: str = ""
    passed: tuple[str, ...] = ()
    """The stages from which these samples come."""


@dataclass
class Draft:
    """A recipe that is being made."""

    draw: st.DrawFn
    groups: dict[str, int]
    components: dict[str, dict[str, Any]] = field(default_factory=dict)
    stages: dict[str, dict[str, Any]] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    saves: bool = False
    input_kinds: tuple[str, ...] = ("one", "one", "one", "pair", "list", "also")

    def pick(self, options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def one_in(self, count: int) -> bool:
        return self.draw(st.integers(1, count)) == count

    def component(self, name: str, group: str, target: str, **args: Any) -> str:
        if name not in self.components:
            parallel = self.pick(LAYOUTS[self.groups[group]])
            made = {"_target_": f"{PARTS}.{target}", "group": group, "args": {"column": name, **args}}
            if self.one_in(4):
                made["args"]["width"] = WIDE
            self.components[name] = made | ({"parallel": parallel} if parallel else {})
        return name

    def worker(self) -> str:
        group, place = self.pick(list(self.groups)), self.pick("wv")
        kind = self.pick(["Worker", "Trainer"])
        return self.component(f"{place}_{group}", group, kind, keep=self.draw(st.integers(1, 4)))

    @property
    def used_groups(self) -> list[str]:
        return [name for name in self.groups if name in {c["group"] for c in self.components.values()}]

    def is_trainer(self, component: str) -> bool:
        return bool(self.components[component]["_target_"].endswith("Trainer"))

    def rows(self) -> list[str]:
        return [name for name, value in self.values.items() if value.kind == "rows"]

    # Stages

    def add_source(self, name: str) -> None:
        group = self.pick(list(self.groups))
        kind = self.pick(["Endless", "Sized", "Sized", "Stream"])
        args = {} if kind == "Endless" else {"length": self.draw(st.integers(1, 24))}
        component = self.component(f"{kind.lower()}_{group}_{self.pick('xy')}", group, kind, **args)
        stage: dict[str, Any] = {"call": f"{component}.next", "samples": self.draw(st.integers(4, 9))}
        times = self.pick(
            [
                {},
                {},
                {},
                {"every": 2},
                {"every": 3},
                {"when": "end"},
                {"ends_run": False},
                {"ends_run": True},
                {"every": 2, "ends_run": True},
                {"every": 2, "ends_run": False},
            ]
        )
        if self.components[component]["_target_"].endswith("Stream") and times:
            times = {"ends_run": True, **({"every": 2} if "every" in times else {})}
        stage |= times
        if self.one_in(8):
            stage["execute"] = "first"
        if self.one_in(10):
            stage["collect"] = self.pick(["first", "last_pp_first"])
        self.stages[name] = stage
        columns = frozenset({self.components[component]["args"]["column"]})
        self.values[name] = Value(
            "rows", name, columns, times.get("every", 1), times.get("when", ""), (name,)
        )

    def add_call(self, name: str) -> None:
        component, first = self.worker(), self.pick(self.rows())
        given, method, value = self.inputs(first)
        if method == "":
            method = self.pick([*ROWS, *NUMBERS, *NUMBERS])
        stage: dict[str, Any] = {"call": f"{component}.{method}", "in": given}
        if method == "spread":
            stage |= {"dispatch": {"allow_empty": True}}
        else:
            stage |= self.modes(component, value, is_single=given == first)
        lossless = (
            not {"execute", "dispatch"} & set(stage)
            or stage.get("dispatch", {}).get("mode", "slice_dp") == "slice_dp"
        )
        value = Value(
            "rows",
            value.samples if lossless else name,
            value.columns,
            value.period,
            value.when,
            (*value.passed, name),
        )
        if method in ("take", "pair", "twins", "spread"):
            value.columns = frozenset({component})
        if method in ("thrice", "twins", "drop"):
            value.samples = name
        if method in NUMBERS:
            value.kind = "numbers"
            if self.one_in(2):
                stage["collect"] = self.pick(
                    ["mean", "sum", "first", "last_pp_first", "none", "last_pp", "flatten"]
                )
        elif self.one_in(8):
            stage["collect"] = self.pick(["first", "last_pp_first", "none", "last_pp"])
            value.samples = name
        if stage.get("collect") in ("none", "last_pp"):
            value.kind = "list"
        if stage.get("collect") == "flatten" and value.kind == "numbers":
            value.kind = "metric"
        stage |= self.times(value)
        self.stages[name], self.values[name] = stage, value

    def add_on(self, name: str, first: str, method: str) -> None:
        """Adds a stage that calls `method` with a batch, in the steps of the batch."""
        component, value = self.worker(), self.values[first]
        self.stages[name] = {"call": f"{component}.{method}", "in": first, "dispatch": {"allow_empty": True}}
        columns = value.columns if method == "thrice" else frozenset({component})
        samples = name if method in ("thrice", "twins") else value.samples
        self.values[name] = replace(value, columns=columns, samples=samples, passed=(*value.passed, name))

    def inputs(self, first: str) -> tuple[Any, str, Value]:
        """What a stage takes, the method where only one fits, and the value of the first input."""
        value = self.values[first]
        at_times = [n for n, v in self.values.items() if n != first and v.kind != "metric" and meet(value, v)]
        alike = [
            n for n in at_times if self.values[n].kind == "rows" and self.values[n].samples == value.samples
        ]
        apart = [n for n in alike if not self.values[n].columns & value.columns]
        others = [n for n in at_times if self.values[n].kind in ("numbers", "list")]
        kind = self.pick(self.input_kinds)
        if kind == "list" and apart:
            second = self.pick(apart)
            return (
                [first, second],
                "",
                self.merged(value, self.values[second], value.columns | self.values[second].columns),
            )
        if kind == "pair" and alike:
            second = self.pick(alike)
            item: Any = {"from": second, "dispatch": "all"} if self.one_in(3) else second
            return (
                {"one": first, "other": item},
                "pair",
                self.merged(value, self.values[second], value.columns),
            )
        if kind == "also" and others:
            second = self.pick(others)
            return (
                {"one": first, "other": second},
                "pair",
                self.merged(value, self.values[second], value.columns),
            )
        return first, "", value

    def merged(self, one: Value, other: Value, columns: frozenset[str]) -> Value:
        return Value(
            one.kind, one.samples, columns, lcm(one.period, other.period), one.when or other.when, one.passed
        )

    def modes(self, component: str, value: Value, is_single: bool) -> dict[str, Any]:
        stage: dict[str, Any] = {}
        dispatch: dict[str, Any] = {} if self.one_in(4) else {"allow_empty": True}
        if self.one_in(3):
            dispatch["mode"] = self.pick(["slice_dp", "slice", "all"])
        if dispatch.get("mode") != "all" and self.one_in(4):
            dispatch |= self.pick(
                [{"balance": "tokens"}, {"balance": "tokens", "equal_counts": True}, {"split_groups": True}]
            )
        homes = [n for n in value.passed if self.has_same_layout(n, component)]
        if homes and is_single and not dispatch.keys() - {"allow_empty"} and self.one_in(3):
            dispatch["home"] = self.pick(homes)
        if dispatch:
            stage["dispatch"] = dispatch
        if "home" not in dispatch and "balance" not in dispatch and self.one_in(6):
            modes = (["peer"] if is_single else []) + ([] if self.is_trainer(component) else ["first"])
            stage |= {"execute": self.pick(modes)} if modes else {}
        return stage

    def has_same_layout(self, stage: str, component: str) -> bool:
        return self.is_like(self.stages[stage], component)

    def is_like(self, stage: dict[str, Any], component: str) -> bool:
        """Whether samples of a stage can go home to a component."""
        made = self.components[stage["call"].split(".")[0]]
        own, plain = self.components[component], {"execute", "collect"}.isdisjoint(stage)
        return plain and (made["group"], made.get("parallel")) == (own["group"], own.get("parallel"))

    def times(self, value: Value) -> dict[str, Any]:
        options: list[dict[str, Any]] = [{}, {}, {}, {}, {"every": 2}, {"every": 3}]
        if value.when:
            options = [{}, {"when": value.when}]
        else:
            options += [{"when": "end"}, {"when": "checkpoint"}] if self.saves else [{"when": "end"}]
            options += [{"when": "start"}] if value.period == 1 else []
        times = self.pick(options)
        value.when = times.get("when", value.when)
        value.period = lcm(value.period, times.get("every", 1))
        if self.one_in(8):
            times = times | {"after": [self.pick(list(self.stages))]}
        return times

    def add_tick(self, name: str) -> None:
        value = Value("numbers")
        self.stages[name] = {"call": f"{self.worker()}.tick", "in": [], **self.times(value)}
        self.values[name] = value

    def add_sync(self, name: str) -> None:
        called = [n for n in self.components if n[:2] in ("w_", "v_")]
        targets = {stage["to"] for stage in self.stages.values() if "sync" in stage}
        trainers = [n for n in called if self.is_trainer(n)]
        pairs = [
            (one, other) for one in trainers for other in called if one != other and other not in targets
        ]
        if pairs:
            source, target = self.pick(pairs)
            every = self.pick([1, 1, 2, 3])
            times = {"every": every} if every > 1 else {}
            if self.one_in(4):
                times = {"when": self.pick(["start", "end", *(["checkpoint"] if self.saves else [])])}
            elif self.one_in(2):
                times["max_staleness"] = every - 1 + self.draw(st.integers(0, 2))
            self.stages[name] = {"sync": source, "to": target, **times}


def meet(one: Value, other: Value) -> bool:
    """Whether two values are there in the same steps, sooner or later."""
    is_at_start = "start" in (one.when, other.when)
    return other.when in ("", one.when) and not (is_at_start and one.period * other.period > 1)
