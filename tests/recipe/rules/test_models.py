"""The rules about models and layouts, compared with the part of the model on every rank, for lists of all
layouts."""

from __future__ import annotations

import itertools
import re
from math import prod
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.rules import Facts, meshes, models, rules_of
from tests.examples import examples
from tests.recipe.rules.facts import facts_of
from tests.recipe.rules.facts import reported as reported_in

DIMS = ("pp", "dp", "fsdp", "cp", "tp")
EXPERT_DIMS = ("ep", "etp", "ep_fsdp")
Sizes = dict[str, int]
Some = tuple[int, dict[str, Any], list[Sizes], int]
"""(ranks, `parallel`, models of the components with this layout, number of samples that they share; 0 if
unknown)."""


def recipe_of(ranks: int, parallel: dict[str, Any], models: list[Sizes], samples: int = 0) -> dict[str, Any]:
    """Returns a recipe with components `c0`, `c1`, ... that have the layout of the first."""
    components = {
        f"c{i}": {"_target_": "x.C", "group": "g", "parallel": "c0" if i else parallel, "model": m}
        for i, m in enumerate(models)
    }
    pipeline = {"s": {"call": "c0.next", "samples": samples}} if samples else {}
    return {
        "groups": {"g": {"ranks": ranks, "device_type": "cpu"}},
        "components": components,
        "pipeline": pipeline,
    }


def reported(facts: Facts) -> list[Diagnostic]:
    return [one for rule in (*rules_of(meshes), *rules_of(models)) for one in rule(facts)]


def proposed(help: str) -> list[Sizes]:
    """Returns `nearest that fit: dp 4 x tp 2; vpp 2` as sizes."""
    _, _, after = help.partition("nearest that fit: ")
    return [
        {dim: int(size) for dim, size in re.findall(r"(\w+) (\d+)", option)}
        for option in after.split("; ")
        if after
    ]


# The arithmetic


def complete(ranks: int, parallel: dict[str, Any]) -> Sizes | None:
    """Returns all sizes if they are valid, by trying every number for an inferred size."""
    stated = {key.removesuffix("_size"): size for key, size in parallel.items() if key != "sequence_parallel"}
    free = [dim for dim in DIMS if stated.get(dim) == "auto"] or ["dp"] * ("dp" not in stated)
    for size in range(1, ranks + 1) if free else (0,):
        sizes = (
            dict.fromkeys((*DIMS, "ulysses", "vpp"), 1)
            | {key: n for key, n in stated.items() if n != "auto"}
            | dict.fromkeys(free, size)
        )
        if prod(sizes[dim] for dim in DIMS) == ranks:
            return sizes | experts(stated, prod(sizes[dim] for dim in DIMS if dim != "pp"))
    return None


def experts(stated: dict[str, Any], stage: int) -> Sizes:
    """Returns the sizes of the expert dims in a pipeline stage, whether or not they are valid."""
    free = [dim for dim in EXPERT_DIMS if stated.get(dim) == "auto"] or ["ep_fsdp"] * (
        "ep_fsdp" not in stated
    )
    for size in range(1, stage + 1) if free else ():
        sizes = (
            dict.fromkeys(EXPERT_DIMS, 1)
            | {dim: stated[dim] for dim in EXPERT_DIMS if dim in stated}
            | dict.fromkeys(free, size)
        )
        if prod(sizes.values()) == stage:
            return sizes
    return dict.fromkeys(EXPERT_DIMS, 1) | {
        dim: stated[dim] for dim in EXPERT_DIMS if type(stated.get(dim)) is int
    }


def carved(sizes: Sizes, along_tp: bool) -> bool:
    data, stage = sizes["dp"] * sizes["fsdp"], prod(sizes[dim] for dim in DIMS if dim != "pp")
    even = data % sizes["ulysses"] == 0 and stage == prod(sizes[dim] for dim in EXPERT_DIMS)
    return even and (sizes["vpp"] == 1 or sizes["pp"] > 1) and (sizes["tp"] > 1 or not along_tp)


def heads_fit(heads: int, kv: int, tp: int) -> bool:
    """Whether every rank has the same number of query heads, and exactly the kv heads that these use, also in
    equal numbers."""
    if heads % tp:
        return False
    each = heads // tp
    looks = [{head * kv // heads for head in range(rank * each, (rank + 1) * each)} for rank in range(tp)]
    return (
        len({len(mine) for mine in looks}) == 1
        and len({sum(head in mine for mine in looks) for head in range(kv)}) == 1
    )


def broken(sizes: Sizes, model: Sizes, along_tp: bool) -> set[str]:
    """Returns the codes of the broken rules, from the part of the model on each rank."""
    codes, tp = set(), sizes["tp"]
    heads, kv = model.get("num_heads", 0), model.get("num_kv_heads", 0)
    if (heads and not heads_fit(heads, kv or heads, tp)) or model.get("hidden_size", 0) % tp:
        codes.add("MC431")
    if not heads and kv and kv % tp and tp % kv:
        codes.add("MC431")
    if (layers := model.get("num_layers", 0)) and sizes["pp"] * sizes["vpp"] > layers:
        codes.add("MC434")
    if model.get("num_experts", 0) % sizes["ep"]:
        codes.add("MC435")
    if length := model.get("sequence_length", 0):
        chunks = [sizes["ulysses"], tp if along_tp else 1, *([2, sizes["cp"]] if sizes["cp"] > 1 else [])]
        if length % prod(chunks):
            codes.add("MC436")
    return codes


ERRORS = {"MC431", "MC434", "MC435", "MC436"}


@st.composite
def cases(draw: st.DrawFn) -> Some:
    ranks = draw(st.sampled_from([1, 2, 4, 6, 8, 12, 16, 24]))
    sizes = (
        st.integers(1, 8)
        if draw(st.integers(0, 3)) == 0
        else st.sampled_from([n for n in range(1, ranks + 1) if ranks % n == 0])
    )
    keys = st.sampled_from([*DIMS, "ulysses", "ep", "ep", "etp", "ep_fsdp", "vpp"])
    chosen = draw(st.lists(keys, min_size=1, max_size=4, unique=True))
    parallel: dict[str, Any] = {f"{key}_size": draw(sizes) for key in chosen}
    if draw(st.booleans()) and (dims := [f"{dim}_size" for dim in DIMS if f"{dim}_size" in parallel]):
        parallel[draw(st.sampled_from(dims))] = "auto"
    if draw(st.integers(0, 3)) == 0 and "ep_fsdp_size" not in parallel:
        parallel[draw(st.sampled_from(["ep_size", "etp_size"]))] = "auto"
    if "tp_size" in parallel and draw(st.booleans()):
        parallel["sequence_parallel"] = True
    models = st.builds(lambda heads, sizes: {**heads, **sizes}, grouped(), others())
    return ranks, parallel, draw(st.lists(models, min_size=1, max_size=2)), draw(st.integers(0, 6))


def grouped() -> st.SearchStrategy[Sizes]:
    """Draws numbers of heads and of kv heads that divide them."""
    pairs = [{"num_heads": kv * each, "num_kv_heads": kv} for kv in range(1, 9) for each in range(1, 5)]
    return st.sampled_from([{}, {"num_heads": 6}, {"num_heads": 12}, {"num_kv_heads": 4}, *pairs])


def others() -> st.SearchStrategy[Sizes]:
    few = st.integers(1, 24)
    some = {
        "hidden_size": st.sampled_from([6, 16, 24]),
        "num_layers": few,
        "num_experts": few,
        "sequence_length": st.integers(1, 64),
    }
    return st.fixed_dictionaries({}, optional=some)


@settings(max_examples=examples(30, 200))
@given(cases())
def test_what_is_refused_is_what_does_not_come_out_even(case: Some) -> None:
    ranks, parallel, given, _ = case
    facts = facts_of(recipe_of(ranks, parallel, given))
    sizes, along_tp = complete(ranks, parallel), parallel.get("sequence_parallel", False)
    found = [one for one in reported(facts) if one.code != "MC431" or one.severity == "error"]
    if sizes is None or not carved(sizes, along_tp):
        assert found and not ERRORS & {one.code for one in found}
        return
    kinds = [dict(kind) for kind in dict.fromkeys(tuple(sorted(model.items())) for model in given)]
    expected = sorted(code for model in kinds for code in broken(sizes, model, along_tp))
    assert sorted(one.code for one in found if one.code in ERRORS) == expected
    assert all(one.severity != "error" for one in found if one.code not in ERRORS)


@settings(max_examples=examples(30, 200))
@given(cases())
def test_layouts_that_are_proposed_fit_everything(some: Some) -> None:
    """A proposal of dims replaces all stated dims, and another one adds to what is stated. A stated `ep_size` is
    no dim and has proposals of its own."""
    ranks, parallel, given, samples = some
    of_ep = {"MC435"} if type(parallel.get("ep_size")) is int else set()
    found = [one for one in reported(facts_of(recipe_of(*some))) if one.severity == "error"]
    for one in (one for one in found if one.code in ("MC431", "MC434", "MC436")):
        for option in proposed(one.help):
            dims = DIMS if {*option} <= {*DIMS} else ()
            kept = {key: size for key, size in parallel.items() if key.removesuffix("_size") not in dims}
            changed = {**kept, **{f"{dim}_size": size for dim, size in option.items()}}
            left = reported(facts_of(recipe_of(ranks, changed, given, samples)))
            codes = {other.code for other in left if other.severity == "error"}
            assert codes <= of_ep, f"{one.message}: {one.help}"


@pytest.mark.parametrize(
    ("parallel", "model", "help"),
    [
        ({"ep_size": 8}, {"num_experts": 12}, "nearest that fit: ep 4; ep 2"),
        ({"fsdp_size": 8, "ulysses_size": 8}, {"num_heads": 12}, "ulysses splits 4 ways by heads, and a ring of 2 ranks the rest; nearest that needs no ring: ulysses 4"),
    ],
)  # fmt: skip
def test_sizes_of_experts_and_ulysses_that_fit(parallel: dict[str, Any], model: Sizes, help: str) -> None:
    (one,) = reported(facts_of(recipe_of(8, parallel, [model])))
    assert one.help == help


# Models that a class names

DECLARING = """
    from meshctl import Component, endpoint
    class Base(Component):
        MODEL = "args.model"
        def __init__(self, model: str = "") -> None: ...
        @endpoint(collect="mean")
        def step(self, samples: range) -> dict[str, float]: ...
    class Trainer(Base): ...
    class Nested(Base):
        MODEL = "args.actor.path"
        def __init__(self, actor: dict) -> None: ...
    class Changed(Base):
        MODEL = ("args.model", "args.config")
        def __init__(self, model: object, config: dict | None = None) -> None: ...
"""
FILES = {
    "llama/config.json": '{"num_attention_heads": 6, "num_hidden_layers": 4}',
    "broken/config.json": "{",
    "empty/x": "",
}
ELSE = "{model: someone/else}"


def of_config(
    folder: Path, target: str, args: str, more: str = "", environ: dict[str, str] | None = None
) -> list[Diagnostic]:
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    recipe = (
        "groups: {train: {ranks: 8, device_type: cpu}}\n"
        "components:\n"
        f"  trainer: {{_target_: mine.{target}, group: train, parallel: {{tp_size: 4}}, args: {args}{more}}}\n"
        f"  other: {{_target_: mine.{target}, group: train, parallel: trainer, args: {args}{more}}}\n"
        "pipeline: {metrics: {call: trainer.step, samples: 64}, others: {call: other.step, samples: 64}}\n"
    )
    return reported_in(folder, recipe, environ=environ or {}, mine=DECLARING)


def codes_of(*given: Any, **environ: str) -> list[str]:
    """Returns the codes of two components with the same model, each once."""
    return sorted({one.code for one in of_config(*given, environ=environ)})


@pytest.mark.parametrize(
    ("target", "args", "codes"),
    [
        ("Base", "{model: llama}", ["MC431"]),
        ("Trainer", "{model: llama/config.json}", ["MC431"]),
        ("Nested", "{actor: {path: llama}}", ["MC431"]),
        ("Nested", "{actor: {}}", []),
        ("Base", "{}", []),
        ("Base", "{model: someone/some-model-7b}", ["MC438"]),
        ("Base", "{model: gpt2}", ["MC438"]),
        ("Base", "{model: /absent/llama}", ["MC438"]),
        ("Base", "{model: absent/config.json}", ["MC438"]),
        ("Base", "{model: empty}", []),
        ("Base", "{model: mine.py}", []),
        ("Base", "{model: broken}", ["MC430"]),
        ("Base", '{model: "${oc.env:WHERE}"}', []),
        ("Changed", "{model: {model_type: llama, num_attention_heads: 6}}", ["MC431"]),
        ("Changed", "{model: {model_type: llama, num_attention_heads: 8}}", []),
        ("Changed", "{model: {}}", []),
        ("Changed", "{model: {num_attention_heads: six}}", []),
        ("Changed", "{model: llama, config: {num_attention_heads: 8}}", []),
        ("Changed", "{model: llama, config: {num_hidden_layers: 2}}", ["MC431"]),
        ("Changed", '{model: llama, config: {num_attention_heads: "${oc.env:WHERE}"}}', []),
        ("Changed", "{model: someone/else, config: {num_attention_heads: 6}}", ["MC431", "MC438"]),
        # The facts in the recipe take precedence over those in the class.
        ("Base", "{model: llama}, model: {num_heads: 8}", []),
        ("Base", "{model: someone/else}, model: llama", ["MC431"]),
        ("Base", "{model: someone/else}, model: {num_heads: 8}", []),
    ],
)
def test_the_config_that_a_class_names_is_compared_with_the_layout(
    tmp_path: Path, target: str, args: str, codes: list[str]
) -> None:
    assert codes_of(tmp_path, target, args, WHERE="llama") == codes


def write_cached(hub: Path, commit: str, heads: int, *, is_latest: bool = False) -> None:
    folder = hub / "models--someone--else"
    (folder / "snapshots" / commit).mkdir(parents=True)
    (folder / "snapshots" / commit / "config.json").write_text(f'{{\n  "num_attention_heads": {heads}\n}}')
    if is_latest:
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text(commit)


@pytest.mark.parametrize(
    ("environ", "hub"),
    [
        ({"HF_HUB_CACHE": "{}/cache", "HF_HOME": "{}/other", "HOME": "{}"}, "cache"),
        ({"HF_HOME": "{}/other", "XDG_CACHE_HOME": "{}/xdg"}, "other/hub"),
        ({"HOME": "{}"}, ".cache/huggingface/hub"),
    ],
)
def test_a_model_of_the_hub_is_read_from_the_local_cache(
    tmp_path: Path, environ: dict[str, str], hub: str
) -> None:
    write_cached(tmp_path / hub, "abc", 6)
    here = {name: text.format(tmp_path) for name, text in environ.items()}
    (one,) = of_config(tmp_path, "Base", ELSE, environ=here)
    places = [(span.file, span.line, span.column) for span in one.seconds]
    assert one.code == "MC431" and places == [("someone/else/config.json", 2, 26)]
    assert codes_of(tmp_path, "Base", "{model: someone/other}", **here) == ["MC438"]


def test_the_latest_download_is_read(tmp_path: Path) -> None:
    write_cached(tmp_path, "aaa", 8)
    write_cached(tmp_path, "bbb", 6, is_latest=True)
    write_cached(tmp_path, "ccc", 8)
    assert codes_of(tmp_path, "Base", ELSE, HF_HUB_CACHE=str(tmp_path)) == ["MC431"]
    (tmp_path / "models--someone--else" / "refs" / "main").write_text("../../secret")
    assert codes_of(tmp_path, "Base", ELSE, HF_HUB_CACHE=str(tmp_path)) == []


# Heads that share kv heads


def test_kv_heads_divide_the_heads() -> None:
    for heads, kv_heads in itertools.product(range(1, 13), range(1, 9)):
        facts = facts_of(recipe_of(1, {}, [{"num_heads": heads, "num_kv_heads": kv_heads}]))
        found = [one for one in models.heads_share_kv_heads(facts) if one.code == "MC466"]
        assert bool(found) == (heads % kv_heads != 0)
        for one in found:
            nearest = int(one.help.partition("nearest that fit: ")[2].split(",")[0])
            others = [size for size in range(1, heads + 1) if heads % size == 0]
            assert nearest in others and abs(nearest - kv_heads) == min(
                abs(size - kv_heads) for size in others
            )
