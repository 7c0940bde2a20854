"""The layouts that MC41x propose are valid, and every valid layout is accepted."""

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.load import load
from meshctl.recipe.rules.meshes import CODES, sizes_fit_group
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.sizes import DIMS, MAY_BE_AUTO, SIZES, settle
from tests.paths import RECIPE_GOLDEN as GOLDEN
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
def test_shipped_layouts_fit_and_describe_themselves(path: Path, tmp_path: Path) -> None:
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


# The layouts of a class

TRAINERS = """
    from meshctl import Component, endpoint

    class Trainer(Component):
        LAYOUTS = {"dims": ("dp", "fsdp", "tp", "ulysses"), "excludes": (("fsdp", "tp"),)}

        @endpoint(collect="mean")
        def step(self, samples: range) -> dict[str, float]: ...

    class Tuner(Trainer): ...
"""
SHIPPED = "meshctl.components.starters.train.Trainer"


def report_of(folder: Path, target: str, parallel: str, more: str = "") -> list[Diagnostic]:
    (folder / "mine.py").write_text(dedent(TRAINERS))
    (folder / "recipe.yaml").write_text(
        "groups: {train: {ranks: 8, device_type: cpu}}\n"
        f"components:\n  trainer: {{_target_: {target}, group: train, parallel: {parallel}}}\n{more}"
        "pipeline: {metrics: {call: trainer.step, samples: 64}}\n"
    )
    found = load("recipe.yaml", [], folder).report.diagnostics
    return [one for one in found if one.code in ("MC410", "MC415", "MC416", "MC417", "MC432", "MC526")]


@pytest.mark.parametrize("target", ["mine.Trainer", "mine.Tuner", SHIPPED])
def test_supported_layouts_are_accepted(tmp_path: Path, target: str) -> None:
    for parallel in ("{dp_size: 2, fsdp_size: 4}", "{fsdp_size: 8}", "{dp_size: 8}"):
        assert not report_of(tmp_path, target, parallel)


@pytest.mark.parametrize("target", ["mine.Trainer", "mine.Tuner", SHIPPED])
def test_a_dim_that_the_class_does_not_support(tmp_path: Path, target: str) -> None:
    (found,) = report_of(tmp_path, target, "{fsdp_size: 4, pp_size: 2}")
    assert (found.code, found.primary.line if found.primary else 0) == ("MC415", 3)
    assert f"`{target}` does not support `pp`, which is 2 in `trainer`" in found.message
    assert found.help.startswith("it supports `dp`") and found.help.endswith(
        "nearest that fit: dp 2 x fsdp 4; dp 4 x fsdp 2"
    )


def test_a_pair_of_dims_that_the_class_excludes(tmp_path: Path) -> None:
    (found,) = report_of(tmp_path, "mine.Trainer", "{fsdp_size: 4, tp_size: 2}")
    assert found.code == "MC416" and found.message.endswith("does not support `fsdp` together with `tp`")
    assert [span.label for span in (found.primary, *found.seconds) if span][:2] == [
        "`tp` is 2",
        "`fsdp` is 4",
    ]
    assert found.help == "nearest that fit: dp 2 x fsdp 4; dp 4 x tp 2"


WITHOUT = """
from meshctl import Component, endpoint
class T(Component):
    LAYOUTS = {"without": {"args.compile": ("cp", "ulysses", "sequence_parallel")}, "ulysses": "heads"}
    def __init__(self, compile: bool = False): ...
    @endpoint
    def step(self, samples: range) -> dict[str, float]: ...
"""


@pytest.mark.parametrize("dims", ["cp_size: 2", "ulysses_size: 2"])
def test_an_argument_that_excludes_a_dim(tmp_path: Path, dims: str) -> None:
    (tmp_path / "other.py").write_text(WITHOUT)
    dim = dims.split("_")[0]
    (found,) = report_of(tmp_path, "other.T", f"{{fsdp_size: auto, {dims}}}, args: {{compile: true}}")
    assert found.code == "MC417" and found.message == f"`compile` of `trainer` cannot be used with `{dim}`"
    assert found.help == f"leave out `compile`, or use {dim} 1"
    assert not report_of(tmp_path, "other.T", f"{{fsdp_size: auto, {dims}}}, args: {{compile: false}}")


def test_an_argument_that_excludes_sequence_parallelism(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text(WITHOUT)
    layout = "{fsdp_size: auto, tp_size: 2, sequence_parallel: true}, args: {compile: true}"
    (found,) = report_of(tmp_path, "other.T", layout)
    assert (found.code, found.help) == ("MC417", "leave out `compile`, or `sequence_parallel`")
    assert not report_of(tmp_path, "other.T", layout.replace("true}, args", "false}, args"))


def test_ulysses_must_divide_the_heads_for_a_class_without_a_ring(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text(WITHOUT)
    (found,) = report_of(tmp_path, "other.T", "{fsdp_size: 8, ulysses_size: 8}, model: {num_heads: 12}")
    assert (found.code, found.severity) == ("MC432", "error")
    assert found.help == "nearest that fit: ulysses 4"


def test_the_layout_of_another_component_is_checked_for_each_class(tmp_path: Path) -> None:
    other = "  other: {_target_: mine.Trainer, group: train, parallel: trainer}\n"
    (found,) = report_of(tmp_path, "arithmetic.Unknown", "{pp_size: 2}", other)
    assert found.code == "MC415" and "in `trainer`, whose mesh `other` takes" in found.message


def test_proposals_for_other_mistakes_are_layouts_that_the_class_supports(tmp_path: Path) -> None:
    (found,) = report_of(tmp_path, "mine.Trainer", "{fsdp_size: 3, tp_size: 2}")
    assert found.code == "MC410" and found.help.startswith("nearest that fit: ")
    assert all(" x tp" not in option or "fsdp" not in option for option in found.help.split("; "))


def test_a_declaration_that_is_not_used_is_a_note(tmp_path: Path) -> None:
    text = 'from meshctl import Component, endpoint\nclass T(Component):\n    LAYOUTS = {"dims": ["zero"]}\n'
    (tmp_path / "other.py").write_text(text + "    @endpoint\n    def step(self, samples: range): ...\n")
    (found,) = report_of(tmp_path, "other.T", "{}")
    assert (found.code, found.severity) == ("MC526", "note") and "`LAYOUTS` of `other.T`" in found.message
