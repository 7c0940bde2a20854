"""Rows of files: their places, their splits, and messages about those that cannot be read."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from meshctl.data.errors import DataError
from meshctl.data.rows import JsonLines, Rows, open_rows, split_off
from meshctl.recipe.code.files import first_row


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def numbers(rows: Rows) -> list[int]:
    return [rows[number]["n"] for number in range(len(rows))]


def test_lines_end_at_line_feeds_only(tmp_path: Path) -> None:
    rows = [{"text": f"a{separator}b"} for separator in ("\u2028", "\u0085", "\x0b", "\x1c", "\\n")]
    found = open_rows(str(write(tmp_path / "odd.jsonl", rows)), "train")
    assert [found[number] for number in range(len(found))] == rows


def test_blank_lines_count_as_lines_and_not_as_rows(tmp_path: Path) -> None:
    path = tmp_path / "blank.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"n": 0}\r\n\n  \n{"n": 1}')
    rows = open_rows(str(path), "train")
    assert numbers(rows) == [0, 1]
    assert rows.place(1) == f"{path}:4"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'{"n": 0}\n{"n": ', r"bad\.jsonl:2: .* at column 7"),
        (b'{"n": 0}\n[1]\n', r"bad\.jsonl:2: a row is an object, not \[1\]"),
        (b'{"n": 0}\n{"n": "\xff"}\n', r"bad\.jsonl:2: byte 8 is not UTF-8"),
        (b'{"n": 0}\n' + b'{"n": ' * 100_000, r"bad\.jsonl:2: its values are nested too deeply"),
    ],
)
def test_a_bad_row_is_named_when_it_is_read(tmp_path: Path, text: bytes, expected: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(text)
    rows = open_rows(str(path), "train")
    assert rows[0] == {"n": 0}
    with pytest.raises(DataError, match=expected):
        rows[1]


def test_files_of_a_pattern_or_a_folder_follow_one_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in (1, 0, 2):
        write(tmp_path / f"part-{part}.jsonl", [{"n": 2 * part}, {"n": 2 * part + 1}])
    monkeypatch.syspath_prepend(str(tmp_path.parent))
    for path in (f"{tmp_path.name}/part-*.jsonl", tmp_path.name, str(tmp_path)):
        rows = open_rows(path, "train")
        assert numbers(rows) == list(range(6))
        assert rows.place(5).endswith("part-2.jsonl:2")


def test_a_split_of_files_is_read_alone(tmp_path: Path) -> None:
    for number, split in enumerate(("train", "test")):
        write(tmp_path / f"{split}.jsonl", [{"n": number}])
    (tmp_path / "dataset_info.json").write_text("{}")
    assert [numbers(open_rows(str(tmp_path), split)) for split in ("train", "test")] == [[0], [1]]
    with pytest.raises(
        DataError, match=r"`split: train\[:1\]` selects no file of .*: the names of its files name"
    ):
        open_rows(str(tmp_path), "train[:1]")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("nowhere.jsonl", "no file 'nowhere.jsonl' in the recipe's folder"),
        ("no/where/at/all", "no file 'no/where/at/all'"),
        ("{folder}/empty.jsonl", "empty.jsonl has no rows"),
        ("{folder}/table.xlsx", r"`table.xlsx` is not one of \.jsonl, "),
        ("{folder}/none", "has no .jsonl or .* file, and no saved dataset"),
        ("{folder}/broken.parquet", "broken.parquet cannot be read: "),
    ],
)
def test_what_has_no_rows_is_named(tmp_path: Path, path: str, expected: str) -> None:
    for name in ("empty.jsonl", "table.xlsx", "broken.parquet"):
        (tmp_path / name).touch()
    (tmp_path / "none").mkdir()
    if "parquet" in path:
        pytest.importorskip("pyarrow")
    with pytest.raises(DataError, match=expected):
        open_rows(path.format(folder=tmp_path), "train")


@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize("name", ["rows.jsonl", "array.json", "lines.json", "rows.parquet", "rows.csv"])
def test_the_formats_of_files_and_their_packed_forms(tmp_path: Path, name: str, packed: str) -> None:
    rows = [{"n": n, "text": f"a, {n}\nb"} for n in range(3)]
    plain = tmp_path / name
    if name == "array.json":
        plain.write_text(f"\n {json.dumps(rows, indent=1)}")
    elif "json" in name:
        write(plain, rows)
    else:
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import csv, parquet

        table = pyarrow.Table.from_pylist(rows)
        parquet.write_table(table, plain) if "parquet" in name else csv.write_csv(table, plain)
    path = tmp_path / f"{name}{packed}"
    if packed:
        path.write_bytes(gzip.compress(plain.read_bytes()))
    found = open_rows(str(path), "train")
    assert [dict(found[number]) for number in range(len(found))] == rows
    assert found.place(1).startswith(str(path))
    seen = first_row(path)
    assert not seen.wrong and seen.columns == (None if "parquet" in name else ("n", "text"))


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("bad.jsonl.gz", b"{}", "bad.jsonl.gz cannot be unpacked: Not a gzipped file"),
        (
            "cut.jsonl.gz",
            gzip.compress(b'{"n": 1}\n' * 99, mtime=0)[:-9],
            "cut.jsonl.gz cannot be unpacked: ",
        ),
        ("bad.json", b'[{"n": 1}', "bad.json is not JSON: "),
        ("bad.csv", b"a,b\n1\n", "bad.csv cannot be read: "),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, name: str, content: bytes, expected: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=expected):
        open_rows(str(tmp_path / name), "train")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_without_permission_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "closed.jsonl", [{"n": 0}])
    path.chmod(0)
    with pytest.raises(DataError, match=r"closed\.jsonl cannot be read: Permission denied"):
        open_rows(str(path), "train")


@pytest.mark.parametrize(("holdout", "held"), [(3, 3), (0.1, 2), (0.5, 10)])
def test_held_out_rows_are_in_neither_both_nor_none(tmp_path: Path, holdout: float, held: int) -> None:
    rows = JsonLines(write(tmp_path / "all.jsonl", [{"n": n} for n in range(20)]))
    train, test = (numbers(split_off(rows, holdout, held_out=one)) for one in (False, True))
    assert len(test) == held
    assert sorted(train + test) == list(range(20))


@pytest.mark.parametrize("holdout", [20, 0.01, -1])
def test_a_split_without_rows_is_refused(tmp_path: Path, holdout: float) -> None:
    rows = JsonLines(write(tmp_path / "all.jsonl", [{"n": n} for n in range(20)]))
    with pytest.raises(DataError, match=r"`holdout: .*` takes .* of 20 rows"):
        split_off(rows, holdout, held_out=False)
    with pytest.raises(DataError, match="needs `holdout`"):
        split_off(rows, 0, held_out=True)


def test_parquet_and_saved_datasets_have_the_same_rows(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    chats = [{"n": n, "messages": [{"role": "user", "content": "é" * n}]} for n in range(5)]
    parquet.write_table(pyarrow.Table.from_pylist(chats), tmp_path / "chats.parquet")
    rows = open_rows(str(tmp_path / "chats.parquet"), "train")
    assert [rows[number] for number in range(len(rows))] == chats
    assert rows.place(3) == f"{tmp_path / 'chats.parquet'}, row 3"


def test_a_dataset_on_disk_is_read_by_split(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    folder = tmp_path / "saved"
    parts = {"train": [0, 1, 2], "test": [3]}
    made = {name: datasets.Dataset.from_dict({"n": numbers}) for name, numbers in parts.items()}
    datasets.DatasetDict(made).save_to_disk(str(folder))
    assert numbers(open_rows(str(folder), "test")) == [3]
    with pytest.raises(DataError, match="has no split `valid`; there are train, test"):
        open_rows(str(folder), "valid")
    made["train"].save_to_disk(str(tmp_path / "one"))
    assert numbers(open_rows(str(tmp_path / "one"), "train")) == [0, 1, 2]
    with pytest.raises(DataError, match="has no split `test`: it is one dataset"):
        open_rows(str(tmp_path / "one"), "test")
