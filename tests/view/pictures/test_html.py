"""The page as a file: it loads nothing, its content security policy forbids everything else, its data is the
topology, and names are escaped."""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64encode
from html.parser import HTMLParser

import pytest

from meshctl.plan.views.selection import Selection
from meshctl.plan.views.topology import topology
from meshctl.text.bounded import UNSEEN
from meshctl.view.pictures.colors import HUES, tokens
from meshctl.view.pictures.html import draw
from meshctl.view.pictures.json import data
from tests.view.pictures.plans import PLANS, everything, hundred_thousand, many, odd, one


class Page(HTMLParser):
    """Elements with their attributes, and the text of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open.append(tag)
        self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts[self._open[-1]][-1] += data

    @property
    def data(self) -> tuple[object, object]:
        facts, first = (json.loads(text) for text in self.texts["script"][:2])
        return facts, first


def policy(page: Page) -> dict[str, list[str]]:
    shown = next(
        str(of["content"]) for tag, of in page.elements if of.get("http-equiv") == "Content-Security-Policy"
    )
    return {words[0]: words[1:] for part in shown.split(";") for words in [part.split()]}


def hashed(text: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@pytest.mark.parametrize("name", PLANS)
def test_it_stands_alone(name: str) -> None:
    page = Page(draw(topology(PLANS[name]())))
    loads = [
        value
        for _, of in page.elements
        for key, value in of.items()
        if key in ("src", "href", "srcset", "action", "data")
    ]
    assert all(str(value).startswith(("#", "data:")) for value in loads), loads
    assert not [tag for tag, of in page.elements for key in of if key.startswith("on") or key == "style"]
    never = r"@import|url\(|fetch\(|XMLHttpRequest|import\(|innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\("
    assert not re.search(never, "".join(page.texts["style"] + page.texts["script"][2:]))


def test_the_policy_lets_in_its_own_script_and_style_alone() -> None:
    page = Page(draw(topology(everything())))
    assert policy(page) == {
        "default-src": ["'none'"],
        "style-src": [hashed(page.texts["style"][0])],
        "script-src": [hashed(page.texts["script"][2])],
        "img-src": ["data:"],
        "base-uri": ["'none'"],
        "form-action": ["'none'"],
    }


def test_its_data_is_the_topology() -> None:
    drawn = topology(everything())
    assert Page(draw(drawn)).data[0] == json.loads(json.dumps(data(drawn)))


def test_what_is_chosen_first() -> None:
    chosen = {"select": "train:3", "component": "actor", "dim": "tp", "node": 2, "samples": 100}
    page = Page(draw(topology(everything()), Selection("actor", "tp", 2, ("train", 3), 100)))
    assert page.data[1] == chosen


def test_the_numbers_of_tiles_are_called_ranks() -> None:
    assert "A tile is one worker, with its rank in its group." in draw(topology(one()))


def test_odd_names_are_data() -> None:
    drawn = odd()
    text = draw(drawn)
    page = Page(text)
    facts, _ = page.data
    shown = UNSEEN.sub(
        lambda found: ascii(ascii(found[0])[1:-1])[1:-1], json.dumps(data(drawn), ensure_ascii=False)
    )
    assert facts == json.loads(shown) and not UNSEEN.search(text)
    assert (
        [tag for tag, _ in page.elements].count("script") == 3
        and "<!--" not in text
        and "alert(1)</script>" not in text
    )
    assert {tag for tag, _ in page.elements} == {
        tag for tag, _ in Page(draw(topology(everything()))).elements
    }
    assert page.texts["title"][0].startswith('</title><script>alert(1)</script> & "q"')
    text.encode()


def test_it_grows_with_components_and_not_with_devices() -> None:
    small, large = len(draw(topology(one()))), len(draw(topology(hundred_thousand())))
    assert large < small + 25_000


def test_very_many_of_everything() -> None:
    assert len(draw(many(500))) < 1_500_000


# Colors


def contrast(one: str, other: str) -> float:
    """Returns the contrast ratio of the Web Content Accessibility Guidelines."""
    low, high = sorted(map(_luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


TEXT = [("text", on) for on in ("page", "surface", "sunk", "warn-tint")] + [
    ("muted", on) for on in ("page", "surface", "sunk")
]
TEXT += [
    ("warn", "warn-tint"),
    ("muted", "warn-tint"),
    ("page", "accent"),
    ("page", "text"),
    ("accent", "surface"),
]
TEXT += [
    (f"h{number}-text", on) for number in range(len(HUES)) for on in (f"h{number}-tint", "surface", "page")
]
LINES = [(line, on) for line in ("edge", "accent") for on in ("page", "surface", "sunk")]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_contrast(theme: str) -> None:
    colors = {name: getattr(color, theme) for name, color in tokens().items()}
    assert not [pair for pair in TEXT if contrast(colors[pair[0]], colors[pair[1]]) < 4.5]
    assert not [pair for pair in LINES if contrast(colors[pair[0]], colors[pair[1]]) < 3]
