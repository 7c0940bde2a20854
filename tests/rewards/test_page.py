"""The examples of docs/rewards.md run, and its tables are those of the code."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from meshctl import Batch
from meshctl.rewards import Function
from meshctl.rewards.functions import FUNCTIONS
from tests.paths import ROOT

TEXT = (ROOT / "docs" / "rewards.md").read_text(encoding="utf-8")


def _rows(heading: str) -> list[list[str]]:
    """Returns the cells of the table whose first column has a heading."""
    table = TEXT.split(f"| {heading} |")[1].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def _words(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    names = []
    for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        name = re.match(r"# (\w+)\.py\n", block)
        assert name is not None
        (tmp_path / f"{name[1]}.py").write_text(block)
        names.append(name[1])
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for one in names:
        sys.modules.pop(one, None)


def test_the_functions_of_the_page() -> None:
    functions = {"my_rewards.last_number": {"weight": 1, "partial": 0.1}, "my_rewards.short": 0.2}
    judge = Function(functions=functions, workers=0)
    batch = Batch({"response": ["1 and 42", "41", "none"], "solution": torch.tensor([42, 42, 42])})
    assert judge.score(batch)["rewards"].tolist() == pytest.approx([1.2, 0.3, 0.2])
    scores = Batch({"scores": torch.tensor([7.0, -0.5])})
    assert Function("preference.clipped", workers=0).score(scores)["rewards"].tolist() == [5.0, -0.5]


def test_the_components_of_the_page() -> None:
    source = importlib.import_module("additions").Additions(limit=10)
    batch = source.next(range(3, 6))
    sums = [str(sum(map(int, prompt.strip("=").split("+")))) for prompt in batch["prompt"]]
    assert batch["solution"] == sums
    judge = Function("exact_match", workers=0)
    assert judge.score(batch.with_columns(response=sums))["rewards"].tolist() == [1.0] * 3
    own = importlib.import_module("novelty").Novelty()
    assert own.score(Batch({"response": ["a", "a", "b"]}))["rewards"].tolist() == [0.5, 0.5, 1.0]


def test_the_table_of_arguments_is_that_of_the_code() -> None:
    described = {_words(row[0])[0]: row[1].strip("`") for row in _rows("argument")}
    parameters = inspect.signature(Function).parameters
    shown = {name: one.default for name, one in parameters.items()}
    assert described == {
        name: "" if not value and value != 0 else str(value) for name, value in shown.items()
    }


def test_the_table_of_functions_is_that_of_the_code() -> None:
    described = {_words(row[0])[0]: (_words(row[1]), _words(row[2])) for row in _rows("name")}
    assert described.keys() == FUNCTIONS.keys()
    for name, path in FUNCTIONS.items():
        module, _, attribute = path.rpartition(".")
        text = (ROOT / Path(*module.split("."))).with_suffix(".py").read_text(encoding="utf-8")
        arguments = re.search(rf"^def {attribute}\((.*?)\) -> ", text, re.DOTALL | re.MULTILINE)
        assert arguments is not None
        columns, _, options = arguments[1].partition("*,")
        assert described[name] == (re.findall(r"(\w+):", columns), re.findall(r"(\w+):", options))
