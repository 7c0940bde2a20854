"""Command lines whose words are not the intended ones: one message says what to write."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshctl.cli.misspelt import answer

ANSWERS = {
    ("launch", "my", "recipe.yaml"): "quote the name of a file that contains spaces: 'my recipe.yaml'",
    ("validate", "my", "recipe.yaml"): "quote the name of a file that contains spaces: 'my recipe.yaml'",
    ("launch", "r.yaml", "run.steps", "=", "3"): "an override is one word: write run.steps=3",
    ("validate", "r.yaml", "run.steps=", "3"): "an override is one word: write run.steps=3",
    ("config", "r.yaml", "run.steps", "=3"): "an override is one word: write run.steps=3",
    ("launch", "r.yaml", "run.show=[a.b,", "c.d]"): (
        "quote an override that contains spaces: 'run.show=[a.b, c.d]'"
    ),
    ("show-topology", "run.steps=3", "seed=1", "r.yaml"): (
        "the recipe comes before its overrides: meshctl show-topology r.yaml run.steps=3 seed=1"
    ),
    ("launch", "r.yaml", "\u2014dry-run"): "`\u2014dry-run` begins with a typographic dash: write --dry-run",
    ("launch", "r.yaml", "\u2013m"): "`\u2013m` begins with a typographic dash: write -m",
    ("launch", "r.yaml", "vars.token", "=", "hf_abcdefghijklmnopqrstuvwxyz01"): (
        "an override is one word: write vars.token=<redacted>"
    ),
    ("launch", "r.yaml", "--run.steps=3"): "overrides are written without dashes: run.steps=3",
    ("validate", "r.yaml", "-run.steps", "3"): "overrides are written without dashes: run.steps=3",
    ("config", "r.yaml", "--vars.x"): "overrides are written without dashes: vars.x=VALUE",
    ("launch", "--config-name", "exp", "--config-path=conf"): (
        "`--config-name` is a flag of Hydra; the same is: meshctl launch RECIPE"
    ),
    ("launch", "--hydra-help"): "`--hydra-help` is a flag of Hydra; the same is: meshctl launch --help",
}
RIGHT = (
    ("launch", "r.yaml", "run.steps=3", "run.show=[a.b,c.d]"),
    ("launch", "r.yaml", "run.dir=", "seed=1"),
    ("validate", "run.steps=3", "r.yaml"),
    ("launch", "--replay", "batch=folder", "r.yaml"),
    ("show-topology", "r.yaml", "--diff", "run.steps = 3"),
    ("explain", "my", "recipe.yaml"),
    ("init", "--run.steps=3"),
    ("doctor", "--run"),
    ("launch", "r.yaml", "--dry-run", "-m", "a=1"),
    (),
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("r.yaml", "my recipe.yaml"):
        (tmp_path / name).write_text("name: x\n")


@pytest.mark.parametrize("words", ANSWERS)
def test_the_answer_has_the_right_words(words: tuple[str, ...]) -> None:
    assert answer(words) == ANSWERS[words]


@pytest.mark.parametrize("words", RIGHT)
def test_right_words_have_no_answer(words: tuple[str, ...]) -> None:
    assert answer(words) == ""
