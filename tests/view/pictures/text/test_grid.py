"""A mesh as a grid, and producers and consumers as lanes."""

from __future__ import annotations

import pytest

from meshctl.topology.mesh import DeviceMesh
from meshctl.view.pictures.text.grid import grid
from meshctl.view.pictures.text.pipeline import lanes_of
from meshctl.view.pictures.text.styled import Line


def plain(lines: list[Line]) -> list[str]:
    return [each.text.rstrip() for each in lines]


def test_what_has_no_room_is_left_out_in_the_middle() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=1000, tp_size=64)
    assert plain(grid(mesh, None, 34, 4)) == [
        " dp │ tp      0      1  …     63",
        "  0 │         0      1  …     63",
        "  1 │        64     65  …    127",
        "  … │         …      …  …      …",
        "999 │     63936  63937  …  63999",
    ]
    assert plain(grid(mesh, None, 34, 2))[1:] == [
        "  0 │         0      1  …     63",
        "999 ┆     63936  63937  …  63999",
    ]
    assert grid(mesh, None, 12, 4) == []


@pytest.mark.parametrize(
    ("order", "pairs", "rows"),
    [
        ("abc", "ab bc", ["╭───a", "╰─┬─b", "  ╰─c"]),  # a chain
        ("abcd", "ab ac bd cd", ["╭─────a", "├─┬───b", "╰─│─┬─c", "  ╰─┴─d"]),  # a value with two consumers
        ("abcde", "ab ce de", ["╭───a", "╰───b", "╭───c", "│ ╭─d", "╰─┴─e"]),  # a tag is used again
        ("abc", "ac", ["╭─a", "│b", "╰─c"]),  # a stage outside of the rails
        ("ab", "", None),
        ("ab", "ba", None),  # an input from a later stage
        ("abcdefghijklmnopqrs", " ".join(f"{name}s" for name in "abcdefghijklmnopqr"), None),
    ],
)
def test_lanes(order: str, pairs: str, rows: list[str] | None) -> None:
    inputs = [(pair[0], pair[1]) for pair in pairs.split()]
    found = lanes_of(list(order), inputs, dict.fromkeys(order, ""))
    assert (found and [found.stages[name].text.rstrip() + name for name in order]) == rows
