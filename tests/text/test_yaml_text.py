"""YAML that is written without a library is read by one as the same data."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from meshctl.text.yaml_text import yaml_text
from tests.examples import examples

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=30)
LINES = st.lists(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=8), max_size=4).map(
    lambda lines: "".join(f"{line}\n" for line in lines)
)
WORDS = st.sampled_from(
    [
        *("yes", "on", "NULL", "~", "1e3", "0x10", "12:30", "-", "- a", "a: b", "#", "a/b.c", "=", "<<"),
        "2026-01-01",
    ]
)
SCALARS = st.none() | st.booleans() | st.integers() | TEXT | LINES | WORDS
DATA = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT | WORDS, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=examples(40, 3000))
@given(DATA)
def test_a_reader_finds_the_same_data(data: Any) -> None:
    assert yaml.safe_load(yaml_text(data)) == data


@settings(max_examples=examples(30, 1000))
@given(st.lists(st.dictionaries(TEXT, SCALARS, min_size=1), min_size=1, max_size=3))
def test_several_documents(documents: list[Any]) -> None:
    assert list(yaml.safe_load_all(yaml_text(*documents))) == documents


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"a": ["sh", "-c", "one\n\n  two\n"]}, 'a:\n  - sh\n  - "-c"\n  - |\n    one\n\n      two\n'),
        ({"a": {}, "b": [{"c": 1, "d": [2]}]}, "a: {}\nb:\n  - c: 1\n    d:\n      - 2\n"),
        ({"no": "yes", "image": "x/y:1"}, '"no": "yes"\nimage: "x/y:1"\n'),
    ],
)
def test_the_form(data: Any, text: str) -> None:
    assert yaml_text(data) == text
