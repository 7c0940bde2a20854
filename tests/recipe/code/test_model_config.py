"""Valid, invalid and hostile files `config.json` of models: their sizes, or one message with its place."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshctl.recipe.code.model_config import Config, config

BIG = 10**30


def read(folder: Path, data: bytes | str) -> Config:
    (folder / "config.json").write_bytes(data.encode() if isinstance(data, str) else data)
    return config("config.json", [str(folder)])


def sizes(found: Config) -> dict[str, int]:
    assert not found.wrong
    return {size: number for size, (number, _) in found.sizes.items()}


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({"num_attention_heads": 32, "num_key_value_heads": 8}, {"num_heads": 32, "num_kv_heads": 8}),
        ({"n_head": 12, "n_embd": 768, "n_layer": 6}, {"num_heads": 12, "hidden_size": 768, "num_layers": 6}),
        ({"num_attention_heads": None, "n_head": 12}, {"num_heads": 12}),
        (
            {"text_config": {"num_attention_heads": 6}, "vision_config": {"num_attention_heads": 4}},
            {"num_heads": 6},
        ),
        ({"text_config": {"num_attention_heads": None}, "num_attention_heads": 6}, {"num_heads": 6}),
        ({"text_config": None, "num_attention_heads": 6}, {"num_heads": 6}),
        ({"text_config": [], "num_attention_heads": 6}, {"num_heads": 6}),
        ({"num_key_value_heads": 3, "kv_lora_rank": 512}, {}),
        ({"num_key_value_heads": 3, "kv_lora_rank": None}, {"num_kv_heads": 3}),
        (
            {"num_attention_heads": 32.0, "hidden_size": "64", "vocab_size": None, "num_hidden_layers": [2]},
            {},
        ),
        ({"num_attention_heads": -1, "hidden_size": 0, "vocab_size": True, "num_hidden_layers": {}}, {}),
        ({"num_attention_heads": BIG}, {"num_heads": BIG}),
        ({"smile": "\U0001f600", "lone": "\ud83d", "num_attention_heads": 6}, {"num_heads": 6}),
    ],
)
def test_the_numbers_of_it(stated: dict[str, Any], expected: dict[str, int], tmp_path: Path) -> None:
    assert sizes(read(tmp_path, json.dumps(stated))) == expected
    assert sizes(read(tmp_path, json.dumps(stated, indent="\t"))) == expected


def test_numbers_have_their_span(tmp_path: Path) -> None:
    found = read(tmp_path, '\ufeff{\r\n\t"n_head": 12,\r\n\t"n_layer": 6\r\n}')
    assert {size: (span.line, span.column, span.width) for size, (_, span) in found.sizes.items()} == {
        "num_heads": (2, 12, 2),
        "num_layers": (3, 13, 1),
    }


def test_a_number_too_long_to_be_one_is_not_known(tmp_path: Path) -> None:
    assert sizes(read(tmp_path, f'{{"n_head": {"9" * 5000}, "n_layer": 6}}')) == {"num_layers": 6}


@pytest.mark.parametrize(
    ("data", "wrong", "at"),
    [
        ("", "`config.json` is empty", None),
        ("[1, 2]", "`config.json` is not a mapping", None),
        ('{\n  "n_head": 6,', "`config.json` is not JSON", (2, 1)),
        ('{"n_head": 6} more', "`config.json` is not JSON", (1, 15)),
        ('{"a": "\x1b[31m"}', "`config.json` is not JSON", (1, 8)),
        ('{"a": "é"}'.encode("latin-1"), "`config.json` is not UTF-8: byte 0xe9 on line 1", (1, 8)),
        ('{"a": 1}'.encode("utf-16"), "`config.json` is UTF-16, not UTF-8", (1, 1)),
        (b"{" + b" " * (2 << 20) + b"}", "`config.json` is larger than 1 MiB", None),
        ('{"a": ' + "[" * 3000 + "]" * 3000 + "}", "`config.json` is nested deeper than 64 levels", (1, 70)),
        (
            json.dumps({"a": list(range(30_000))}),
            "`config.json` expands to more than 20,000 values",
            (1, 128_884),
        ),
    ],
    ids=lambda value: str(value)[:20] if isinstance(value, str) else "",
)
def test_what_cannot_be_read_is_reported_with_its_span(
    data: bytes | str, wrong: str, at: tuple[int, int] | None, tmp_path: Path
) -> None:
    found = read(tmp_path, data)
    assert found.wrong == wrong
    assert (found.at and (found.at.line, found.at.column)) == at
    assert found.at is None or found.lines


def test_what_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe")
    stated = {
        path: config(path, [str(tmp_path)]).wrong
        for path in ("empty", "pipe", "absent", "a\0b", "a" * 5000, "/dev/zero")
    }
    assert stated.pop("empty") == "the folder `empty` has no `config.json`"
    assert stated == {path: f"file `{path}` does not exist" for path in stated}


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    found = read(tmp_path_factory.getbasetemp(), data)
    assert all(type(number) is int and number > 0 for number, _ in found.sizes.values())
    assert not (found.wrong and found.sizes)
