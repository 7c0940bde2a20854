"""States of components: as documents, their copies, and where they differ between ranks."""

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

from meshctl.runtime.checkpoint_writer import Staging
from meshctl.runtime.errors import CheckpointError
from meshctl.runtime.state.differences import (
    Differences,
    compared,
    tensor_digest,
)
from meshctl.runtime.state.tree import StateTree, decode
from meshctl.topology.mesh import DeviceMesh
from tests.examples import examples
from tests.runtime.state.trees import LEAVES, nested, same

# Documents


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


def test_other_mappings_come_back_as_dicts_and_sets_have_one_text_whatever_their_order() -> None:
    class Settings(dict[str, int]):
        pass

    assert same(back({"settings": Settings(a=1)}), {"settings": {"a": 1}})
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
    ({"p": Point(1, 2)}, "`p` is a tests.runtime.state.test_state.Point: state is plain data"),
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


# Copies


def copied(staging: Staging, state: dict[str, Any]) -> StateTree:
    return staging.copy("actor", StateTree.of("actor", state))


def test_a_copy_does_not_change_with_the_state() -> None:
    weight = torch.nn.Parameter(torch.arange(6.0).view(2, 3))
    state = {"w": weight, "row": weight[1], "turned": weight.t(), "n": [1], "half": torch.ones(2).bfloat16()}
    before = {key: value.detach().clone() if torch.is_tensor(value) else [1] for key, value in state.items()}
    tree = copied(Staging(), state)
    with torch.no_grad():
        weight.add_(1.0)
    state["n"].append(2)
    found = decode(tree.document, tree.tensors)
    assert same(found, before) and not any(tensor.requires_grad for tensor in tree.tensors.values())


def test_memory_is_used_again_until_a_tensor_has_another_form() -> None:
    staging = Staging()
    first = copied(staging, {"a": torch.zeros(3), "b": torch.zeros(2)})
    second = copied(staging, {"a": torch.ones(3), "b": torch.ones(4)})
    assert second.tensors["a"].data_ptr() == first.tensors["a"].data_ptr()
    assert second.tensors["b"].shape == (4,) and first.tensors["b"].tolist() == [0.0, 0.0]
    copied(staging, {"b": torch.zeros(4)})
    assert copied(staging, {"a": torch.zeros(3)}).tensors["a"] is not second.tensors["a"]


# Digests


@pytest.mark.parametrize("length", [0, 1, 5, 100_007])
def test_one_changed_byte_changes_the_digest(length: int) -> None:
    data = torch.arange(length).to(torch.uint8)
    digests = {tensor_digest(data)}
    places = sorted({0, length // 2, length - 1}) if length else []
    for place in places:
        changed = data.clone()
        changed[place] += 1
        digests.add(tensor_digest(changed))
    assert len(digests) == 1 + len(places) and tensor_digest(data.clone()) in digests


def test_dtype_and_shape_and_every_bit_count() -> None:
    zeros, nans = torch.zeros(4, dtype=torch.int32), torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32)
    several = [zeros, zeros.view(2, 2), zeros.view(torch.float32), torch.zeros(16, dtype=torch.uint8)]
    several += [torch.tensor([1 + 2j]), torch.tensor([1 + 2j]).conj(), *nans.view(torch.float32).split(1)]
    assert len({tensor_digest(tensor) for tensor in several}) == len(several)
    assert tensor_digest(torch.tensor([1 + 2j]).conj()) == tensor_digest(torch.tensor([1 - 2j]))


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.complex64])
def test_layout_in_memory_does_not_count(dtype: torch.dtype) -> None:
    data = torch.arange(12).view(3, 4).to(dtype)
    part = torch.cat([torch.zeros(1, dtype=dtype), data.reshape(-1)])[1:].view(3, 4)
    assert tensor_digest(data) == tensor_digest(data.t().contiguous().t()) == tensor_digest(part)


# Differences


SIZES = {"pp_size": 2, "dp_size": 2, "tp_size": 3}
MESH = DeviceMesh.from_sizes(**SIZES)
DIMS = ("pp", "dp", "tp")


def at(rank: int, dims: tuple[str, ...]) -> str:
    coordinate = MESH.coordinate(rank)
    return str([coordinate[dim] for dim in dims])


@given(st.sets(st.sampled_from(DIMS)), st.sets(st.sampled_from(DIMS)))
def test_a_value_differs_along_exactly_the_dims_of_which_it_is_a_function(
    value: set[str], document: set[str]
) -> None:
    value_dims = tuple(dim for dim in DIMS if dim in value)
    document_dims = tuple(dim for dim in DIMS if dim in document)
    digests = [{"v": {"": at(rank, value_dims)}, "equal": {"": "0"}} for rank in range(12)]
    found = compared(MESH, [at(rank, document_dims) for rank in range(12)], digests)
    assert found == Differences(document_dims, {"v": value_dims} if value else {})


def test_a_value_that_some_ranks_do_not_have_does_not_differ() -> None:
    digests = [{"w": {"": "1"}} if MESH.dim_rank(rank, "pp") == 0 else {} for rank in range(12)]
    found = compared(MESH, [at(rank, ("pp",)) for rank in range(12)], digests)
    assert found == Differences(("pp",), {})


def test_two_ranks_without_a_dim_in_common_differ_along_the_first_dim_that_explains_it() -> None:
    first, last = MESH.rank({"dp": 0, "tp": 0}), MESH.rank({"dp": 1, "tp": 2})
    digests: list[dict[str, dict[str, str]]] = [{} for _ in range(12)]
    digests[first], digests[last] = {"w": {"": "1"}}, {"w": {"": "2"}}
    assert compared(MESH, ["0"] * 12, digests).values == {"w": ("dp",)}


def test_shards_are_compared_where_they_are_the_same_part() -> None:
    def digests(dims: tuple[str, ...]) -> list[dict[str, dict[str, str]]]:
        return [{"w": {at(rank, ("tp",)): at(rank, dims)}} for rank in range(12)]

    assert compared(MESH, ["0"] * 12, digests(("tp",))).values == {}
    assert compared(MESH, ["0"] * 12, digests(("dp", "tp"))).values == {"w": ("dp",)}
