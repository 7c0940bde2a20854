"""Limits of arguments: ranges of numbers, and arguments that exclude or need each other."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest

from meshctl.argument_limits import ALWAYS, NO_FACTS, Shipped, check_arguments, out_of_range
from meshctl.recipe.code.classes import ROOMS


@pytest.mark.parametrize(
    ("text", "inside", "outside", "described"),
    [
        (">= 1", [1, 2.5], [0, -1, 0.5, float("nan"), float("inf")], "at least 1"),
        ("> 0, <= 1", [0.1, 1], [0, 1.5, -1], "above 0 and at most 1"),
        (">= 0, whole", [0, 2, 2.0], [0.1, 2.5, -1], "a whole number of at least 0"),
        ("< -0.5", [-1, -0.75], [-0.5, 0], "below -0.5"),
    ],
)
def test_a_range_has_the_finite_numbers_within_its_bounds(
    text: str, inside: list[float], outside: list[float], described: str
) -> None:
    assert all(out_of_range(text, one) == f"is {one}; it must be {described}" for one in outside)
    assert not any(out_of_range(text, one) for one in [*inside, None, "2", True])


def test_every_shipped_range_can_be_read() -> None:
    for room in ROOMS:
        for facts in import_module(f"meshctl.{room}.checks").SHIPPED.values():
            assert all(isinstance(out_of_range(text, 1.0), str) for text in facts.ranges.values())


LIMITED = Shipped(
    ranges={"share": "> 0, <= 1", "lora.r": ">= 1", "betas": "< 1"},
    excludes={"tokens": ("samples", "lora")},
    needs={ALWAYS: ("tokens", "samples"), "limit": ("workers",)},
    reserved={"engine": ("model",)},
)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"share": 0}, "`share` is 0; it must be above 0 and at most 1"),
        ({"lora": {"r": 0}}, "`lora.r` is 0; it must be at least 1"),
        ({"betas": [0.5, 1]}, "`betas` is 1; it must be below 1"),
        ({"tokens": 8, "samples": 1}, "`tokens` and `samples` exclude each other"),
        ({"tokens": 0}, "the constructor needs `tokens` or `samples`"),
        ({"tokens": 1, "limit": 5, "workers": 0}, "`limit` needs `workers`"),
        ({"tokens": 1, "engine": {"model": "m"}}, "`engine.model` follows from other arguments"),
    ],
)
def test_a_constructor_refuses_what_its_class_does_not_accept(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(KeyError, match=message):
        check_arguments(LIMITED, arguments, KeyError)
    check_arguments(LIMITED, {"share": None, "lora": {}, "tokens": 8, "samples": 0}, KeyError)
    check_arguments(NO_FACTS, arguments, KeyError)


def test_facts_are_read_without_libraries() -> None:
    """Every range is one, and torch, transformers and vLLM are not needed."""
    barred = "import sys; sys.modules.update(dict.fromkeys(['torch', 'transformers', 'vllm', 'numpy']))"
    read = "".join(
        f"from meshctl.{room}.checks import SHIPPED as s; [*map(lambda o: [*o.problems({{}})], s.values())]; "
        for room in ROOMS
    )
    subprocess.run([sys.executable, "-c", f"{barred}; {read}"], check=True)
