"""A recipe that `validate` accepts is resolved, starts and runs. For a recipe that it rejects, `launch`
starts nothing.

Recipes are generated, right and wrong ones: groups, components, layouts and pipelines with every mode. An
accepted recipe runs two steps on the in-memory engine, with its components. For a rejected recipe, `launch`
ends before it creates a process, socket or file.

    pytest --hypothesis-profile=nightly tests/recipe/test_validate_is_launch.py     thousands of them
"""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshctl.cli.launch import Options, prepare
from meshctl.plan.model import Plan
from meshctl.plan.resolve import resolve
from meshctl.recipe.compose.yaml_scalars import dump
from meshctl.recipe.load import load
from meshctl.runtime.instantiate import make
from meshctl.view.reports.text import text
from tests.examples import examples
from tests.runtime import in_process

HERE = Path(__file__).parent / "launched"
STEPS = 2
UNSOUND = {"MC536", "MC538"}
"""Warnings about samples that are lost, repeated or probably missing in an input, which cause an error only
in the run."""


@st.composite
def recipes(draw: st.DrawFn) -> dict[str, Any]:
    """Draws a recipe that is often correct. A `wild` one has arbitrary values."""
    wild = draw(st.integers(0, 3)) == 0
    groups: dict[str, dict[str, Any]] = {
        name: {"ranks": draw(st.integers(1, 4)), "device_type": "cpu"}
        for name in draw(st.sampled_from(["a", "ab", "abc"]))
    }
    components: dict[str, Any] = {}
    for name, group in groups.items():
        components[f"source_{name}"] = {
            "_target_": draw(st.sampled_from(["pieces.Source", "pieces.Limited"])),
            "group": name,
        }
        components[f"worker_{name}"] = {
            "_target_": "pieces.Worker",
            "group": name,
            **draw(layouts(group["ranks"], f"source_{name}", wild)),
        }
    run: dict[str, Any] = {"steps": STEPS}
    if draw(st.booleans()):
        run["checkpoint"] = {"every": draw(st.sampled_from([0, 1, 2]))}
    if draw(st.integers(0, 9)) == 0:
        run["epochs"] = 1
    pipeline = draw(pipelines(list(groups), wild, "checkpoint" in run))
    recipe = {"groups": groups, "components": components, "pipeline": pipeline, "run": run}
    return recipe if draw(st.integers(0, 5)) else draw(broken(recipe))


@st.composite
def layouts(draw: st.DrawFn, ranks: int, other: str, wild: bool) -> dict[str, Any]:
    """Draws valid sizes, the name of another component, or nothing."""
    kind = draw(st.sampled_from(["none", "fits", "fits", "other", *(["any"] if wild else [])]))
    if kind == "none":
        return {}
    if kind == "other":
        return {"parallel": other}
    dims = st.sampled_from(["dp_size", "fsdp_size", "tp_size", "pp_size", "cp_size"])
    if kind == "any":
        keys = st.one_of(dims, st.just("ulysses_size"))
        return {"parallel": draw(st.dictionaries(keys, st.integers(1, 4), max_size=2))}
    inner = draw(st.sampled_from([size for size in range(1, ranks + 1) if ranks % size == 0]))
    sizes = {draw(dims): inner}
    if "dp_size" not in sizes:
        sizes |= {"dp_size": ranks // inner} if draw(st.booleans()) else {}
    elif inner < ranks:
        sizes["fsdp_size"] = ranks // inner
    if sizes.get("fsdp_size", 1) == ranks and draw(st.booleans()):
        sizes["ulysses_size"] = ranks
    return {"parallel": sizes}


@st.composite
def pipelines(draw: st.DrawFn, groups: list[str], wild: bool, saves: bool) -> dict[str, Any]:
    """Draws up to seven stages, each with the true number of its samples."""
    where, counts, origins = st.sampled_from(groups), dict[str, int](), dict[str, str]()
    stages: dict[str, Any] = {}
    for number in range(draw(st.integers(1, 7))):
        name, group = f"s{number}", draw(where)
        batches = [known for known, count in counts.items() if count]
        kinds = ["source", "take", "take", "thrice", "pair", "also", "loss", "list"]
        kind = draw(st.sampled_from(kinds if batches else ["source"]))
        if kind == "source":
            counts[name], origins[name] = draw(st.integers(1 if wild else 4, 9)), name
            stage: dict[str, Any] = {"call": f"source_{group}.next", "samples": counts[name]}
        else:
            first = draw(st.sampled_from(batches))
            stage = {"call": f"worker_{group}.{'take' if kind == 'list' else kind}", "in": first}
            origin = origins[first], counts[first]
            alike = [known for known in batches if wild or (origins[known], counts[known]) == origin]
            if kind in ("pair", "also"):
                others = alike if kind == "pair" or not wild else list(counts)
                stage["in"] = {"one": first, "other": draw(st.sampled_from(others))}
            counts[name], origins[name] = (
                counts[first] * {"thrice": 3, "loss": 0}.get(kind, 1),
                origins[first],
            )
            if counts[name]:
                stage["samples"] = counts[name]
            stage |= draw(modes(list(counts)[:-1], wild))
        if draw(st.integers(0, 3)) == 0:
            times: list[dict[str, Any]] = [{"every": 2}, {"after": "s0"}]
            times += [{"when": "checkpoint"}] * (saves or wild)
            times += [{"when": "start"}, {"when": "end"}] * (wild or kind != "source")
            stage |= draw(st.sampled_from(times))
        stages[name] = stage
    producers = draw(st.permutations(groups))
    for number in range(draw(st.integers(0, 2 if wild else min(1, len(groups) - 1)))):
        producer, consumer = (draw(where), draw(where)) if wild else producers[:2]
        late = [{"every": 2, "max_staleness": 0}] if wild else []
        more = draw(st.sampled_from([{}, {"max_staleness": 1}, {"every": 2}, {"checksum": True}, *late]))
        stages[f"sync{number}"] = {"sync": f"worker_{producer}", "to": f"worker_{consumer}", **more}
    return stages


@st.composite
def modes(draw: st.DrawFn, stages: list[str], wild: bool) -> dict[str, Any]:
    options: dict[str, Any] = {} if wild else {"dispatch": {"allow_empty": True}}
    if draw(st.booleans()):
        mode, allow_empty = (
            draw(st.sampled_from(["slice_dp", "slice", "all"])),
            not wild or draw(st.booleans()),
        )
        balanced = {"balance": "tokens"}
        words: list[dict[str, Any]] = [
            {},
            balanced,
            {**balanced, "equal_counts": True},
            {"split_groups": True},
        ]
        if wild or draw(st.integers(0, 3)) == 0:
            words.append({"home": draw(st.sampled_from(stages or ["s0"]))})
        options["dispatch"] = {"mode": mode, "allow_empty": allow_empty, **draw(st.sampled_from(words))}
    if draw(st.integers(0, 3)) == 0:
        options["execute"] = draw(st.sampled_from(["first", "peer"]))
    if wild and draw(st.integers(0, 3)) == 0:
        options["collect"] = draw(st.sampled_from(["flatten", "mean", "first", "none", "last_pp"]))
    return options


@st.composite
def broken(draw: st.DrawFn, recipe: dict[str, Any]) -> dict[str, Any]:
    """Draws a recipe in which one value is removed or replaced."""
    top = draw(st.sampled_from(["groups", "components", "pipeline"]))
    name = draw(st.sampled_from(sorted(recipe[top])))
    key = draw(st.sampled_from(sorted(recipe[top][name])))
    item = {other: value for other, value in recipe[top][name].items() if other != key}
    if draw(st.booleans()):
        values = ["nonsense", 0, 7, -1, True, None, [], {}, "s0", "s5", "worker_a", "source_a.next"]
        item[key] = draw(st.sampled_from(values))
    return {**recipe, top: {**recipe[top], name: item}}


# What runs


def runs(plan: Plan) -> in_process.Outcome:
    called = {
        component.name: [stage.method for stage in plan.stages if stage.component == component.name]
        for component in plan.components
    }

    def made(name: str, rank: int) -> Any:
        methods = [method for method in called[name] if method != "weights"]
        return make(plan.component(name), methods, [str(HERE)])

    return in_process.run(plan, made)


RECORDED: list[str] = []
"""Audit events that must not happen for a rejected recipe."""
ACTS = (
    *("os.fork", "os.posix_spawn", "os.exec", "os.system", "subprocess.Popen", "socket.connect"),
    *("socket.bind", "os.mkdir"),
)


def _record(name: str, arguments: tuple[Any, ...]) -> None:
    if name in ACTS or (name == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")):
        RECORDED.append(name)


def held(recipe: dict[str, Any], file: Path) -> list[str]:
    """Checks the property for one recipe, and returns the codes of its errors."""
    file.write_text(dump(recipe), encoding="utf-8")
    loaded = load(file, [], HERE, environ={}, path=[str(HERE)])
    if loaded.report.errors:
        RECORDED.clear()
        with redirect_stderr(io.StringIO()) as stderr:
            assert prepare(str(file), [], Options()) == (1, None)
        assert not RECORDED, RECORDED
        assert all(f"[{error.code}]" in stderr.getvalue() for error in loaded.report.errors[:50])
        return [error.code for error in loaded.report.errors]
    plan = resolve(loaded.recipe, loaded.endpoints)
    if UNSOUND & {one.code for one in loaded.report.diagnostics}:
        return []
    outcome = runs(plan)
    assert not outcome.faults, f"{dump(recipe)}\n{text(loaded.report)}\n{outcome.faults}"
    assert set(outcome.last.values()) == {STEPS}
    return []


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sys.addaudithook(_record)
    folder = tmp_path_factory.mktemp("recipes")
    (folder / "pieces.py").symlink_to(HERE / "pieces.py")
    return folder / "recipe.yaml"


def of_groups(ranks: dict[str, int], pipeline: dict[str, Any]) -> dict[str, Any]:
    """Returns a recipe with a source and a worker in each group."""
    components = {
        f"{kind}_{name}": {"_target_": f"pieces.{kind.title()}", "group": name}
        for name in ranks
        for kind in ("source", "worker")
    }
    groups = {name: {"ranks": count, "device_type": "cpu"} for name, count in ranks.items()}
    return {"groups": groups, "components": components, "pipeline": pipeline, "run": {"steps": STEPS}}


SOURCE = {"call": "source_a.next", "samples": 9}
TAKE: dict[str, Any] = {"call": "worker_b.take", "in": "s1", "samples": 9}
BY_PEERS, PAIR = {**TAKE, "execute": "peer"}, {"call": "worker_b.pair", "execute": "peer"}
PEERS: dict[str, Any] = {
    "s1": SOURCE,
    "s2": BY_PEERS,
    "s3": TAKE,
    "s4": {**PAIR, "in": {"one": "s3", "other": "s2"}},
}
PEERS_OF_ALL = {**PEERS, "s4": {**PEERS["s4"], "execute": "all"}}
BALANCED_PEERS: dict[str, Any] = {
    **{"s1": SOURCE, "s2": BY_PEERS},
    "s3": {**PAIR, "in": {"one": "s2", "other": "s1"}, "dispatch": {"balance": "tokens"}},
}
FIRST: dict[str, Any] = {
    "s1": {"call": "source_a.next", "samples": 3},
    "s2": {"call": "worker_a.thrice", "in": "s1", "samples": 9, "collect": "first"},
    "s3": {"call": "worker_a.pair", "in": {"one": "s1", "other": "s2"}},
}
FIRST_TWICE = {**FIRST, "s3": {**FIRST["s3"], "in": {"one": "s2", "other": "s2"}}}


@pytest.mark.parametrize(
    ("ranks", "pipeline", "codes"),
    [
        ({"a": 2, "b": 3}, PEERS, []),
        ({"a": 2, "b": 3}, PEERS_OF_ALL, []),
        ({"a": 3, "b": 3}, PEERS, []),
        ({"a": 2, "b": 1}, PEERS, []),
        ({"a": 1, "b": 4}, BALANCED_PEERS, []),
        ({"a": 1}, FIRST, ["MC536"]),
        ({"a": 1}, FIRST_TWICE, []),
    ],
)
def test_examples(ranks: dict[str, int], pipeline: dict[str, Any], codes: list[str], file: Path) -> None:
    assert held(of_groups(ranks, pipeline), file) == codes


@settings(max_examples=examples(30, 2000), suppress_health_check=[HealthCheck.too_slow])
@given(recipes())
def test_what_is_accepted_runs_and_what_is_rejected_starts_nothing(
    file: Path, recipe: dict[str, Any]
) -> None:
    held(recipe, file)
