"""The bytes of parameters, adapters, optimizers and syncs on a rank."""

from __future__ import annotations

import pytest

from meshctl.topology.memory import (
    MAX_BUCKET_BYTES,
    Adapter,
    Parameter,
    RankBytes,
    Selection,
    Split,
    Training,
    adapter_bytes,
    checkpoint_bytes,
    numbers,
    rank_bytes,
    sharing,
    states_of,
    trained_part,
    with_sync,
)

QUERY = Parameter("model.layers.*.self_attn.q_proj.weight", (10, 6), 3, tp_dim=0, is_linear=True)
OUTPUT = Parameter("model.layers.*.self_attn.o_proj.weight", (6, 10), 3, tp_dim=1, is_linear=True)
NORM = Parameter("model.norm.weight", (6,))
HEAD = Parameter("lm_head.weight", (20, 6), tp_dim=0, is_linear=True)
EMBEDDING = Parameter("model.embed_tokens.weight", (20, 6), tp_dim=0)
SCORE = Parameter("score.weight", (1, 6), is_linear=True)


@pytest.mark.parametrize(
    ("parameter", "split", "expected"),
    [
        (QUERY, Split(), 180),
        (QUERY, Split(dp=4), 180),
        (QUERY, Split(fsdp=2, tp=3), 3 * 2 * 6),
        (OUTPUT, Split(fsdp=4, tp=3), 3 * 2 * 4),
        (NORM, Split(tp=2), 6),
        (NORM, Split(fsdp=100), 1),
        (SCORE, Split(fsdp=2), 6),
        (Parameter("scale", ()), Split(fsdp=2), 1),
    ],
)
def test_the_largest_shard_is_rounded_up(parameter: Parameter, split: Split, expected: int) -> None:
    assert numbers(parameter, split) == expected


def test_dtype_optimizer_and_frozen() -> None:
    own = [QUERY, NORM]
    assert rank_bytes(own, Split(), Training()) == RankBytes(744, 744, 1488)
    assert rank_bytes(own, Split(), Training("bfloat16", "SGD")) == RankBytes(372, 372)
    assert rank_bytes(own, Split(), Training(is_trained=False)) == RankBytes(744)
    assert rank_bytes(own, Split(), Training(optimizer="my.Own")) == RankBytes(744, 744)


def test_the_parts_that_are_trained() -> None:
    own = [QUERY, NORM]
    for selection, trained in (
        (Selection(), 180 + 6),
        (Selection(freeze=("model.norm",)), 180),
        (Selection(freeze=("model.layers.[0-1]",)), 60 + 6),
        (Selection(train=("model.layers.0",)), 60),
        (Selection(train=("*.self_attn",), freeze=("model.layers.2.*",)), 120),
    ):
        found = rank_bytes(own, Split(), Training(selection=selection))
        assert found == RankBytes(744, trained * 4, trained * 8)
        part = trained_part(own, Training(selection=selection))
        assert part == (None if trained == 186 else (trained, 186))
    adapted = trained_part(own, Training(adapter=Adapter(2)))
    assert adapted == (3 * (2 * 6 + 10 * 2), 3 * (2 * 6 + 10 * 2) + 186)
    assert trained_part(own, Training(adapter=Adapter(2), is_trained=False)) is None
    assert Selection(("model.norm", "model.norms"), ("*.q_proj",)).unused(["model.norm.weight"]) == [
        "model.norms",
        "*.q_proj",
    ]


def test_a_checkpoint_has_each_trained_element_once() -> None:
    own = [QUERY, NORM]
    assert checkpoint_bytes(own, Training()) == 744 * 3
    assert checkpoint_bytes(own, Training("bfloat16", "SGD")) == 372
    assert checkpoint_bytes(own, Training(optimizer="my.Own")) == 744
    assert checkpoint_bytes(own, Training(is_trained=False)) == 0
    adapters = 3 * (2 * 6 + 10 * 2)
    assert checkpoint_bytes([QUERY, SCORE], Training(adapter=Adapter(2))) == (adapters + 6) * 4 * 3


def test_an_adapter_is_trained_alone_or_with_the_score() -> None:
    whole = Training(adapter=Adapter(2))
    adapters = 3 * (2 * 6 + 10 * 2) + 3 * (2 * 10 + 6 * 2)
    found = rank_bytes([QUERY, OUTPUT, NORM, HEAD], Split(), whole)
    assert found == RankBytes((180 + 180 + 6 + 120 + adapters) * 4, adapters * 4, adapters * 8)
    assert rank_bytes([QUERY, SCORE], Split(), whole).gradients == (3 * (2 * 6 + 10 * 2) + 6) * 4


def test_an_adapter_is_split_as_its_layer() -> None:
    training = Training(adapter=Adapter(2))
    assert adapter_bytes([QUERY], Split(tp=2), training) == 3 * (2 * 6 + 5 * 2) * 4
    assert adapter_bytes([OUTPUT], Split(tp=2), training) == 3 * (2 * 5 + 6 * 2) * 4
    assert adapter_bytes([QUERY], Split(fsdp=4), training) == 3 * (1 * 6 + 3 * 2) * 4
    assert adapter_bytes([QUERY], Split(), Training()) == 0


@pytest.mark.parametrize(
    ("targets", "names"),
    [
        (("q_proj",), [QUERY]),
        (("self_attn.o_proj",), [OUTPUT]),
        (("proj",), []),
        (("lm_head",), [HEAD]),
        ((), [QUERY, OUTPUT]),
    ],
)
def test_targets_are_last_parts_of_names(targets: tuple[str, ...], names: list[Parameter]) -> None:
    every = Training(adapter=Adapter(2, targets))
    expected = adapter_bytes(names, Split(), Training(adapter=Adapter(2, tuple(one.module for one in names))))
    assert adapter_bytes([QUERY, OUTPUT, NORM, HEAD], Split(), every) == (expected if names else 0)


@pytest.mark.parametrize(
    ("optimizer", "options", "states"),
    [
        ("AdamW", {}, 2),
        ("torch.optim.Adam", {"amsgrad": True}, 3),
        ("SGD", {"momentum": 0.9}, 1),
        ("SGD", {"momentum": 0, "nesterov": False}, 0),
        ("RMSprop", {"centered": True, "momentum": 0.5}, 3),
        ("bitsandbytes.optim.AdamW8bit", {}, None),
    ],
)
def test_states_of_optimizers(optimizer: str, options: dict[str, object], states: int | None) -> None:
    assert states_of(optimizer, options) == states


def test_without_fsdp_the_gradient_of_a_split_embedding_is_whole_unless_it_is_tied() -> None:
    both, training = [EMBEDDING, HEAD], Training("float64")
    assert rank_bytes(both, Split(tp=2), training) == RankBytes(960, 960 + 480, 1920)
    assert rank_bytes(both, Split(dp=2, tp=2), training) == RankBytes(960, 960, 1920)
    assert rank_bytes([EMBEDDING], Split(tp=2), training) == RankBytes(480, 480, 960)


def test_a_sync_has_two_buckets_or_all_of_its_bytes_for_each_step_of_lag() -> None:
    small, large = 1000, 10 * MAX_BUCKET_BYTES
    assert with_sync(RankBytes(small), small, 0) == RankBytes(small, sync=small)
    assert with_sync(RankBytes(large), large, 0).sync == 2 * MAX_BUCKET_BYTES
    assert with_sync(RankBytes(large, sync=5), large, 2).sync == 5 + 3 * large


def test_groups_that_share_a_device() -> None:
    assert sharing({"a": ((0, 4),), "b": ((4, 8),)}) == [("a",), ("b",)]
    assert sharing({"a": ((0, 8),), "b": ((0, 1),)}) == [("a", "b")]
    assert sharing({"a": ((0, 8),), "b": ((0, 1),), "c": ((7, 8),)}) == [("a", "b"), ("a", "c")]
    assert sharing({}) == []
