"""Safe fixes: for which mistakes they exist, for which they do not, and that they change nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshctl.diagnostics import Diagnostic, Fix, Report, Span
from meshctl.recipe.fields import GROUP, PARALLEL
from meshctl.recipe.fixes import apply, compatible, keep_safe, meant
from meshctl.recipe.load import Loaded, load
from meshctl.topology.cluster import DEVICE_TYPES

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


WRONG = (
    "# rank: no\nname: no  # \u5b57 rank: no\ngroups:\n"
    "  train: {'rank': 4, device-type: 'cpu', program: {module: json.tool}} #\t1e3\nrun: {stpes: 3}"
)
RIGHT = WRONG.replace("name: no", 'name: "no"').replace("'rank': 4", "'ranks': 4")
RIGHT = RIGHT.replace("device-type", "device_type").replace("stpes", "steps")


@pytest.mark.parametrize(("start", "end"), [("", "\n"), ("\ufeff", "\r\n")])
def test_fixing_makes_the_recipe_correct_and_changes_nothing_else(start: str, end: str) -> None:
    wrong, right = (start + text.replace("\n", end) for text in (WRONG, RIGHT))
    assert repaired(wrong) == right and repaired(wrong + end) == right + end
    assert not loaded(right).report.errors
