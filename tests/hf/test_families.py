"""The families of 2026: each layout equals one process, or `validate` refuses it and names one that works."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from meshctl import Batch
from meshctl.hf import Model, ModelError, Sampler
from meshctl.labels import IGNORED
from meshctl.recipe.load import load
from meshctl.runtime.batch.batch import Ragged
from tests.hf import parity
from tests.hf.families import EQUAL, FAMILIES, LAYOUTS, ROUNDING, SAMPLED, cell
from tests.hf.parity import EXACT, ROUNDED, Case, Gate
from tests.hf.random_layouts import arguments_of
from tests.hf.test_parity import verdicts
from tests.runtime import worlds


@pytest.fixture(scope="module", autouse=True)
def known() -> Iterator[None]:
    parity.ALL.update(FAMILIES)
    yield
    for name in FAMILIES:
        del parity.ALL[name]


@dataclass(frozen=True, eq=False)
class Cell:
    """A family on a layout."""

    family: str
    layout: str
    ranks: int = 2

    @property
    def case(self) -> Case:
        return Case(self.family, **LAYOUTS[self.layout][1])

    @property
    def sizes(self) -> dict[str, Any]:
        return LAYOUTS[self.layout][0]

    @property
    def gate(self) -> Gate:
        return ROUNDED if self.family in ROUNDING else EXACT


CELLS = [Cell(family, layout) for family in FAMILIES for layout in LAYOUTS]
SAME = [one for one in CELLS if cell(one.family, one.layout) == EQUAL]


def diagonal() -> list[Cell]:
    """Returns a cell of each family, of different layouts."""
    found, layouts = [], [*LAYOUTS]
    for number, family in enumerate(FAMILIES):
        turned = layouts[number % len(layouts) :] + layouts[: number % len(layouts)]
        found.append(
            next(one for name in turned for one in SAME if (one.family, one.layout) == (family, name))
        )
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_what_cannot_be_equal_is_refused_with_a_remedy(family: str, tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text('{"text": "a"}\n')
    for layout, (sizes, _) in LAYOUTS.items():
        case = Cell(family, layout).case
        texts = {"path": "texts.jsonl", "tokenizer": "byte", "max_length": 32, "pack": case.packed}
        actor = {"parallel": parity.keys_of(sizes), "args": arguments_of(case)}
        recipe = {
            "groups": {"train": {"ranks": 2, "device_type": "cpu"}},
            "components": {
                "texts": {"_target_": "meshctl.data.Text", "group": "train", "args": texts},
                "actor": {"_target_": "meshctl.hf.Model", "group": "train", **actor},
            },
            "pipeline": {
                "batch": {"call": "texts.next", "samples": 8},
                "metrics": {"call": "actor.update", "in": "batch"},
            },
            "run": {"steps": 2},
        }
        (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
        found = load("recipe.yaml", [], tmp_path, environ={}).report.diagnostics
        errors = [one for one in found if one.severity == "error"]
        expected = cell(family, layout)
        assert [one.code for one in errors] == [expected] * (expected != EQUAL), (layout, errors)
        assert all(one.help for one in errors)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sampler_has_the_log_probabilities_of_the_trained_model(family: str, tmp_path: Path) -> None:
    config = {**FAMILIES[family], "initializer_range": 0.3}
    options: dict[str, Any] = {"dtype": "float64", "experts": "eager" if "expert" in str(config) else None}
    sampler = Sampler(config, tokenizer="byte", max_new_tokens=6, group_size=2, **options)
    if (expected := cell(family, SAMPLED)) == EQUAL:
        trained = Model(config, **options)
        sampler.load_weights(trained.weights())
        answers = sampler.sample(Batch({"prompt_ids": Ragged.of([torch.arange(97, 103)] * 2)}))
        learned = answers["labels"].values != IGNORED
        own, sampled = trained.logprobs(answers)["logprobs"].values, answers["sampled_logprobs"].values
        atol = 1e-6 if family in ROUNDING else 1e-12  # float32 may round the last bit of float64 up or down
        torch.testing.assert_close(own[learned], sampled[learned], rtol=0, atol=atol)
        assert learned.sum() > 12
        return
    with pytest.raises(ModelError, match=r"it supports neither `hf.Sampler`"):
        sampler.setup()
    args = {"model": config, "tokenizer": "byte", "max_new_tokens": 6}
    recipe = {
        "groups": {"rollout": {"ranks": 1, "device_type": "cpu"}},
        "components": {"sampler": {"_target_": "meshctl.hf.Sampler", "group": "rollout", "args": args}},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    found = load("recipe.yaml", [], tmp_path, environ={}).report.diagnostics
    assert (expected, "sample with meshctl.vllm.Sampler") in [(one.code, one.help) for one in found]


def test_a_diagonal_equals_one_process() -> None:
    check(diagonal())


@pytest.mark.nightly
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("family", FAMILIES)
def test_all_layouts_equal_one_process(family: str) -> None:
    check([one for one in SAME if one.family == family])


def check(cells: list[Cell]) -> None:
    found = verdicts(tuple(cells))
    assert {f"{one.family} {one.layout}": text for one, text in found.items() if text != worlds.PASSED} == {}
