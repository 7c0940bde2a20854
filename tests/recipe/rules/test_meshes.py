"""What MC41x propose really fits, and everything that fits passes."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.code.classes import Code
from meshctl.recipe.compose.yaml_tree import of_plain
from meshctl.recipe.load import load
from meshctl.recipe.reader import read
from meshctl.recipe.rules import Facts
from meshctl.recipe.rules.meshes import CODES, fits
from meshctl.recipe.spans import Written
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.sizes import DIMS, MAY_BE_AUTO, SIZES, settle
from tests.paths import RECIPE_GOLDEN as GOLDEN


def facts_of(parallel: dict[str, Any], ranks: int) -> Facts:
    recipe = {
        "groups": {"train": {"ranks": ranks, "device_type": "cpu"}},
        "components": {"actor": {"_target_": "arithmetic.Actor", "group": "train", "parallel": parallel}},
    }
    tree = of_plain(recipe, Span("x.yaml", 1, 1))
    return Facts(read(tree, "stem"), Written(tree), Code((str(GOLDEN),)))


def found(parallel: dict[str, Any], ranks: int) -> list[Diagnostic]:
    facts = facts_of(parallel, ranks)
    assert not facts.read.found
    return list(fits(facts))


def proposals(diagnostic: Diagnostic) -> list[dict[str, int]]:
    """`dp 4 x tp 2` as sizes; `sequence_parallel false` as that key."""
    options = diagnostic.help.removeprefix("nearest that fit: ").split("; ") if diagnostic.help else []
    pairs = [[part.split() for part in option.split(" x ")] for option in options]
    none = {"one": {}, "sequence_parallel": {"sequence_parallel": False}}
    return [
        none[words[0][0]] if words[0][0] in none else {f"{dim}_size": int(size) for dim, size in words}
        for words in pairs
    ]


def test_the_picture_of_the_design() -> None:
    (diagnostic,) = found({"fsdp_size": 1, "tp_size": 3}, 8)
    assert diagnostic.message == "`tp_size` 3 does not fit the 8 ranks of group `train`"
    assert diagnostic.help == "nearest that fit: dp 4 x tp 2; dp 2 x tp 4"


@pytest.mark.parametrize(
    ("parallel", "code", "size", "help"),
    [
        ({"tp_size": 3}, "MC410", "tp_size", "dp 4 x tp 2; dp 2 x tp 4"),
        ({"dp_size": "auto", "tp_size": "auto"}, "MC401", "tp_size", ""),
        ({"ep_size": "auto", "etp_size": "auto"}, "MC401", "etp_size", ""),
        ({"ulysses_size": 3}, "MC411", "ulysses_size", "ulysses 2; ulysses 4"),
        ({"ep_size": 3}, "MC412", "ep_size", "ep 2; ep 4"),
        ({"pp_size": 2, "ep_size": 8}, "MC412", "ep_size", "ep 4; ep 2"),
        ({"ep_size": 4, "ep_fsdp_size": 4}, "MC412", "ep_fsdp_size", "ep_fsdp 2"),
        ({"ep_size": 2, "etp_size": 3}, "MC412", "etp_size", "etp 2; etp 4"),
        ({"vpp_size": 2}, "MC413", "vpp_size", "pp 2 x dp 4; vpp 1"),
        ({"sequence_parallel": True}, "MC414", "sequence_parallel", "dp 4 x tp 2"),
    ],
)
def test_each_rule_blames_one_size_and_proposes(
    parallel: dict[str, Any], code: str, size: str, help: str
) -> None:
    (diagnostic,) = found(parallel, 8)
    assert diagnostic.code == code and (f"`{size}`" in diagnostic.message or code in ("MC401", "MC412"))
    assert diagnostic.help == (f"nearest that fit: {help}" if help else "")
    assert len(diagnostic.seconds) == 1


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


@pytest.mark.parametrize(
    "path", sorted((GOLDEN.parents[2] / "conf" / "layout").glob("*.yaml")), ids=lambda path: path.stem
)
def test_shipped_layouts_fit_and_say_what_they_are(path: Path, tmp_path: Path) -> None:
    text = path.read_text()
    assert text.startswith("# ") and text.splitlines()[0].endswith(".")
    (tmp_path / "recipe.yaml").write_text(
        "groups: {train: {ranks: 16, device_type: cpu}}\ncomponents: {actor: {_target_: arithmetic.Prompts, group: train}}\n"
        "pipeline: {one: {call: actor.next, samples: 16}}\n"
    )
    loaded = load(
        "recipe.yaml", [f"layout@components.actor.parallel={path.stem}"], tmp_path, path=(str(GOLDEN),)
    )
    assert not loaded.report.errors and loaded.recipe.components["actor"].parallel
