"""The facts of a recipe that is given as plain data, and the report about one that is given as text."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.code.classes import Code, GroupCode
from meshctl.recipe.compose.yaml_tree import of_plain
from meshctl.recipe.load import Loaded, load
from meshctl.recipe.reader import read
from meshctl.recipe.rules import Facts
from tests.paths import RECIPE_GOLDEN

CODE = GroupCode(Code((str(RECIPE_GOLDEN),)))


def facts_of(recipe: dict[str, Any]) -> Facts:
    """Its classes are those of the golden recipes."""
    tree = of_plain(recipe, Span("x.yaml", 1, 1))
    result = read(tree, "stem")
    assert not result.found, result.found
    return Facts(result, tree, CODE)


def loaded(folder: Path, recipe: str, *, environ: Mapping[str, str] = {}, **modules: str) -> Loaded:
    """Loads a recipe in a folder with these modules beside it."""
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(dedent(text))
    (folder / "recipe.yaml").write_text(recipe)
    return load("recipe.yaml", [], folder, environ=environ, detect=lambda: "cpu")


def reported(
    folder: Path,
    recipe: str,
    codes: Collection[str] = (),
    *,
    environ: Mapping[str, str] = {},
    **modules: str,
) -> list[Diagnostic]:
    """Returns the diagnostics about a recipe, of these codes or of all."""
    found = loaded(folder, recipe, environ=environ, **modules).report.diagnostics
    return [one for one in found if not codes or one.code in codes]


def lines(one: Diagnostic) -> list[int]:
    """Returns the lines that a diagnostic marks."""
    return [span.line for span in (one.primary, *one.seconds) if span]


def transformers(folder: Path, **configs: str) -> None:
    """Writes an invented transformers with the bodies of the config classes of some architectures."""
    for kind, body in configs.items():
        file = folder / "transformers" / "models" / kind / f"configuration_{kind}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        text = f'class {kind.title()}Config(PreTrainedConfig):\n    model_type = "{kind}"\n'
        file.write_text(text + "".join(f"    {line}\n" for line in body.splitlines()))
    (folder / "transformers" / "__init__.py").touch()
