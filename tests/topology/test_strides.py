"""Digits of dims: a joined dim counts through all of its dims, and a split dim has the same ranks."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from meshctl.topology.strides import Dim, Layout, join, offset, offsets, row_major, size_of, split

shapes = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)


@given(shapes, st.integers(0, 100))
def test_a_rank_and_its_indices(shape: tuple[int, ...], start: int) -> None:
    layout = Layout(row_major(shape), start)
    for number, indices in enumerate(product(*map(range, shape))):
        assert layout.rank(indices) == start + number
        assert layout.indices(start + number) == list(indices)
    assert layout.indices(start - 1) is None
    assert layout.indices(start + size_of(join(layout.dims))) is None


@given(shapes, st.randoms())
def test_joined_dims_run_through_all_in_as_few_digits(shape: tuple[int, ...], random: object) -> None:
    dims = row_major(shape)
    joined = join(dims)
    assert offsets([joined]) == offsets(dims)
    assert len(joined) <= 1, "neighbours that lie in a row are one digit"
    backwards = join(dims[::-1])
    assert offsets([backwards]) == offsets(dims[::-1])
    assert [offset(backwards, index) for index in range(size_of(backwards))] == offsets([backwards])


@given(shapes, st.integers(1, 12))
def test_a_parted_dim_is_the_same_ranks(shape: tuple[int, ...], inner: int) -> None:
    for dims in (row_major(shape), row_major(shape)[::-1]):
        flat = join(dims)
        parted = split(flat, inner)
        if parted is None:
            assert size_of(flat) % inner or len(flat) > 1
        else:
            assert size_of(parted[1]) == inner
            assert offsets(parted) == offsets([flat])


def test_a_digit_is_not_parted_unevenly() -> None:
    two: Dim = ((3, 8), (4, 1))
    assert split(two, 6) is None
    assert split(two, 2) == (((3, 8), (2, 2)), ((2, 1),))
    assert split(two, 12) == ((), two)


@given(shapes, st.randoms(use_true_random=False))
def test_explicit_ranks(shape: tuple[int, ...], random: object) -> None:
    ranks = list(range(size_of(join(row_major(shape)))))
    assert Layout.of(ranks, shape) == Layout(row_major(shape))
    random.shuffle(ranks)  # type: ignore[attr-defined]
    shuffled = Layout.of(ranks, shape)
    assert [shuffled.rank(indices) for indices in product(*map(range, shape))] == ranks
    assert all(shuffled.rank(shuffled.indices(rank) or []) == rank for rank in ranks)
    assert shuffled.indices(len(ranks)) is None and shuffled.indices(-1) is None


def test_ranks_by_strides_are_no_table() -> None:
    assert Layout.of([4, 6, 5, 7], (2, 2)) == Layout((((2, 1),), ((2, 2),)), 4)
    assert Layout.of([0, 2, 4, 3, 5, 7], (2, 3)).table, "strides that overlap cannot be taken apart"
