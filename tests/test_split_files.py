"""The files of a split, as the library `datasets` selects them by their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshctl.split_files import files_in, of_split

SUFFIXES = (".jsonl", ".json", ".ndjson", ".parquet")
SHARDS = "train_sft-00000-of-00001.parquet", "train_gen-00000-of-00001.parquet"


@pytest.mark.parametrize(
    ("names", "split", "expected"),
    [
        (["train.jsonl", "test.jsonl"], "train", [0]),
        (["train.jsonl", "test.jsonl"], "test", [1]),
        (["train.jsonl", "test.jsonl"], "validation", "the names of its files name `test` and `train`"),
        (["train.jsonl", "test.jsonl"], "train[:1]", "the names of its files name `test` and `train`"),
        (["chats-train-1.jsonl", "chats-train-2.jsonl", "chats-dev.jsonl"], "train", [0, 1]),
        (["chats-train.jsonl", "chats-dev.jsonl"], "validation", [1]),
        (["train-00000-of-00002.parquet", "train-00001-of-00002.parquet", "eval.parquet"], "train", [0, 1]),
        (["train.jsonl", "more.jsonl"], "train", [0]),
        (["more.jsonl", "test.jsonl"], "train", "the names of its files name `test`"),
        (["part-00000-of-00002.jsonl", "part-00001-of-00002.jsonl"], "train", [0, 1]),
        (["latest.jsonl", "contest.jsonl", "trainer.jsonl"], "train", [0, 1, 2]),
        (["a.jsonl", "b.jsonl"], "test", "no name of its files names a split"),
        (SHARDS, "train_sft", [0]),
        (SHARDS, "train", "the names of its files name `train_gen` and `train_sft`"),
        (["data/train.jsonl", "data/test.jsonl", "other/train.jsonl"], "train", [0]),
        (["train/a.jsonl", "test/a.jsonl"], "test", [1]),
        (["train.jsonl", "dataset_info.json", "meta.json"], "train", [0]),
        (["a.jsonl", "any_description.json"], "train", [0]),
        (["a.json", "dataset_info.json", "meta.json"], "train", [0]),
    ],
)
def test_a_folder(tmp_path: Path, names: list[str], split: str, expected: list[int] | str) -> None:
    files = [tmp_path / name for name in names]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.touch()
    chosen, wrong = of_split(files_in(tmp_path, SUFFIXES), "chats", split, tmp_path)
    if isinstance(expected, str):
        assert (chosen, wrong) == ([], f"`split: {split}` selects no file of `chats`: {expected}")
    else:
        assert (chosen, wrong) == (sorted(files[number] for number in expected), "")


@pytest.mark.parametrize(
    ("path", "names", "split", "count"),
    [
        ("chats.jsonl", ["chats.jsonl"], "train", 1),
        ("chats.jsonl", ["chats.jsonl"], "test", 0),
        ("test.jsonl", ["test.jsonl"], "test", 1),
        ("test.jsonl", ["test.jsonl"], "train", 1),  # the default, of a file that is named
        ("test.jsonl", ["test.jsonl"], "validation", 0),
        ("*.jsonl", ["train.jsonl", "test.jsonl"], "train", 1),
        ("*.jsonl", ["train.jsonl", "test.jsonl"], "test", 1),
        ("*.jsonl", ["test.jsonl"], "train", 0),
        ("test-*.jsonl", ["test-1.jsonl", "test-2.jsonl"], "train", 2),
        ("test/*.jsonl", ["test/1.jsonl", "test/2.jsonl"], "test", 2),
    ],
)
def test_a_file_or_a_pattern(path: str, names: list[str], split: str, count: int) -> None:
    chosen, wrong = of_split([Path("data", name) for name in names], f"data/{path}", split, None)
    assert len(chosen) == count and bool(wrong) == (not count)
