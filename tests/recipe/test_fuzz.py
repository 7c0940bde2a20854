"""Reads and prints a few hundred of the inputs that `fuzzing` generates."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshctl.recipe.load import load
from tests.examples import examples
from tests.recipe.fuzzing import WATCH, Found, Input, check, corpus, mutated, warm


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made, before = tmp_path_factory.mktemp("fuzz"), Path.cwd()
    sys.addaudithook(WATCH)
    warm(made)
    yield made
    os.chdir(before)


@pytest.mark.hypothesis
@pytest.mark.parametrize("seed", range(examples(2, 8)))
def test_mutated_recipes_end_in_a_report(seed: int, folder: Path) -> None:
    chance, recipes = random.Random(seed), corpus()
    for _ in range(examples(25, 1000)):
        check(mutated(recipes, chance), folder)


MILLION = "groups: {{a: {{ranks: {0}, device_type: {1}, program: r.py}}, b: {{ranks: 6, visible_devices: '2,3,4,5,6,1000000', device_type: {1}, program: r.py}}}}\n"


SECRETS = "vars: {x: '" + "".join(f"token: ~{number}..." for number in range(5_000)) + "'}\n"


@pytest.mark.parametrize("recipe", [SECRETS, MILLION.format(1_000_000, "cuda"), MILLION.format(6, "cpu")])
def test_thousands_of_secrets_and_a_million_devices_take_two_seconds_at_most(
    recipe: str, folder: Path
) -> None:
    assert check(Input(recipe.encode()), folder).readable


def test_it_sees_what_a_recipe_must_not_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def evil(*arguments: object, **more: object) -> object:
        (folder / "ran").write_text("x")
        return load(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr("tests.recipe.fuzzing.load", evil)
    with pytest.raises(Found, match="it did something: open"):
        check(Input(b"a: 1\n"), folder)
