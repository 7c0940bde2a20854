"""Texts of users' code are bounded, and a terminal obeys nothing in them."""

from __future__ import annotations

import pytest

from meshctl.text.bounded import bounded, plain


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07x", "x"),
        ("a\tb\nc\x00\x08\r\x9b", "a\tb\nc"),
        ("grün ☃", "grün ☃"),
        ("a\u202eb\u200b\u2066", "a?b??"),
    ],
)
def test_a_plain_text_has_no_control_characters(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_a_long_text_keeps_its_beginning_and_its_end() -> None:
    text = bounded("begin" + 3_000_000 * "\x1b[1mx" + "end", 2000)
    assert text.startswith("begin") and text.endswith("end") and "characters are left out" in text
    assert len(text) < 2200 and text.isprintable()
    assert bounded("short", 5) == "short"
