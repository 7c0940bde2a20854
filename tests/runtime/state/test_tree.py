"""A state as a document and tensors, and back."""

from __future__ import annotations

import json
import random
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from meshctl.runtime.errors import CheckpointError
from meshctl.runtime.state.tree import StateTree, decode
from tests.examples import examples
from tests.runtime.state.trees import LEAVES, nested, same

Point = namedtuple("Point", "x y")


def back(state: Any) -> Any:
    tree = StateTree.of("loader", state)
    return decode(json.loads(tree.text), tree.tensors | tree.sharded)


def refusal(state: Any) -> str:
    with pytest.raises(CheckpointError) as raised:
        StateTree.of("loader", state)
    return str(raised.value)


VALUES: list[Any] = [
    {}, {"": 1}, {"e": {}}, {"l": []}, {"t": ()}, {"a": None, "b": True, "c": 1, "d": 1.0},
    {1: "one", (2, "b"): 2, None: 3, 2.5: 4, b"k": 5, frozenset({1}): 6},
    {"c": Counter("aab"), "o": OrderedDict(b=1, a=2), "d": deque([1, [2]], maxlen=4), "u": deque()},
    {"s": {"b", "a", 3}, "f": frozenset(), "r": range(2, 9, 3), "p": slice(1, None)},
    {"b": b"\0\xff", "ba": bytearray(b"x"), "z": -0.0, "i": float("-inf"), "n": float("nan"), "j": 2j},
    {"big": 1 << 20_000, "negative": -(1 << 20_000), "text": "\ud800 é"},
    {"dtype": torch.bfloat16, "size": torch.Size([2, 3]), "device": torch.device("cpu")},
    {"a": np.arange(6).reshape(2, 3).T, "s": np.array(["ab", "c"]), "zero": np.zeros((0, 2)), "n": np.array(3)},
    {"f": np.float32(1.5), "d": np.float64(0.1), "i": np.int8(-3), "t": np.datetime64("2026-11-22")},
    {"mixed": [1, (torch.ones(2), {"x": [torch.zeros(0)]}), deque([torch.tensor(1)])]},
    {"random": random.getstate(), "numpy": np.random.default_rng(1).bit_generator.state},
    {"model": nn.Linear(2, 1).state_dict(), "optimizer": torch.optim.Adam([nn.Parameter(torch.ones(2))]).state_dict()},
]  # fmt: skip


@pytest.mark.parametrize("state", VALUES, ids=range(len(VALUES)))
def test_a_state_comes_back_with_the_type_of_every_value(state: Any) -> None:
    assert same(back(state), state)


@settings(max_examples=examples(50, 500))
@given(st.integers(0, 1 << 32), st.lists(st.sampled_from(sorted(LEAVES)), max_size=6))
def test_a_random_state_comes_back(seed: int, kinds: list[str]) -> None:
    leaves = {number: LEAVES[kind](Random(seed + number)) for number, kind in enumerate(kinds)}
    state = nested(seed, leaves)
    assert same(back(state), state)


def test_a_default_dict_keeps_its_factory() -> None:
    found = back({"counts": defaultdict(list, {1: [2]}), "none": defaultdict(None, {})})
    assert found["counts"] == {1: [2]} and found["counts"].default_factory is list
    assert found["none"].default_factory is None


def test_the_versions_of_modules_are_kept() -> None:
    """`load_state_dict` of a module converts the state of an older version of its class."""
    state = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1)).state_dict()
    assert state._metadata["0"] == {"version": 2}
    found = back({"model": state})["model"]
    assert same(found, state) and same(found._metadata, state._metadata)


def test_other_mappings_come_back_as_dicts() -> None:
    class Settings(dict[str, int]):
        pass

    assert same(back({"settings": Settings(a=1)}), {"settings": {"a": 1}})


def test_sets_have_one_text_whatever_their_order() -> None:
    """Two sets of equal items may be iterated in different orders, after collisions of hashes."""
    one, other = set(range(0, 24, 8)), set(range(16, -8, -8))
    assert list(one) != list(other)
    assert StateTree.of("a", {"s": one}).text == StateTree.of("a", {"s": other}).text


REFUSED: list[tuple[Any, str]] = [
    ([1], "`state_dict()` returned a list; it must return a dict"),
    (None, "`state_dict()` returned a NoneType; it must return a dict"),
    ({"rng": torch.Generator()}, "`rng` is a torch._C.Generator: store its `get_state()`"),
    ({"a": {"rng": np.random.default_rng()}}, "`a.rng` is a numpy.random._generator.Generator: store its"),
    ({"rng": Random(1)}, "`rng` is a random.Random: store its `getstate()`"),
    ({"model": nn.Linear(1, 1)}, "`model` is a torch.nn.modules.linear.Linear: store its `state_dict()`"),
    ({"a": [0, {"f": len}]}, "`a.1.f` is a builtin_function_or_method: state is plain data"),
    ({"p": Point(1, 2)}, "`p` is a tests.runtime.state.test_tree.Point: state is plain data"),
    ({"d": defaultdict(lambda: 1)}, "`d` is a collections.defaultdict: its factory is a function"),
    ({"o": np.array([object()])}, "`o` is a numpy.ndarray: state is plain data"),
    ({torch.ones(1): 1}, "a key of `state_dict()` is a torch.Tensor; keys are text, numbers or tuples"),
    ({"a": {Point(1, 2): 1}}, "keys are text, numbers or tuples of these"),
    ({"s": torch.ones(2, 2).to_sparse()}, "`s` is a tensor of layout sparse_coo: store its dense form"),
    ({"m": torch.empty(2, device="meta")}, "`m` is a tensor on the `meta` device, which has no data"),
    ({"a.b": 1, "a": {"b": 2}}, "two values have the name `a.b`; rename one of their keys"),
    ({1: torch.ones(1), "1": torch.ones(1)}, "two values have the name `1`; rename one of their keys"),
]


@pytest.mark.parametrize(("state", "reason"), REFUSED, ids=range(len(REFUSED)))
def test_a_value_that_cannot_be_stored_is_named_with_its_path_and_type(state: Any, reason: str) -> None:
    found = refusal(state)
    assert found.startswith("the state of `loader` cannot be stored: ") and reason in found
    assert "\n" not in found


def test_a_state_that_contains_itself_is_refused() -> None:
    state: dict[str, Any] = {}
    state["again"] = state
    assert refusal(state).endswith("it contains itself or is nested too deeply")
