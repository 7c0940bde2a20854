"""Reading YAML: OmegaConf's scalars, places, and hazards as diagnostics."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from meshctl.recipe.nodes import plain
from meshctl.recipe.text import dump, read, scalar

TEXTS = [
    "1e3",
    "1_000",
    "010",
    "0x1f",
    "yes",
    "~",
    "null",
    "2020-01-01",
    "1:30",
    ".5",
    "-.inf",
    "text",
    "'7'",
    "",
    "1.",
    "+1",
    "0o17",
    "1e+3",
]


@pytest.mark.parametrize("text", TEXTS)
def test_scalars_are_omegaconfs(text: str) -> None:
    tree = read(f"a: {text}\n".encode(), "x.yaml").tree
    assert tree is not None
    theirs = OmegaConf.to_container(OmegaConf.create(f"a: {text}\n"))
    assert plain(tree) == theirs
    if text and not text.startswith("'"):
        assert scalar(text) == theirs["a"]


PLAIN = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=12), st.sampled_from(TEXTS)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), inner, max_size=3)),
    max_leaves=12,
)


@settings(max_examples=150)
@given(st.dictionaries(st.sampled_from(["a", "b", "yes_", "name"]), PLAIN))
def test_what_is_dumped_reads_back_as_the_same(value: dict[str, Any]) -> None:
    result = read(dump(value).encode(), "x.yaml")
    assert result.tree is not None and not result.found
    assert plain(result.tree) == value


HAZARDS = {
    "duplicate key": (b"a: 1\nb: 2\na: 3\n", "MC005", (3, 1)),
    "tab": (b"a:\n\tb: 1\n", "MC003", (2, 1)),
    "latin-1": "a: 1\nb: \xe9\n".encode("latin-1"),
    "python tag": (b"a: !!python/name:os.system x\n", "MC006", (1, 4)),
    "own tag": (b"a: !thing x\n", "MC006", (1, 4)),
    "binary tag": (b"a: !!binary aGk=\n", "MC006", (1, 4)),
    "wrong tag": (b"a: !!int seven\n", "MC006", (1, 4)),
    "boolean key": (b"on: 1\n", "MC008", (1, 1)),
    "mapping as key": (b"? {a: 1}\n: 2\n", "MC008", (1, 3)),
    "alias to an ancestor": (b"a: &x\n  b: *x\n", "MC007", (1, 4)),
    "unknown alias": (b"a: *x\n", "MC003", (1, 4)),
    "two documents": (b"a: 1\n---\nb: 2\n", "MC003", (2, 1)),
    "not closed": (b"a: [1, 2\n", "MC003", None),
    "bare question marks in brackets": (b"a: [b: ???]\n", "MC003", (1, 8)),
}


@pytest.mark.parametrize("name", HAZARDS)
def test_hazards_are_diagnostics(name: str) -> None:
    case = HAZARDS[name]
    data, code, place = case if isinstance(case, tuple) else (case, "MC002", (2, 4))
    found = read(data, "x.yaml").found
    assert [one.code for one in found] == [code]
    assert found[0].primary is not None
    if place:
        assert (found[0].primary.line, found[0].primary.column) == place


def test_an_alias_bomb_is_cut_short() -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    result = read("\n".join(levels).encode(), "x.yaml")
    assert [one.code for one in result.found] == ["MC007"]


def test_deep_nesting_is_cut_short() -> None:
    for data in (b"[" * 5000 + b"]" * 5000, b"a: " + b"{b: " * 300 + b"1" + b"}" * 300):
        assert {one.code for one in read(data, "x.yaml").found} <= {"MC007", "MC003"}
        assert read(data, "x.yaml").found


def test_merge_keys_are_read() -> None:
    tree = read(b"base: &b {x: 1, y: 2}\na:\n  <<: *b\n  y: 3\n", "x.yaml").tree
    assert tree is not None and plain(tree)["a"] == {"x": 1, "y": 3}


def test_a_byte_order_mark_is_accepted() -> None:
    tree = read("\ufeffa: 1\n".encode(), "x.yaml").tree
    assert tree is not None and plain(tree) == {"a": 1}


@settings(max_examples=200)
@given(st.one_of(st.binary(max_size=60), st.text(alphabet="ab:-[]{}&*!?|>'\"%@`# \t\n,.~<\\\x00\x85\u2028é", max_size=40).map(str.encode)))
def test_nothing_raises(data: bytes) -> None:
    read(data, "x.yaml")
