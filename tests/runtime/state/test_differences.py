"""Along which dims of a mesh values differ."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshctl.runtime.state.differences import Differences, compared
from meshctl.topology.mesh import DeviceMesh

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
