"""Reads a few hundred of the inputs that `fuzzing.py` makes by the hundred thousand."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshctl.recipe.load import load
from tests.recipe.fuzzing import WATCH, Found, check, corpus, mutated, warm


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("fuzz")
    sys.addaudithook(WATCH)
    warm(made)
    return made


@pytest.mark.parametrize("seed", range(8))
def test_mutated_recipes_end_in_a_report(seed: int, folder: Path) -> None:
    chance, recipes = random.Random(seed), corpus()
    for _ in range(60):
        check(*mutated(recipes, chance), folder)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(recipe=st.binary(max_size=400))
def test_any_bytes_end_in_a_report(folder: Path, recipe: bytes) -> None:
    check(recipe, [], folder)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(overrides=st.lists(st.text(st.characters(exclude_characters="\x00"), max_size=40), max_size=3))
def test_any_overrides_end_in_a_report(folder: Path, overrides: list[str]) -> None:
    check(b"name: x\ngroups: {a: {ranks: 1, device_type: cpu, program: {module: m}}}\n", overrides, folder)


def test_it_sees_what_a_recipe_must_not_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def evil(*arguments: object, **more: object) -> object:
        (folder / "ran").write_text("x")
        return load(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr("tests.recipe.fuzzing.load", evil)
    with pytest.raises(Found, match="it did something: open"):
        check(b"a: 1\n", [], folder)
