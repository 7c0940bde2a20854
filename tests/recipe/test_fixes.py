"""Safe fixes: for which mistakes they exist, for which they do not, and that they change nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshctl.diagnostics import Diagnostic, Fix, Report, Span
from meshctl.recipe.fields import GROUP, PARALLEL
from meshctl.recipe.fixes import apply, compatible, keep_safe, meant
from meshctl.recipe.load import Loaded, load
from meshctl.topology.cluster import DEVICE_TYPES
from tests.examples import examples

HERE = Path(__file__).parent / "golden"
NAME = str(HERE / "r.yaml")


def loaded(text: str, *overrides: str) -> Loaded:
    return load("r.yaml", overrides, HERE, environ={}, detect=lambda: "cpu", held={NAME: text.encode()})


def edits(text: str, *overrides: str) -> list[tuple[str, str]]:
    return [
        (fix.was, fix.text) for found in loaded(text, *overrides).report.diagnostics for fix in found.fixes
    ]


def repaired(text: str) -> str:
    """Returns the text after all fixes, repeated until none is left."""
    for _ in range(20):
        right = compatible(loaded(text).report.diagnostics, ["r.yaml"])
        if not right:
            return text
        text = apply(text, (fix for found in right for fix in found.fixes))
    raise AssertionError("fixes go round in a circle")


@pytest.mark.parametrize(
    ("word", "options", "right"),
    [
        ("rank", GROUP.keys, "ranks"),
        ("parralel", ("parallel", "args"), "parallel"),
        ("Ranks", GROUP.keys, "ranks"),
        ("tpu", DEVICE_TYPES, ""),  # npu, or cpu
        ("xp_size", PARALLEL.keys, ""),
        ("train2", ("train", "judge"), ""),
        ("train1", ("train2",), ""),
        ("slice_tp", ("slice_dp", "slice"), ""),
        ("a", ("b",), ""),
        ("acter", ("actor", "acted"), ""),
        ("acter", ("actor", "critic"), "actor"),
        ("hspd", ("hsdp", "fsdp"), "hsdp"),
        ("ranks", GROUP.keys, ""),
        ("", GROUP.keys, ""),
    ],
)
def test_a_word_means_one_option_or_none(word: str, options: tuple[str, ...], right: str) -> None:
    assert meant(word, options) == right


GROUPS = "groups: {{train: {{{}, device_type: cpu, program: {{module: json.tool}}}}}}\n"


@pytest.mark.parametrize(
    ("written", "right"),
    [
        ("rank: 4", [("rank", "ranks")]),
        ("'rank': 4", [("rank", "ranks")]),
        ("ranks: '4'", []),
        ("ranks: ${vars.n}", []),
        ("ranks: 4, rank: 4", []),
        ("rank: 4, rankz: 4", []),
        ("ranks: 4, env: {A: no}", [("no", '"no"')]),
        ("ranks: 4, cwd: 2024", [("2024", '"2024"')]),
        ("ranks: 4, env: {no: 3}", [("no", '"no"')]),
        ("ranks: 4, args: [???]", [("???", '"???"')]),
    ],
)
def test_only_what_is_certain_is_fixed(written: str, right: list[tuple[str, str]]) -> None:
    text = GROUPS.format(written)
    assert edits(text + ("vars: {n: 4.0}\n" if "${" in text else "")) == right


def test_a_key_of_another_file_is_another() -> None:
    found = Diagnostic("MC005", "", Span("a", 1, 1, 4), (Span("b", 1, 1, 4),))
    assert keep_safe(Report((found,), (("a", ("seed: 1",)), ("b", ("seed: 1",))))).diagnostics == (found,)


def test_text_that_serves_several_values_is_fixed_where_all_are_wrong() -> None:
    group = "{ranks: 1, device_type: cpu, program: {module: json.tool}, <<: *both}"
    text = "vars: {x: &both {%s}}\ngroups: {a: " + group + ", b: " + group + "}\n"
    assert edits(text % "python_: y") == []  # `vars` has it too, and may
    shared = "groups:\n  a: &a {rank: 1, device_type: cpu, program: {module: json.tool}}\n  b: *a\n"
    assert edits(shared) == [("rank", "ranks")]
    assert "ranks" in repaired(shared) and not loaded(repaired(shared)).report.errors


@pytest.mark.parametrize(
    ("target", "right"),
    [
        ("aritmetic.Juge", []),
        ("aritmetic.Judge", [("aritmetic.Judge", "arithmetic.Judge")]),
        ("arithmetic.Juge", [("arithmetic.Juge", "arithmetic.Judge")]),
        ("aritmetic.Nothing", []),
        ("numbers.Juge", []),
    ],
)
def test_a_class_is_fixed_where_one_is_near(target: str, right: list[tuple[str, str]]) -> None:
    text = f"defaults: [./base_of_all, _self_]\ncomponents: {{judge: {{_target_: {target}}}}}\n"
    assert edits(text) == right


def test_an_override_is_fixed_in_its_own_text() -> None:
    right = GROUPS.format("ranks: 4")
    assert edits(right, "groups.train.rank=2") == [("rank", "ranks")]
    assert edits(right, "+groups.train.rank=2") == [("rank", "ranks")]
    assert edits(right, "groups.train={rank: 2}") == [("rank", "ranks")]
    assert edits(right, "+groups.train.ranks=2") == [("+", "")]
    assert edits(right + "run: {steps: 1}\n", "run.stpes=2") == [("stpes", "steps")]


def test_a_fix_must_fit_the_text() -> None:
    def kept(fix: Fix) -> list[Fix]:
        found = Diagnostic("MC101", "m", fix.span, fixes=(fix,))
        return list(keep_safe(Report((found,), (("f", ("a: 'no' b.c",)),))).diagnostics[0].fixes)

    assert kept(Fix(Span("f", 1, 4, 4), "no", "yes")) == [Fix(Span("f", 1, 5, 2), "no", "yes")]
    assert kept(Fix(Span("f", 1, 4, 4), "no", "no")) == [Fix(Span("f", 1, 4, 4), "'no'", "no")]
    assert kept(Fix(Span("f", 1, 9, 3), "c", "d")) == [Fix(Span("f", 1, 11, 1), "c", "d")]
    for file, line, was, text in (
        ("f", 1, "b", "c"),
        ("f", 2, "a", "c"),
        ("g", 1, "a", "c"),
        ("f", 1, "a", "a"),
    ):
        assert kept(Fix(Span(file, line, 1), was, text)) == []


def test_fixes_that_touch_wait_for_the_next_round() -> None:
    def found(column: int, was: str, text: str) -> Diagnostic:
        return Diagnostic("MC101", "m", fixes=(Fix(Span("f", 1, column, len(was)), was, text),))

    one, touching, apart = found(1, "ab", "x"), found(3, "c", "y"), found(5, "e", "z")
    assert compatible((one, touching, apart, one), ["f"]) == (one, apart, one)
    assert compatible((one, apart), ["g"]) == ()


RIGHT = (
    *("defaults: [_self_]", 'name: "no"', "seed: 7", "groups:"),
    *("  rollout: {ranks: 4, device_type: cpu}", "  train:", "    ranks: 2"),
    *("    device_type: cpu", "components:"),
    *("  prompts: {_target_: arithmetic.Prompts, group: rollout}", "  actor:"),
    *("    _target_: arithmetic.Actor", "    group: train", "    parallel: {fsdp_size: 2}"),
    *("pipeline:", "  batch: {call: prompts.next, samples: 64}"),
    *("  metrics: {call: actor.update, in: batch, collect: mean}", "run: {steps: 1000}"),
)
MISTAKES = {
    'name: "no"': ["name: no"],
    "seed: 7": ["sed: 7"],
    "ranks: 4": ["rank: 4", "'rank': 4", "num_gpus: 4"],
    "device_type: cpu": ["device: cpu", "device_type: cppu", "device-type: 'cpu'"],
    "    group: train": ["    group: trian", "    grup: train"],
    "fsdp_size: 2": ["fsdp: 2", "fsdp_sizes: 2", "dp_shard_size: 2"],
    "call: actor.update": ["call: actr.update", "call: actor.updat", "cal: actr.update"],
    "in: batch": ["in: bach", "inputs: batch"],
    "collect: mean": ["collect: maen", "colect: mean"],
    "steps: 1000": ["max_steps: 1000", "stpes: 1000"],
}
SAME = {"device-type: 'cpu'": "device_type: 'cpu'", "'rank': 4": "'ranks': 4"}
"""Mistake -> text after the fix, if that differs from the original text because quotes and brackets are
kept."""


@st.composite
def wrong_recipes(draw: st.DrawFn) -> tuple[str, str]:
    """Draws a recipe with mistakes, and the same recipe without them."""
    end = draw(st.sampled_from(["\n", "\r\n"]))
    remark = draw(st.sampled_from(["", "  # 字 rank: no", " #\t1e3"]))
    wrong, right = [], []
    for line in RIGHT:
        written = line
        for correct, mistakes in MISTAKES.items():
            if correct in line and (mistake := draw(st.sampled_from([correct, *mistakes]))) != correct:
                written = written.replace(correct, mistake)
                line = line.replace(correct, SAME.get(mistake, correct))
        wrong.append(written + remark)
        right.append(line + remark)
    start, last = draw(st.sampled_from(["", "\ufeff"])), draw(st.sampled_from(["", end]))
    return start + end.join(wrong) + last, start + end.join(right) + last


@settings(max_examples=examples(15, 100))
@given(wrong_recipes())
def test_fixing_makes_the_recipe_correct_and_changes_nothing_else(recipes: tuple[str, str]) -> None:
    wrong, right = recipes
    assert repaired(wrong) == right
    assert not loaded(right).report.errors
