"""Limits of arguments: ranges of numbers, and arguments that exclude each other."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from meshctl.argument_limits import Range, check_arguments


@pytest.mark.parametrize(
    ("text", "inside", "outside", "described"),
    [
        (">= 1", [1, 2.5], [0, -1, 0.5, float("nan"), float("inf")], "at least 1"),
        ("> 0, <= 1", [0.1, 1], [0, 1.5, -1], "above 0 and at most 1"),
        (">= 0, whole", [0, 2, 2.0], [0.1, 2.5, -1], "a whole number of at least 0"),
        ("<-0.5", [-1, -0.75], [-0.5, 0], "below -0.5"),
    ],
)
def test_a_range_has_the_finite_numbers_within_its_bounds(
    text: str, inside: list[float], outside: list[float], described: str
) -> None:
    found = Range.of(text)
    assert found is not None and found.described == described
    assert all(map(found.has, inside)) and not any(map(found.has, outside))
    assert all(map(found.has, [None, "2", True, []])), "what is no number is not judged"


@pytest.mark.parametrize("text", ["", "1", "=> 1", ">= one", ">= 1,", ">= 1 and < 2", 1, None])
def test_other_texts_are_no_range(text: object) -> None:
    assert Range.of(text) is None


class Limited:
    RANGES: ClassVar = {"args.share": "> 0, <= 1", "args.lora.r": ">= 1"}
    EXCLUDES: ClassVar = {"args.tokens": ("args.samples", "args.lora")}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"share": 0}, "`share` is above 0 and at most 1, not 0"),
        ({"lora": {"r": 0}}, "`lora.r` is at least 1, not 0"),
        ({"tokens": 8, "samples": 1}, "`tokens` and `samples` exclude each other"),
    ],
)
def test_a_constructor_refuses_what_its_class_does_not_accept(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(KeyError, match=message):
        check_arguments(Limited, arguments, KeyError)
    check_arguments(Limited, {"share": None, "lora": {}, "tokens": 8, "samples": 0}, KeyError)
    check_arguments(object, arguments, KeyError)
