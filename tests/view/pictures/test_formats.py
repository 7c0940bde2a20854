"""The page, the SVG and the flowchart of a plan as text: each stands alone, escapes names and is bounded."""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64encode
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from meshctl.plan.views.selection import Selection
from meshctl.plan.views.topology import Topology, topology
from meshctl.text.bounded import UNSEEN
from meshctl.view.pictures import html, mermaid, svg
from meshctl.view.pictures.colors import tokens
from meshctl.view.pictures.json import data
from meshctl.view.pictures.text.picture import pictured
from tests.view.pictures.plans import (
    PLANS,
    everything,
    hundred_thousand,
    many,
    odd,
    one,
    program,
    twice,
    two_sources,
)

# The page


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


def hashed(text: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@pytest.mark.parametrize("name", PLANS)
def test_a_page_stands_alone_and_holds_the_topology(name: str) -> None:
    drawn = topology(PLANS[name]())
    page = Page(html.draw(drawn))
    attributes = [(key, str(value)) for _, of in page.elements for key, value in of.items()]
    loads = [value for key, value in attributes if key in ("src", "href", "srcset", "action", "data")]
    assert all(value.startswith(("#", "data:")) for value in loads), loads
    assert not [key for key, _ in attributes if key.startswith("on") or key == "style"]
    never = r"@import|url\(|fetch\(|XMLHttpRequest|import\(|innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\("
    assert not re.search(never, "".join(page.texts["style"] + page.texts["script"][2:]))
    assert page.data[0] == json.loads(json.dumps(data(drawn)))


def test_the_policy_of_a_page_lets_in_its_own_script_and_style_alone() -> None:
    chosen = {"select": "train:3", "component": "actor", "dim": "tp", "node": 2, "samples": 100}
    page = Page(html.draw(topology(everything()), Selection("actor", "tp", 2, ("train", 3), 100)))
    assert page.data[1] == chosen
    (policy,) = [
        of["content"] for _, of in page.elements if of.get("http-equiv") == "Content-Security-Policy"
    ]
    assert {words[0]: words[1:] for part in str(policy).split(";") for words in [part.split()]} == {
        "default-src": ["'none'"],
        "style-src": [hashed(page.texts["style"][0])],
        "script-src": [hashed(page.texts["script"][2])],
        "img-src": ["data:"],
        "base-uri": ["'none'"],
        "form-action": ["'none'"],
    }


def test_odd_names_are_data_of_a_page() -> None:
    drawn = odd()
    text = html.draw(drawn)
    page = Page(text)
    expected = json.dumps(data(drawn), ensure_ascii=False)
    shown = UNSEEN.sub(lambda found: ascii(ascii(found[0])[1:-1])[1:-1], expected)
    assert page.data[0] == json.loads(shown) and not UNSEEN.search(text)
    assert "<!--" not in text and "alert(1)</script>" not in text
    plain = Page(html.draw(topology(everything())))
    assert {tag for tag, _ in page.elements} == {tag for tag, _ in plain.elements}
    assert [tag for tag, _ in page.elements].count("script") == 3
    assert page.texts["title"][0].startswith('</title><script>alert(1)</script> & "q"')
    text.encode()


# The SVG

SVG = "{http://www.w3.org/2000/svg}"


def words(drawn: str) -> str:
    return "\n".join(found.text or "" for found in ElementTree.fromstring(drawn).iter(f"{SVG}text"))


@pytest.mark.parametrize("name", PLANS)
def test_an_svg_is_xml_that_stands_alone(name: str) -> None:
    """In any font, no text overlaps with the next one on its line."""
    drawn = svg.draw(topology(PLANS[name]()))
    root = ElementTree.fromstring(drawn)
    assert root.tag == f"{SVG}svg" and root.get("role") == "img"
    labels = {found.get("id"): found.text for found in root if found.get("id")}
    assert set((root.get("aria-labelledby") or "").split()) == set(labels) and all(labels.values())
    assert not re.search(r"(href|src|@import|url\(|<script|<image|<foreignObject|\bon\w+=)", drawn)
    assert set(re.findall(r"https?://[^\"]+", drawn)) == {"http://www.w3.org/2000/svg"}
    lines: dict[str, list[tuple[float, float]]] = {}
    for text in root.iter(f"{SVG}text"):
        x, width = float(text.get("x", "")), float(text.get("textLength", ""))
        assert width / svg.COLUMN_PX == pytest.approx(round(width / svg.COLUMN_PX), abs=1e-3)
        lines.setdefault(text.get("y", ""), []).append((x, x + width))
    for spans in lines.values():
        assert all(before[1] <= after[0] + 1e-3 for before, after in pairwise(spans))


def test_an_svg_has_the_text_of_the_text_picture_in_both_themes() -> None:
    drawn = svg.draw(topology(everything()))
    shown = words(drawn)
    for text in ("everything", "placement", "groups", "pipeline", "idle", "npu", "7 -> 16", "16 -> 4"):
        assert text in shown, text
    light, _, dark = drawn.partition("prefers-color-scheme: dark")
    for name in ("text", "muted", "page", "warn", "h0-tint", "h7-text"):
        assert tokens()[name].light in light and tokens()[name].dark in dark, name


def test_odd_names_are_text_of_an_svg() -> None:
    drawn = svg.draw(odd())
    assert "<script>alert(1)</script>" in words(drawn)
    expected = {f"{SVG}{tag}" for tag in ("svg", "title", "desc", "style", "rect", "text")}
    assert {found.tag for found in ElementTree.fromstring(drawn).iter()} <= expected
    replaced = "a\ufffd\ufffd\ufffd&lt;&amp;&quot;'&gt;b\U0001f600"
    assert svg.escaped("a\x00\ud800\uffff<&\"'>b\U0001f600") == replaced


# The flowchart

TEXT = r'"([^"`;<>&{}\\\n]|<br>|#\d+;)*"'
"""A quoted text: only letters, harmless signs, <br> and character codes."""
LINE = re.compile(
    rf"flowchart TB|  end|  subgraph g\d+\[{TEXT}\]|  more\[{TEXT}\]"
    r"|  acc(Title|Descr): [^#\"<>]+"
    rf"|    [stp]\d+\[{TEXT}\]:::h\d|    c\d+_(\d+\[{TEXT}\]:::h\d|more\[{TEXT}\])"
    rf"|  s\d+ (-->|-\.->)\|{TEXT}\| [st]\d+"
    r"|  class g\d+(,g\d+)* group|  classDef \w+ fill:[#\w]+,stroke:#\w{6}(,color:#\w{6})?"
)


def test_every_line_of_a_flowchart_is_one_that_mermaid_knows() -> None:
    for drawn in (*(topology(made()) for made in PLANS.values()), odd(), many(50)):
        assert [line for line in mermaid.draw(drawn).splitlines() if not LINE.fullmatch(line)] == []


@pytest.mark.parametrize(
    ("made", "texts"),
    [
        (
            lambda: topology(everything()),
            [
                'subgraph g2["train: 16 workers on cuda, 3 nodes"]',
                '    s2["B rollouts<br>sampler.sample<br>dp 2 x tp 2"]:::h1',
                '  s2 -->|"2 → 7<br>flatten, slice_dp by tokens<br>8.39 MB, shared memory, tcp"| s4',
                "home of rollouts",
                '-.->|"weights 16 → 4<br>nccl"| t',
                '    c0_0["D extra<br>dp 4"]:::h3',  # a component that no stage calls
            ],
        ),
        (lambda: topology(one()), ["  accDescr: 1 device group, 1 stage, 0 routes\n"]),
        (lambda: topology(twice()), ["  accDescr: 1 device group, 1 stage, 1 route\n"]),
        (lambda: topology(program()), ['p0["a train.py --lr #39;#60;b#62;#39;"]:::h0']),
        (odd, ["#60;script#62;alert(1)#60;/script#62;", "日本語 グループ"]),
    ],
)
def test_a_flowchart_has_groups_stages_and_routes(made: Callable[[], Topology], texts: list[str]) -> None:
    found = mermaid.draw(made())
    assert [text for text in texts if text not in found] == []
    assert found.count("\n  subgraph ") == found.count("\n  end\n")


# All of them


@pytest.mark.parametrize(
    ("draw", "most"), [(html.draw, 1_500_000), (svg.draw, 300_000), (mermaid.draw, 150_000)]
)
def test_every_format_is_bounded(draw: Callable[[Topology], str], most: int) -> None:
    assert len(draw(many(500))) < most
    assert len(draw(topology(hundred_thousand()))) < len(draw(topology(one()))) + 50_000


def as_text(drawn: Topology) -> str:
    return "\n".join(line.text for line in pictured(drawn, 100, 160))


@pytest.mark.parametrize("draw", [as_text, lambda drawn: words(svg.draw(drawn)), mermaid.draw])
def test_the_source_whose_data_end_the_run_is_marked(draw: Callable[[Topology], str]) -> None:
    """Nothing is marked where the data of every source end the run."""
    marked = topology(two_sources(every=2))
    assert draw(marked).count("ends the run") == 1 and data(marked)["ends_run"] == ["batch"]
    whole = topology(two_sources())
    assert "ends the run" not in draw(whole) and "ends_run" not in data(whole)
