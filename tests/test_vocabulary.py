"""One word per thing, in plain English."""

from __future__ import annotations

import re

from tests.paths import PACKAGE, ROOT
from tests.sources import modules


def test_the_glossary_defines_each_noun_once() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    nouns = [
        noun.strip()
        for row in re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE)
        for noun in row.split(",")
        if noun.strip() not in ("noun", "---")
    ]
    assert len(nouns) > 40
    assert not {noun for noun in nouns if nouns.count(noun) > 1}


TRANSLATED = re.compile(
    r"\bthere (is|are) no (component|stage|group|config|module|route|rank|dim|view|code|format|file|folder)\b"
    r"|\bis no (?!longer|more|better)\w|\b(says|wants|lends)\b|\bis told\b|\bbelongs into\b|\bis there already\b"
)
"""Phrases that have a plainer form: "does not exist", "is not a", "needs", "goes under", "already exists"."""
REPORTS = ("recipe", "topology", "cli")
"""The rooms with messages for users."""


def test_messages_have_no_translated_phrases() -> None:
    assert not [
        (path, line, text)
        for path, module in modules().items()
        if path.relative_to(PACKAGE).parts[0] in REPORTS
        for line, text in module.texts
        if TRANSLATED.search(text)
    ]


def test_pages_have_no_translated_phrases() -> None:
    pages = {path: path.read_text(encoding="utf-8") for path in (PACKAGE / "diagnostics/codes").glob("*.md")}
    prose = {path: re.sub("(?s)```.*?```", "", text) for path, text in pages.items()}
    assert prose and [path for path, text in prose.items() if TRANSLATED.search(text)] == []
