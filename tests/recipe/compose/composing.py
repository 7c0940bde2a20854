"""Composes recipes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import strategies as st

from meshctl.recipe.compose.composition import Composed, compose
from meshctl.recipe.compose.yaml_scalars import scalar
from meshctl.recipe.compose.yaml_tree import leaves
from meshctl.recipe.load import config_folders


def composed(recipe: Path, *overrides: str, cwd: Path | None = None) -> Composed:
    return compose(recipe, overrides, cwd or recipe.parent, config_folders(recipe.parent, ()))


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder / next(iter(files))


def check_spans(result: Composed) -> None:
    """Checks that the text at the place of each value is the value."""
    for path, leaf in leaves(result.tree):
        if path and leaf.value not in ({}, []):  # which may have become empty by `~key`
            line = dict(result.sources)[leaf.span.file][leaf.span.line - 1]
            text = line[leaf.span.column - 1 : leaf.span.column - 1 + leaf.span.width]
            assert reads_as(text, leaf.span.file.startswith("override")) == leaf.value, (path, text)


def reads_as(text: str, is_override: bool) -> Any:
    """Returns the value of a text, read by itself."""
    if is_override:
        return OverridesParser.create().parse_override(f"key={text}").value()
    return yaml.safe_load(text) if text[:1] in ("'", '"', "[", "{") else scalar(text)


SCALARS = st.one_of(
    st.integers(-3, 99),
    st.booleans(),
    st.none(),
    st.sampled_from(["text", "1e3", "0.5", "???", "${vars.a}", "x y", "it's"]),
)
