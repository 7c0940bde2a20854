"""The documents are true: tables are those of the code, Python runs, and every path that they name exists."""

from __future__ import annotations

import re
import runpy

import pytest

from tests.paths import PACKAGE, ROOT

DOCS = sorted((ROOT / "docs").glob("*.md"))
TEXTS = {
    path.name: path.read_text(encoding="utf-8")
    for path in (*DOCS, ROOT / "README.md", ROOT / "CONTRIBUTING.md")
}


def test_the_key_tables_are_those_of_the_fields() -> None:
    filled = runpy.run_path(str(ROOT / "docs" / "reference.py"))["filled"]
    assert filled(TEXTS["recipes.md"]) == TEXTS["recipes.md"], "run: python docs/reference.py"


def test_a_mesh_answers_as_documented() -> None:
    code = next(block for block in _python("recipes.md") if "DeviceMesh" in block)
    names: dict[str, object] = {}
    exec(compile(code, "recipes.md", "exec"), names)
    asked = [line.split("#") for line in code.splitlines() if "#" in line]
    assert len(asked) == 6
    for question, answer in asked:
        assert eval(question, names) == eval(re.split(r"[;:,] (?=[a-z])", answer.strip())[0]), question


@pytest.mark.parametrize("name", TEXTS)
def test_python_blocks_compile(name: str) -> None:
    for block in _python(name):
        compile(block, name, "exec")


OF_A_RUN = ("runs/", "logs/", "events/", "recorded/", "checkpoints/")
"""Folders that only a run has."""


@pytest.mark.parametrize("name", TEXTS)
def test_links_and_paths_exist(name: str) -> None:
    folder = ROOT / "docs" if (ROOT / "docs" / name).exists() else ROOT
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", TEXTS[name]) if "://" not in link]
    assert not [link for link in links if not (folder / link).exists()]
    paths = re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?)`", TEXTS[name])
    homes = (ROOT, PACKAGE, *(path for path in PACKAGE.iterdir() if path.is_dir()))
    missing = [path for path in paths if not any((home / path).exists() for home in homes)]
    assert not [path for path in missing if not path.startswith(OF_A_RUN)]


def _python(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", TEXTS[name], re.DOTALL)
