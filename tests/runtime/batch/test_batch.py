from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from meshctl.runtime.batch.batch import Batch, BatchError, Ragged, identify
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.samples import Grid


def batch(count: int = 4) -> Batch:
    rows = [torch.arange(number) for number in range(count)]
    columns = {"x": torch.arange(count), "rows": Ragged.of(rows), "text": list(map(str, range(count)))}
    return Batch(columns, ids=torch.arange(10, 10 + count))


def test_repeat_makes_children_and_their_group() -> None:
    many = batch(2).repeat(3)
    assert many.ids.tolist() == [[10, 0], [10, 1], [10, 2], [11, 0], [11, 1], [11, 2]]
    assert many.group_ids is not None and many.group_ids.tolist() == [[10]] * 3 + [[11]] * 3
    assert many["text"] == ["0"] * 3 + ["1"] * 3
    assert batch(2).group_ids is None


def test_a_numpy_array_is_a_tensor_of_the_same_memory() -> None:
    array = np.arange(6.0).reshape(3, 2)
    made = Batch({"x": array, "text": np.array(["a", "b", "c"]), "rows": [np.ones(2)] * 3})
    array[0, 0] = 7
    assert isinstance(made["x"], torch.Tensor) and made["x"].dtype == torch.float64 and made["x"][0, 0] == 7
    assert made["text"] == ["a", "b", "c"] and isinstance(made["rows"], list)


def test_where_drops_and_keeps_ids() -> None:
    kept = batch().where([True, False, False, True])
    assert kept.ids.tolist() == [[10], [13]] and kept["rows"].lengths.tolist() == [0, 3]


def test_neighbours_are_views_and_a_clone_is_not() -> None:
    whole = batch()
    part = whole.take([1, 2])
    assert part["x"].data_ptr() == whole["x"][1:].data_ptr()
    assert part.clone()["x"].data_ptr() != part["x"].data_ptr()


@given(st.integers(0, 12), st.integers(1, 5), st.integers(0, 20), st.none() | st.integers(0, 9))
def test_minibatches_yield_every_sample_once_and_the_same_count_on_every_rank(
    count: int, size: int, more: int, seed: int | None
) -> None:
    whole = batch(count)
    whole.most = count + more
    cuts = list(whole.minibatches(size, seed))
    assert len(cuts) == -(-whole.most // size)
    assert all(len(cut) <= size for cut in cuts)
    assert sorted(id for cut in cuts for (id,) in cut.ids.tolist()) == list(range(10, 10 + count))


def test_concat_and_join() -> None:
    one, two = batch().take([0, 1]), batch().take([2, 3])
    both = Batch.concat([one, two])
    assert both["text"] == ["0", "1", "2", "3"] and both["rows"].lengths.tolist() == [0, 1, 2, 3]
    assert both.joined(both.select().with_columns(y=torch.zeros(4))).names == ("y", "x", "rows", "text")
    with pytest.raises(BatchError, match="column 'x' is given twice"):
        both.joined(both)


@pytest.mark.parametrize(
    ("columns", "message"),
    [({"a": torch.zeros(2), "b": [1]}, "a 2, b 1"), ({"a": torch.tensor(1)}, "has no sample dim")],
)
def test_columns_that_make_no_batch(columns: dict[str, object], message: str) -> None:
    with pytest.raises(BatchError, match=message):
        Batch(columns)  # type: ignore[arg-type]


def test_the_result_of_an_endpoint_is_identified_by_its_number_of_rows() -> None:
    given_ = batch(2).with_columns(**{"@version": torch.tensor([5, 6])})
    same = identify(Batch({"y": [1, 2]}), given_)
    assert same.ids.tolist() == [[10], [11]] and same["@version"].tolist() == [5, 6]
    children = identify(Batch({"y": [1, 2, 3, 4]}), given_)
    assert children.ids.tolist() == [[10, 0], [10, 1], [11, 0], [11, 1]] and children[
        "@version"
    ].tolist() == [5, 5, 6, 6]
    assert children.group_depth == 1
    own = identify(given_.select().where([False, True]), given_)
    assert own.ids.tolist() == [[11]]
    with pytest.raises(BatchError, match="3 rows were made from 2 samples"):
        identify(Batch({"y": [1, 2, 3]}), given_)


def test_ragged_rows_and_padding() -> None:
    ragged = Ragged.of([torch.tensor([1, 2]), torch.tensor([]), torch.tensor([3])])
    assert ragged[0].tolist() == [1, 2] and len(ragged[1]) == 0 and ragged[-1].tolist() == [3]
    assert ragged.padded(9).tolist() == [[1, 2], [9, 9], [3, 9]]
    assert [row.tolist() for row in ragged.take([2, 0]).rows()] == [[3], [1, 2]]
    assert len(ragged.take([])) == 0


def test_alone_the_largest_share_is_the_batch_itself() -> None:
    few = batch(12).take([1, 2, 3])
    assert few.most == 3 and len(list(few.minibatches(2))) == 2
    few.most = 9
    assert few.take([0]).most == 9 and few.repeat(2).most == 18


def test_the_ids_of_a_batch_are_a_grid_where_they_are_evenly_numbered() -> None:
    for grid in (Grid(7, (6,)), Grid(7, (3, 2))):
        assert Batch({"x": torch.arange(6)}, ids=torch.tensor([*grid])).grid == grid
    assert Batch({"x": torch.ones(2)}).grid == Grid(0, (2,)) and not Batch({"x": torch.ones(2)}).has_ids
    with pytest.raises(BatchError, match="x 6, ids 5"):
        Batch({"x": torch.arange(6)}, ids=torch.arange(5))


def test_a_batch_that_was_given_no_ids_has_none_however_it_is_made() -> None:
    given = Batch({"x": torch.zeros(3)}, ids=torch.arange(100, 103))
    fresh = Batch({"x": torch.arange(3)})
    other = Batch({"y": torch.ones(3)})
    made = [
        fresh.with_columns(y=other["y"]),
        fresh.select("x"),
        fresh.clone(),
        fresh.to("cpu"),
        fresh.joined(other),
    ]
    assert not any(batch.has_ids for batch in made)
    assert all(identify(batch, given).ids.tolist() == [[100], [101], [102]] for batch in made)


def test_ids_may_be_any_numbers() -> None:
    assert Batch({"x": torch.zeros(2)}, ids=torch.tensor([1, 2**62])).repeat(4).grid is None
    for wrong in (torch.zeros(3, 0, dtype=torch.int64), torch.zeros(3, 1, 1, dtype=torch.int64)):
        with pytest.raises(BatchError, match="rows of numbers"):
            Batch({"x": torch.zeros(3)}, ids=wrong)


def test_columns_of_two_devices_are_not_joined() -> None:
    near, far = (Batch({"x": torch.zeros(2, device=device)}) for device in ("cpu", "meta"))
    with pytest.raises(BatchError, match="'x' is on cpu here and on meta there"):
        Batch.concat([near, far])


def test_a_slice_selects_the_rows_of_a_rank() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=3)
    batch = Batch({"x": torch.arange(7), "text": list("abcdefg")})
    own = batch[mesh.at(1).get_slice(len(batch))]
    assert isinstance(own, Batch) and own["x"].tolist() == [3, 4] and own["text"] == ["d", "e"]
    assert batch[::3]["text"] == ["a", "d", "g"] and len(batch[5:2]) == 0
