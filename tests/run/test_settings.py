"""The sources that end a run when they have no more data."""

from __future__ import annotations

from typing import Any

import pytest

from meshctl.run.settings import bounding_sources
from tests.runtime.plans import call


@pytest.mark.parametrize(
    ("sources", "bounding"),
    [
        ([{}], "a"),
        ([{}, {}], "ab"),
        ([{}, {"every": 2}], "a"),
        ([{"every": 3}, {"every": 2}, {"every": 2}], "bc"),
        ([{}, {"every": 2, "ends_run": True}], "ab"),
        ([{"ends_run": False}, {"every": 2}], ""),
        ([{"when": "start"}, {"every": 4}], "b"),
        ([{"when": "checkpoint"}], ""),
        ([], ""),
    ],
)
def test_sources_that_bound_a_run(sources: list[dict[str, Any]], bounding: str) -> None:
    stages = [call(name, "x.next", samples=1, **more) for name, more in zip("abc", sources, strict=False)]
    taking = call("z", "y.take", "a")
    assert "".join(bounding_sources([*stages, taking])) == bounding
