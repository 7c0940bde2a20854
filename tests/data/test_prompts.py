"""Prompts as batches: texts, chats, templates, columns, lengths and bad rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from meshctl import Batch
from meshctl.data import DataError, Prompts, RowError
from meshctl.runtime.batch.batch import Ragged

START, END = 257, 258
USER = {"role": "user", "content": "1+1"}
ROWS: list[dict[str, Any]] = [
    {"prompt": "1+1=", "solution": "2", "level": 1},
    {"prompt": [USER], "solution": "2", "level": 2},
    {"prompt": [{"role": "system", "content": "Add."}, USER], "solution": "2", "level": 3},
]


def source(folder: Path, rows: list[dict[str, Any]], **options: Any) -> Prompts:
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = Prompts(str(path), "byte", shuffle=False, **options)
    made.setup()
    return made


def batch_of(made: Prompts) -> Batch:
    batch = made.next(range(len(made)))
    assert batch is not None
    return batch


def texts(batch: Batch) -> list[str]:
    """Returns the prompts as the tokens encode them."""
    special = {START: "<|im_start|>", END: "<|im_end|>"}
    column = batch["prompt_ids"]
    assert isinstance(column, Ragged)
    return ["".join(special.get(token) or chr(token) for token in row.tolist()) for row in column.rows()]


def test_a_text_is_used_as_it_is_and_a_chat_ends_where_the_answer_begins(tmp_path: Path) -> None:
    batch = batch_of(source(tmp_path, ROWS, keep=["solution", "level"]))
    assert batch.names == ("prompt_ids", "solution", "level", "prompt")
    user = "<|im_start|>user\n1+1<|im_end|>\n<|im_start|>assistant\n"
    expected = ["1+1=", user, f"<|im_start|>system\nAdd.<|im_end|>\n{user}"]
    assert batch["prompt"] == expected
    assert texts(batch) == expected
    assert batch["solution"] == ["2", "2", "2"] and batch["level"].tolist() == [1, 2, 3]


def test_a_text_can_be_the_message_of_a_user_after_one_of_the_system(tmp_path: Path) -> None:
    batch = batch_of(source(tmp_path, ROWS, chat=True, system="Be brief."))
    system = "<|im_start|>system\nBe brief.<|im_end|>\n"
    assert batch["prompt"][0] == (f"{system}<|im_start|>user\n1+1=<|im_end|>\n<|im_start|>assistant\n")
    assert batch["prompt"][1].startswith(system)
    assert "Be brief" not in batch["prompt"][2], "the chat has such a message"
    assert texts(batch) == batch["prompt"]


def test_long_prompts_are_dropped_with_their_further_columns(tmp_path: Path) -> None:
    rows = [{"prompt": "a" * length, "length": length} for length in (3, 9, 4)]
    made = source(tmp_path, rows, keep=["length"], max_prompt_tokens=4, over_length="drop")
    assert len(made) == 2
    batch = batch_of(made)
    assert batch["prompt"] == ["aaa", "aaaa"] and batch["length"].tolist() == [3, 4]
    assert batch["prompt_ids"].lengths.tolist() == [3, 4]


def test_a_long_prompt_is_an_error_that_names_its_row(tmp_path: Path) -> None:
    made = source(tmp_path, [{"prompt": "a"}, {"prompt": "abcdef"}], max_prompt_tokens=5)
    message = (
        r"prompts\.jsonl:2: the row has 6 tokens, `max_prompt_tokens` is 5: write `over_length: drop`, or"
    )
    with pytest.raises(RowError, match=message):
        batch_of(made)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"question": "a"}, "the row has no `prompt`; its keys are question"),
        ({"prompt": ""}, "`prompt` has no token"),
        ({"prompt": 3}, "`prompt` is not a list of messages"),
        ({"prompt": [{"content": "a"}]}, r"`prompt\[0\]` is not an object with `role` and `content`"),
    ],
)
def test_a_bad_row_is_named_with_its_line(tmp_path: Path, row: dict[str, Any], expected: str) -> None:
    with pytest.raises(RowError, match=rf"prompts\.jsonl:1: {expected}"):
        batch_of(source(tmp_path, [row]))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"over_length": "truncate"}, "`over_length: truncate` is not one of error, drop"),
        ({"max_prompt_tokens": 1}, "`max_prompt_tokens` is 1; it must be at least 2"),
        ({"keep": ["prompt"]}, "`keep` names `prompt`, which is a column already"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    tmp_path: Path, options: dict[str, Any], expected: str
) -> None:
    with pytest.raises(DataError, match=expected):
        source(tmp_path, ROWS, **options)
