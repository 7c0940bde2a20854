"""The layouts that MC41x propose are valid, and every valid layout is accepted."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.rules.meshes import CODES, sizes_fit_group
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.sizes import DIMS, MAY_BE_AUTO, SIZES, settle
from tests.recipe.rules import facts
from tests.recipe.rules.facts import facts_of


def found(parallel: dict[str, Any], ranks: int) -> list[Diagnostic]:
    recipe = {
        "groups": {"train": {"ranks": ranks, "device_type": "cpu"}},
        "components": {"actor": {"_target_": "arithmetic.Actor", "group": "train", "parallel": parallel}},
    }
    return list(sizes_fit_group(facts_of(recipe)))


def proposals(diagnostic: Diagnostic) -> list[dict[str, int]]:
    """Returns `dp 4 x tp 2` as sizes, and `sequence_parallel false` as that key."""
    options = diagnostic.help.removeprefix("nearest that fit: ").split("; ") if diagnostic.help else []
    pairs = [[part.split() for part in option.split(" x ")] for option in options]
    none = {"one": {}, "sequence_parallel": {"sequence_parallel": False}}
    return [
        none[words[0][0]] if words[0][0] in none else {f"{dim}_size": int(size) for dim, size in words}
        for words in pairs
    ]


@st.composite
def layouts(draw: st.DrawFn) -> dict[str, Any]:
    keys = draw(st.lists(st.sampled_from(SIZES), min_size=1, max_size=5, unique=True))
    sizes: dict[str, Any] = {key: draw(st.integers(1, 9)) for key in keys}
    if draw(st.booleans()) and (auto := [key for key in keys if key in MAY_BE_AUTO]):
        sizes[draw(st.sampled_from(auto))] = "auto"
    return sizes | ({"sequence_parallel": True} if draw(st.booleans()) else {})


def makes_a_mesh(parallel: dict[str, Any], ranks: int) -> bool:
    try:
        return DeviceMesh.from_sizes(world_size=ranks, **parallel).world_size == ranks
    except ValueError:
        return False


@given(layouts(), st.integers(1, 48))
def test_what_is_refused_makes_no_mesh_and_every_proposal_does(parallel: dict[str, Any], ranks: int) -> None:
    diagnostics = found(parallel, ranks)
    assert makes_a_mesh(parallel, ranks) == (not diagnostics)
    assert {one.code for one in diagnostics} <= set(CODES.values())
    for option in (option for one in diagnostics for option in proposals(one) if len(diagnostics) == 1):
        whole = any(f"{dim}_size" in option for dim in DIMS) or not option
        kept = {
            key: size
            for key, size in parallel.items()
            if key in SIZES and (not whole or key.removesuffix("_size") not in DIMS)
        }
        along_tp = {**parallel, **option}.get("sequence_parallel", False)
        settled = settle(
            {key: size for key, size in {**kept, **option}.items() if key in SIZES}, ranks, along_tp
        )
        left = {CODES[misfit.rule] for misfit in settled.misfits}
        assert diagnostics[0].code not in left
        assert left <= {"MC413", "MC414"} or diagnostics[0].code == "MC410"


@given(st.integers(1, 1 << 20), st.integers(1, 1 << 20), st.integers(1, 64))
def test_a_large_world_is_answered_too(ranks: int, tp: int, pp: int) -> None:
    for one in found({"tp_size": tp, "pp_size": pp, "fsdp_size": "auto"}, ranks):
        assert one.help and all(makes_a_mesh(option, ranks) for option in proposals(one))


# The layouts of a class

MINE = """
    from meshctl import Component, endpoint
    class Trainer(Component):
        LAYOUTS = {"dims": ("dp", "fsdp", "tp", "ulysses"), "excludes": (("fsdp", "tp"),)}
        @endpoint(collect="mean")
        def step(self, samples: range) -> dict[str, float]: ...
    class Tuner(Trainer): ...
    class Without(Component):
        LAYOUTS = {"without": {"args.compile": ("cp", "ulysses", "sequence_parallel")}, "ulysses": "heads"}
        def __init__(self, compile: bool = False): ...
        @endpoint
        def step(self, samples: range) -> dict[str, float]: ...
    class Wrong(Component):
        LAYOUTS = {"dims": ["zero"]}
        @endpoint
        def step(self, samples: range): ...
"""
SHIPPED = "meshctl.components.starters.train.Trainer"
COMPILED = "args: {compile: true}"
SEQUENCES = "{fsdp_size: auto, tp_size: 2, sequence_parallel: true}"


def report_of(folder: Path, target: str, parallel: str, more: str = "") -> list[Diagnostic]:
    recipe = (
        "groups: {train: {ranks: 8, device_type: cpu}}\n"
        f"components:\n  trainer: {{_target_: {target}, group: train, parallel: {parallel}}}\n{more}"
        "pipeline: {metrics: {call: trainer.step, samples: 64}}\n"
    )
    return facts.reported(folder, recipe, ("MC410", "MC415", "MC416", "MC417", "MC432", "MC526"), mine=MINE)


@pytest.mark.parametrize(
    ("target", "parallel", "code", "message", "help"),
    [
        *[
            (target, parallel, "", "", "")
            for target in ("mine.Tuner", SHIPPED)
            for parallel in ("{dp_size: 2, fsdp_size: 4}", "{fsdp_size: 8}")
        ],
        *[
            (target, "{fsdp_size: 4, pp_size: 2}", "MC415", f"`{target}` does not support `pp`, which is 2 in `trainer`", "dp 2 x fsdp 4; dp 4 x fsdp 2")
            for target in ("mine.Trainer", "mine.Tuner", SHIPPED)
        ],
        ("mine.Trainer", "{fsdp_size: 4, tp_size: 2}", "MC416", "does not support `fsdp` together with `tp`", "dp 2 x fsdp 4; dp 4 x tp 2"),
        ("mine.Without", f"{{fsdp_size: auto, cp_size: 2}}, {COMPILED}", "MC417", "`compile` of `trainer` cannot be used with `cp`", "leave out `compile`, or use cp 1"),
        ("mine.Without", f"{{fsdp_size: auto, ulysses_size: 2}}, {COMPILED}", "MC417", "`compile` of `trainer` cannot be used with `ulysses`", "or use ulysses 1"),
        ("mine.Without", f"{SEQUENCES}, {COMPILED}", "MC417", "", "leave out `compile`, or `sequence_parallel`"),
        ("mine.Without", "{fsdp_size: auto, cp_size: 2}, args: {compile: false}", "", "", ""),
        ("mine.Without", f"{SEQUENCES.replace('true', 'false')}, {COMPILED}", "", "", ""),
        ("mine.Without", "{fsdp_size: 8, ulysses_size: 8}, model: {num_heads: 12}", "MC432", "", "nearest that fit: ulysses 4"),
        ("mine.Wrong", "{}", "MC526", "`LAYOUTS` of `mine.Wrong`", ""),
    ],
)  # fmt: skip
def test_layouts_that_a_class_supports(
    tmp_path: Path, target: str, parallel: str, code: str, message: str, help: str
) -> None:
    found = report_of(tmp_path, target, parallel)
    assert [one.code for one in found] == [code] * bool(code), found
    for one in found:
        assert message in one.message and one.help.endswith(help)
        assert one.severity == ("note" if code == "MC526" else "error")


def test_the_layout_of_another_component_is_checked_for_each_class(tmp_path: Path) -> None:
    other = "  other: {_target_: mine.Trainer, group: train, parallel: trainer}\n"
    (found,) = report_of(tmp_path, "arithmetic.Unknown", "{pp_size: 2}", other)
    assert found.code == "MC415" and "in `trainer`, whose mesh `other` takes" in found.message


def test_proposals_for_other_mistakes_are_layouts_that_the_class_supports(tmp_path: Path) -> None:
    (found,) = report_of(tmp_path, "mine.Trainer", "{fsdp_size: 3, tp_size: 2}")
    assert found.code == "MC410" and found.help.startswith("nearest that fit: ")
    assert all(" x tp" not in option or "fsdp" not in option for option in found.help.split("; "))
