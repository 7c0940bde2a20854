"""Composes recipes."""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st

from meshctl.recipe.compose.composition import Composed, compose
from meshctl.recipe.load import config_folders


def composed(recipe: Path, *overrides: str, cwd: Path | None = None) -> Composed:
    return compose(recipe, overrides, cwd or recipe.parent, config_folders(recipe.parent, ()))


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder / next(iter(files))


SCALARS = st.one_of(
    st.integers(-3, 99),
    st.booleans(),
    st.none(),
    st.sampled_from(["text", "1e3", "0.5", "???", "${vars.a}", "x y"]),
)
