"""Lines with styles, cut, folded and aligned in the columns of a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshctl.view.pictures.text.styled import (
    PALETTE,
    Column,
    Line,
    Row,
    columns,
    cut,
    printed,
    styled,
    width_of,
)


def test_a_name_is_cut_in_its_middle() -> None:
    assert cut("a_long_name_of_something", 11) == "a_lon…thing"
    assert cut("short", 5) == "short" and cut("shorter", 1) == "…" and cut("shorter", 0) == ""
    assert cut("日本語グループ", 8) == "日本…プ" and width_of(cut("日本語グループ", 7)) <= 7


@given(st.text(), st.integers(0, 20))
def test_nothing_cut_is_too_wide(text: str, width: int) -> None:
    assert width_of(cut(text, width)) <= width
    for shorter in (Line.clip, Line.fit, Line.by_words):
        assert shorter(Line("ab", text, styled(text, "bold")), width).width <= width


def test_nothing_in_a_name_drives_the_terminal() -> None:
    for character in "\x1b\n\r\u2028\u202e\x7f\x00\u200b":
        assert character not in printed([Line(f"a{character}b")], color=True).rstrip("\n")
    spaces = {"a\u3000b": "a  b", "a\u00a0b": "a b", "a\tb": "a    b"}
    assert {text: styled(text).text for text in spaces} == spaces


@pytest.mark.parametrize(
    ("row", "shape", "shown"),
    [
        (
            (Line("a_very_long_name"), Line("spare"), Line("kept")),
            (Column(least=6), Column(spare=1), Column()),
            {
                40: "a_very_long_name  spare  kept",
                24: "a_ver…_name  spare  kept",
                17: "a_ver…_name  kept",
                12: "a_v…me  kept",
            },
        ),
        (  # a part of a number would be another number
            (Line("dp"), Line("4095 8191", styled(" 12287", "bold"), " … 65535")),
            (Column(), Column(least=9, shorten=Line.by_words)),
            {
                40: "dp  4095 8191 12287 … 65535",
                24: "dp  4095 8191 12287 …",
                17: "dp  4095 8191 …",
                13: "dp  4095 …",
            },
        ),
    ],
)
def test_where_there_is_no_room_some_are_cut_and_some_left_out(
    row: Row, shape: list[Column], shown: dict[int, str]
) -> None:
    assert {width: columns([row], shape, width)[0].text for width in shown} == shown
    assert all(columns([row], shape, width)[0].width <= width for width in range(40))


def test_colors_are_codes_and_plain_text_has_none() -> None:
    assert printed([Line(styled("A", "C0"), " x")], color=True) == f"\x1b[1;38;5;{PALETTE[0]}mA\x1b[0m x\n"
    assert printed([Line(styled("A", "C0"), " x  ")]) == "A x\n"
