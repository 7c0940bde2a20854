from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from meshctl.view.formatting import count, duration, number, size


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (
            number,
            {
                0.05: "0.05",
                1.0: "1",
                0.123456: "0.1235",
                1e-7: "1e-07",
                123456.7: "1.235e+05",
                None: "not finite",
                -3: "-3",
            },
        ),
        (duration, {0.04: "0.0 s", 59.9: "59.9 s", 61: "1 min 1 s", 3700: "1 h 1 min"}),
        (size, {0: "0 B", 999: "999 B", 1000: "1 kB", 999_900: "1 MB", 2.5e9: "2.5 GB", 7e15: "7e+03 TB"}),
        (lambda amount: count(amount, "step"), {0: "0 steps", 1: "1 step", 2: "2 steps"}),
    ],
)
def test_numbers(write: Callable[[Any], str], expected: dict[Any, str]) -> None:
    assert {value: write(value) for value in expected} == expected
