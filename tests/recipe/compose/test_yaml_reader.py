"""Reading YAML: OmegaConf's scalars, places, and hazards as diagnostics."""

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf._utils import get_yaml_loader

from meshctl.recipe.compose.yaml_reader import MAX_DEPTH, MAX_NODES, read
from meshctl.recipe.compose.yaml_scalars import dump, scalar, scalar_resolvers
from meshctl.recipe.compose.yaml_tree import plain
from tests.examples import examples

TEXTS = [
    *("1e3", "1_000", "010", "0x1f", "yes", "~", "null", "2020-01-01", "1:30", ".5", "-.inf", "text", "'7'"),
    *("", "1.", "+1", "0o17", "1e+3"),
]


def tree_of(text: str) -> Any:
    tree = read(text.encode(), "x.yaml").tree
    assert tree is not None
    return plain(tree)


@pytest.mark.parametrize("text", TEXTS)
def test_scalars_are_omegaconfs(text: str) -> None:
    theirs = OmegaConf.to_container(OmegaConf.create(f"a: {text}\n"))
    assert tree_of(f"a: {text}\n") == theirs
    if text and not text.startswith("'"):
        assert scalar(text) == theirs["a"]


LEAVES = (st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=12))
NAMES = st.from_regex(r"[a-z_]{1,8}", fullmatch=True)
PLAIN = st.recursive(
    st.one_of(*LEAVES, st.sampled_from(TEXTS)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=12,
)


@settings(max_examples=examples(40, 150))
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
    "boolean key": (b"no: 1\n", "MC008", (1, 1)),
    "mapping as key": (b"? {a: 1}\n: 2\n", "MC008", (1, 3)),
    "alias to an ancestor": (b"a: &x\n  b: *x\n", "MC007", (2, 6)),
    "merge of no mapping": (b"a: {<<: 3}\n", "MC009", (1, 9)),
    "merge of a list with no mapping in it": (b"a: &x {b: 1}\nc: {<<: [*x, 3]}\n", "MC009", (2, 14)),
    "two merges": (b"a: &x {b: 1}\nc: {<<: *x, <<: *x}\n", "MC005", (2, 13)),
    "equals sign": (b"a: =\n", "MC006", (1, 4)),
    "control character": (b"a: 1\nb: x\x01\n", "MC003", (2, 5)),
    "form feed": (b"a: 1 # x\x0cy\n", "MC003", (1, 9)),
    "UTF-16": ("a: 1".encode("utf-16-le"), "MC003", (1, 2)),
    "indented below a value": (b"a: 1\n  b: 2\n", "MC003", (2, 4)),
    "a number without end": (b"a: " + b"9" * 5000 + b"\n", "MC006", (1, 4)),
    "a sexagesimal number without end": (b"a: 1" + b":1" * 50_000 + b"\n", "MC006", (1, 4)),
    "unknown alias": (b"a: *x\n", "MC003", (1, 4)),
    "two documents": (b"a: 1\n---\nb: 2\n", "MC003", (2, 1)),
    "not closed": (b"a: [1, 2\n", "MC003", (1, 4)),
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


BOMBS = {
    "lists": "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    + "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)),
    "mappings": "a0: &a0 {x: 1}\n"
    + "\n".join(f"a{n}: &a{n} {{x: *a{n - 1}, y: *a{n - 1}}}" for n in range(1, 20_000)),
    "merges": "a0: &a0 {x: 1}\n"
    + "\n".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 12)),
    "one long list": f"a: &a [{'x,' * 15_000}]\nb: [*a, *a]",
    "too many values": f"a: [{'x,' * 20_000}]",
    "deep brackets": "a: " + "[" * 500_000,
    "deep braces": "a: " + "{b: " * 5000 + "1" + "}" * 5000,
    "deep dashes": "a:\n" + "- " * 5000 + "x",
    "deep keys": "? " * 5000 + "x",
    "deep by aliases": "a0: &a0 [1]\n" + "\n".join(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 70)),
}


@pytest.mark.parametrize("name", BOMBS)
def test_what_unfolds_to_too_much_is_refused_before_it_is_built(name: str) -> None:
    result = read(BOMBS[name].encode(), "x.yaml")
    assert [one.code for one in result.found] == ["MC010"] and result.tree is None


def test_what_is_just_within_the_limits_is_read() -> None:
    for data in (
        f"a: [{'x,' * (MAX_NODES - 3)}]",
        "a: " + "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1),
        f"a: &a [{'x,' * 5000}]\nb: [*a, *a]",
    ):
        assert not read(data.encode(), "x.yaml").found


def test_mappings_that_are_read_together() -> None:
    result = read(b"a: {x: 1}\na: {y: 2}\n", "x.yaml")
    assert result.tree is not None and plain(result.tree) == {"a": {"x": 1, "y": 2}}
    assert [one.code for one in result.found] == ["MC005"]  # a key that is given twice
    assert tree_of("base: &b {x: 1, y: 2}\na:\n  <<: *b\n  y: 3\n")["a"] == {"x": 1, "y": 3}
    assert tree_of("\ufeffa: 1\n") == {"a": 1}


@given(
    st.text(st.sampled_from("+-.0123456789_eE:infNANaxob~"), max_size=12)
    | st.sampled_from(["1e3", "2026-11-21", "1_0.5", "yes"])
)
def test_scalars_have_omegaconfs_types(word: str) -> None:
    theirs = get_yaml_loader().yaml_implicit_resolvers

    def kind(resolvers: dict[str, list[tuple[str, re.Pattern[str]]]]) -> str:
        found = [*resolvers.get(word[:1], ()), *resolvers.get(None, ())]  # type: ignore[call-overload]
        return next((tag for tag, pattern in found if pattern.match(word)), "text")

    assert kind(scalar_resolvers()) == kind(theirs)
