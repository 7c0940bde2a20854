"""The SVG: valid XML that is complete in itself, its text, both themes, and its bounds."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from meshctl.plan.views.topology import topology
from meshctl.view.pictures.colors import tokens
from meshctl.view.pictures.svg import COLUMN_PX, draw, escaped
from tests.view.pictures.plans import PLANS, everything, hundred_thousand, many, odd

SVG = "{http://www.w3.org/2000/svg}"


def texts(drawn: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(drawn).iter(f"{SVG}text"))


def words(drawn: str) -> str:
    return "\n".join(found.text or "" for found in texts(drawn))


@pytest.mark.parametrize("name", PLANS)
def test_it_is_xml_that_stands_alone(name: str) -> None:
    drawn = draw(topology(PLANS[name]()))
    root = ElementTree.fromstring(drawn)
    assert root.tag == f"{SVG}svg" and root.get("role") == "img"
    labels = {found.get("id"): found.text for found in root if found.get("id")}
    assert set((root.get("aria-labelledby") or "").split()) == set(labels) and all(labels.values())
    assert not re.search(r"(href|src|@import|url\(|<script|<image|<foreignObject|\bon\w+=)", drawn)
    assert set(re.findall(r"https?://[^\"]+", drawn)) == {"http://www.w3.org/2000/svg"}


def test_it_has_the_text_of_the_text_picture() -> None:
    shown = words(draw(topology(everything())))
    for text in (
        "everything",
        "placement",
        "groups",
        "pipeline",
        "idle",
        "cuda",
        "npu",
        "cpu",
        "7 -> 16",
        "16 -> 4",
    ):
        assert text in shown, text
    assert "nodes 0-2499" in words(draw(topology(hundred_thousand())))


@pytest.mark.parametrize("name", PLANS)
def test_texts_have_their_columns(name: str) -> None:
    """In any font, no text overlaps with the next one on its line."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for text in texts(draw(topology(PLANS[name]()))):
        x, width = float(text.get("x", "")), float(text.get("textLength", ""))
        assert width / COLUMN_PX == pytest.approx(round(width / COLUMN_PX), abs=1e-3)
        lines.setdefault(text.get("y", ""), []).append((x, x + width))
    for spans in lines.values():
        assert all(before[1] <= after[0] + 1e-3 for before, after in pairwise(spans))


def test_both_themes_are_in_it() -> None:
    light, _, dark = draw(topology(everything())).partition("prefers-color-scheme: dark")
    for name in ("text", "muted", "page", "warn", "h0-tint", "h7-text"):
        assert tokens()[name].light in light and tokens()[name].dark in dark, name


def test_odd_names_are_text() -> None:
    drawn = draw(odd())
    assert "<script>alert(1)</script>" in words(drawn)
    assert {found.tag for found in ElementTree.fromstring(drawn).iter()} <= {
        f"{SVG}{tag}" for tag in ("svg", "title", "desc", "style", "rect", "text")
    }


def test_text_that_xml_cannot_represent_is_replaced() -> None:
    assert (
        escaped("a\x00\ud800\uffff<&\"'>b\U0001f600") == "a\ufffd\ufffd\ufffd&lt;&amp;&quot;'&gt;b\U0001f600"
    )


def test_it_is_bounded() -> None:
    drawn = draw(many(500))
    assert len(drawn) < 300_000 and words(drawn).count("more") >= 1
