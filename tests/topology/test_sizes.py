"""Valid sizes, invalid sizes, and the nearest valid ones."""

from __future__ import annotations

import re
from itertools import product
from math import prod
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from meshctl.topology.sizes import DIMS, EXPERT_DIMS, divisors, drawn, nearest, settle

stated = st.fixed_dictionaries(
    {}, optional={f"{dim}_size": st.integers(1, 6) for dim in (*DIMS, "ulysses", *EXPERT_DIMS, "vpp")}
)


@given(stated, st.integers(1, 64), st.booleans())
def test_settled_sizes_keep_every_rule(stated: dict[str, int], world: int, sequence_parallel: bool) -> None:
    settled = settle(stated, world, sequence_parallel)
    assert bool(settled.sizes) != bool(settled.misfits)
    if sizes := settled.sizes:
        assert prod(sizes[dim] for dim in DIMS) == world
        assert all(sizes[key.removesuffix("_size")] == size for key, size in stated.items())
        assert sizes["dp"] * sizes["fsdp"] % sizes["ulysses"] == 0
        assert sizes["pp"] * prod(sizes[dim] for dim in EXPERT_DIMS) == world
        assert sizes["vpp"] == 1 or sizes["pp"] > 1
        assert not sequence_parallel or sizes["tp"] > 1


@given(stated, st.integers(1, 64))
def test_a_misfit_names_a_stated_size_and_proposes_sizes_that_fit(stated: dict[str, int], world: int) -> None:
    for misfit in settle(stated, world).misfits:
        assert misfit.size in stated
        for layout in misfit.fits if misfit.rule == "product" else ():
            if layout != "one rank":
                sizes = {f"{part.split()[0]}_size": int(part.split()[1]) for part in layout.split(" x ")}
                assert not [wrong for wrong in settle(sizes, world).misfits if wrong.rule == "product"]


@settings(max_examples=30)
@given(
    st.dictionaries(
        st.sampled_from([f"{dim}_size" for dim in DIMS]), st.integers(1, 9), min_size=1, max_size=3
    ),
    st.fixed_dictionaries(
        {}, optional={"ulysses_size": st.integers(1, 4), "ep_size": st.integers(1, 4), "vpp_size": st.just(2)}
    ),
    st.sampled_from([4, 6, 8, 12, 16]),
)
@example({"pp_size": 3, "dp_size": 3}, {"ulysses_size": 3, "ep_size": 4}, 12)
def test_the_first_that_is_proposed_is_the_nearest_of_all_that_keep_every_rule(
    dims: dict[str, int], more: dict[str, int], world: int
) -> None:
    misfit = next(iter(settle({**dims, **more}, world).misfits), None)
    assume(misfit is not None and misfit.rule == "product")
    costs = {}
    for choice in product(divisors(world), repeat=len(dims)):
        if held := settle(dict(zip(dims, choice, strict=True)) | more, world).sizes:
            changes = [abs(size - dims[dim]) for dim, size in zip(dims, choice, strict=True)]
            changed = [change for change in changes if change]
            costs[drawn(held)] = len(changed), sum(changed)
    if costs:
        assert costs[misfit.fits[0]] == min(costs.values())


@pytest.mark.parametrize(
    ("stated", "world", "rule", "size", "text"),
    [
        ({"tp_size": 3}, 8, "product", "tp_size", "tp 3 = 3 does not divide the 8 ranks; nearest that fit: dp 4 x tp 2; dp 2 x tp 4"),
        ({"dp_size": 2, "tp_size": 2}, 8, "product", "dp_size",
         "dp 2 x tp 2 = 4, but the number of ranks is 8; nearest that fit: dp 4 x tp 2; dp 2 x tp 4"),
        ({"tp_size": 16}, 8, "product", "tp_size", "tp 16 = 16 does not divide the 8 ranks; nearest that fit: tp 8; dp 2 x tp 4"),
        ({"fsdp_size": 4, "ulysses_size": 3}, None, "ulysses", "ulysses_size", "does not divide dp x fsdp, which is 4; nearest that fit: ulysses 2; ulysses 4"),
        ({"ep_size": 3, "fsdp_size": 4}, None, "experts", "ep_size", "ep 3 does not divide the 4 ranks of a pipeline stage"),
        ({"ep_size": 8, "fsdp_size": 4}, 4, "experts", "ep_size", "ep 8 does not divide the 4 ranks .* fit: ep 4; ep 2"),
        ({"ep_size": 2, "ep_fsdp_size": 3, "fsdp_size": 4}, 4, "experts", "ep_fsdp_size", "ep_fsdp 3 x ep 2 = 6, .* has 4 .* fit: ep_fsdp 2"),
        ({"vpp_size": 2, "dp_size": 2}, 2, "vpp", "vpp_size", "vpp_size 2 needs a pipeline, but pp_size is 1"),
        ({"dp_size": True}, None, "number", "dp_size", "a positive integer or auto, not True"),
        ({"vpp_size": "auto"}, None, "number", "vpp_size", "a positive integer, not 'auto'"),
        ({"ep_size": "auto", "etp_size": "auto"}, 8, "auto", "etp_size", "only one size can be auto, not ep_size, etp_size"),
    ],
)  # fmt: skip
def test_the_rule_and_the_nearest(
    stated: dict[str, Any], world: int | None, rule: str, size: str, text: str
) -> None:
    (misfit,) = settle(stated, world).misfits
    assert (misfit.rule, misfit.size) == (rule, size)
    assert re.search(text, misfit.text), misfit.text


def test_every_wrong_size_is_reported() -> None:
    """A wrong product does not hide wrong carved sizes."""
    for sizes, world, wrong in (
        ({"dp_size": 3, "tp_size": 3, "ep_size": 5, "vpp_size": 2}, 8, ["tp_size", "ep_size", "vpp_size"]),
        ({"dp_size": 3, "tp_size": 3, "ep_size": 8}, 8, ["tp_size"]),
    ):
        assert [misfit.size for misfit in settle(sizes, world).misfits] == wrong
    numbers = [misfit.size for misfit in settle({"dp_size": 0, "tp_size": 2.0}, 0, "yes").misfits]
    assert numbers == ["dp_size", "tp_size", "world_size", "sequence_parallel"]
    assert [misfit.rule for misfit in settle({"dp_size": 2}, 2, True).misfits] == ["sequence_parallel"]
    assert settle({"tp_size": 2}, 2, True).sizes["tp"] == 2


@given(st.integers(1, 5000))
def test_divisors(number: int) -> None:
    assert divisors(number) == [size for size in range(1, number + 1) if number % size == 0]


def test_nearest_layouts_of_many_ranks() -> None:
    assert nearest({"tp": 3}, "dp", 100_000)[0] == {"dp": 50_000, "tp": 2}
    assert nearest({"pp": 7, "dp": 9, "fsdp": 60, "cp": 3, "tp": 6}, None, 100_000)
