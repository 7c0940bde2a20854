"""Streams: the same samples wherever the cuts are, an end without an announcement, and packs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from meshctl.data import ChatStream, DataError, RowError, Text, TextStream
from meshctl.data.streams import Stream

END = 258


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": chr(97 + n) * (n + 1), "n": n}) + "\n" for n in range(10)))
    return path


@pytest.fixture(scope="module")
def parquet(texts: Path) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [json.loads(line) for line in texts.read_text().splitlines()]
    parquet.write_table(pyarrow.Table.from_pylist(rows), texts.with_suffix(".parquet"))
    return texts.with_suffix(".parquet")


def rows(stream: Stream, samples: range) -> list[list[int]] | None:
    batch = stream.next(samples)
    if batch is None:
        return None
    assert batch.ids.flatten().tolist() == list(samples)[: len(batch)]
    return [row.tolist() for row in batch["input_ids"].rows()]


FORMS: list[dict[str, Any]] = [
    {},
    {"shuffle": False},
    {"max_length": 5, "over_length": "drop"},
    {"max_length": 5, "over_length": "split"},
    {"max_length": 5, "over_length": "truncate"},
    {"max_length": 12, "pack": True},
]


@pytest.mark.parametrize("form", FORMS)
def test_ranks_read_the_samples_of_one_stream(texts: Path, form: dict[str, Any]) -> None:
    whole = rows(TextStream(str(texts), "byte", repeat=True, seed=2, **form), range(24))
    assert whole is not None and len(whole) == 24
    ranks = [TextStream(str(texts), "byte", repeat=True, seed=2, **form) for _ in range(2)]
    found: list[list[int]] = []
    for start in range(0, 24, 6):
        for rank, stream in enumerate(ranks):
            found += rows(stream, range(start + 3 * rank, start + 3 * rank + 3)) or []
    assert found == whole
    assert rows(ranks[0], range(4, 9)) == whole[4:9], "an earlier sample is read again"


def test_a_stream_ends_unannounced(texts: Path) -> None:
    stream = TextStream(str(texts), "byte", shuffle=False)
    assert not hasattr(stream, "__len__")
    whole = [[97 + n] * (n + 1) + [END] for n in range(10)]
    assert [rows(stream, range(start, start + 4)) for start in (0, 4, 8, 12)] == [
        whole[:4],
        whole[4:8],
        whole[8:],
        None,
    ]
    assert rows(stream, range(12, 12)) == []


def test_epochs_of_local_rows_differ(texts: Path) -> None:
    found = rows(TextStream(str(texts), "byte", repeat=True), range(20)) or []
    assert sorted(found[:10]) == sorted(found[10:]) and found[:10] != found[10:]


def test_parquet_is_read_in_order_or_from_a_buffer(parquet: Path) -> None:
    whole = [[97 + n] * (n + 1) + [END] for n in range(10)]
    assert rows(TextStream(str(parquet), "byte", shuffle=False), range(10)) == whole
    for buffer in (1, 4, 20):
        one, other = (rows(TextStream(str(parquet), "byte", buffer=buffer), range(10)) for _ in range(2))
        assert one == other and one is not None and sorted(one) == whole
        assert (one == whole) == (buffer == 1)


def test_a_dataset_of_the_hub_is_loaded_as_table_or_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"text": ["a", "b", "c", "d"]})
    asked: list[Any] = []

    def load_dataset(*names: str, split: str, streaming: bool) -> Any:
        asked.append((*names, split, streaming))
        return data.to_iterable_dataset() if streaming else data

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    whole = [[n, END] for n in (97, 98, 99, 100)]
    assert rows(TextStream("owner/name", "byte", split="test", shuffle=False), range(4)) == whole
    shuffled = rows(TextStream("owner/name", "byte", repeat=True), range(8)) or []
    assert sorted(shuffled[:4]) == sorted(shuffled[4:]) == whole
    batch = Text("owner/name", "byte", shuffle=False).next(range(4))
    assert batch is not None and [row.tolist() for row in batch["input_ids"].rows()] == whole
    assert asked[0] == ("owner/name", "test", True) and asked[-1] == ("owner/name", "train", False)


def test_packs_of_a_window_hold_whole_texts(texts: Path) -> None:
    batch = TextStream(str(texts), "byte", max_length=12, pack=True).next(range(99))
    assert batch is not None and len(batch) == 6
    assert batch.names == ("input_ids", "labels", "position_ids", "segment_ids")
    assert batch["input_ids"].lengths.max() <= 12 and int(batch["input_ids"].lengths.sum()) == 65


def test_kept_keys_follow_their_rows(texts: Path) -> None:
    batch = TextStream(str(texts), "byte", keep=["n"]).next(range(10))
    assert batch is not None
    assert [len(row) for row in batch["input_ids"].rows()] == [n + 2 for n in batch["n"].tolist()]


@pytest.mark.slow
def test_worker_processes_give_the_same_stream(texts: Path) -> None:
    here, ahead = (TextStream(str(texts), "byte", workers=workers) for workers in (0, 2))
    for start in (0, 3, 6, 9, 12):
        assert rows(ahead, range(start, start + 2)) == rows(here, range(start, start + 2))
    ahead.close()


def test_a_bad_row_is_named(texts: Path, parquet: Path) -> None:
    with pytest.raises(RowError, match=r"texts\.jsonl:1: the row has no `messages`"):
        ChatStream(str(texts), "byte", shuffle=False).next(range(1))
    stream = TextStream(str(parquet), "byte", shuffle=False, max_length=4)
    with pytest.raises(RowError, match=r"texts\.parquet, row 3: the row has 5 tokens"):
        stream.next(range(5))


def test_what_cannot_be_a_stream_is_named(texts: Path) -> None:
    with pytest.raises(DataError, match="`pack` and `keep` exclude each other"):
        TextStream(str(texts), "byte", keep=["n"], pack=True, max_length=9)
