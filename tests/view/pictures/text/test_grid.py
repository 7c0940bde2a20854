"""A mesh as a grid, and producers and consumers as lanes."""

from __future__ import annotations

import pytest

from meshctl.plan.views.topology import ProcessGroups
from meshctl.topology.mesh import DeviceMesh
from meshctl.view.pictures.text.grid import example, grid, spread
from meshctl.view.pictures.text.pipeline import lanes_of
from meshctl.view.pictures.text.styled import Line


def plain(lines: list[Line]) -> list[str]:
    return [each.text.rstrip() for each in lines]


def test_first_and_last_are_kept() -> None:
    assert spread(4, 4) == [0, 1, 2, 3]
    assert spread(9, 5) == [0, 1, 2, None, 8]
    assert spread(9, 3) == [0, 1, 8] and spread(9, 2) == [0, 8]


def test_rows_show_their_nodes_where_they_fit() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=2, tp_size=4)
    assert plain(grid(mesh, lambda rank: rank // 3, 80, 8))[1:] == [
        " 0 │     0  1  2  3  nodes 0-1",
        " 1 │     4  5  6  7  nodes 1-2",
    ]
    assert plain(grid(mesh, lambda rank: rank // 3, 24, 8))[1:] == [
        " 0 │     0  1  2  3",
        " 1 │     4  5  6  7",
    ]


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


def test_explicit_ranks_are_what_they_are() -> None:
    mesh = DeviceMesh.from_ranks([[3, 1], [0, 2]], ("rows", "columns"))
    assert plain(grid(mesh, None, 80, 8)) == [
        "rows │ columns  0  1",
        "   0 │          3  1",
        "   1 │          0  2",
    ]


def test_an_uneven_group_is_shown_by_its_first_ranks() -> None:
    assert example(ProcessGroups("dp", 1, 9, None, (0, 1, 5, 6, 9, 10, 12, 13), "all")) == "0 1 5 …"


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
