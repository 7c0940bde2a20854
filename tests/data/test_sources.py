"""Chats, texts and pairs as batches: labels, lengths, packs, epochs, exact positions and bad rows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from meshctl import Batch
from meshctl.data import Chat, ChatStream, DataError, Labelled, Pairs, PairsStream, RowError, Text, TextStream
from meshctl.data.source import Source

END = 258
Make = Callable[..., Source]


def chat(n: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": "u" * n}, {"role": "assistant", "content": "a" * (n + 1)}]
    return {"messages": messages, "n": n, "score": n / 2, "good": n % 2 == 0, "name": f"row {n}"}


def write(path: Path, rows: list[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def made(source: Source) -> Source:
    source.setup()
    return source


def batch_of(source: Source, samples: range) -> Batch:
    batch = source.next(samples)
    assert batch is not None and batch.ids.flatten().tolist() == list(samples)
    return batch


def rows_of(batch: Batch, name: str) -> list[list[int]]:
    return [row.tolist() for row in batch[name].rows()]


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("chats") / "chats.jsonl", [chat(n) for n in range(10)])


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> str:
    rows = [{"text": chr(97 + n) * (n + 1)} for n in range(10)]
    return write(tmp_path_factory.mktemp("texts") / "texts.jsonl", rows)


# Columns


def test_a_csv_of_labels_gives_texts_with_numbers_or_names(tmp_path: Path) -> None:
    path = tmp_path / "reviews.csv"
    path.write_text("review,stars,mood\ngood,1,happy\nbad one,0,sad\n")
    given: dict[str, Any] = {"fields": {"text": "review", "label": "stars"}, "shuffle": False}
    batch = batch_of(Labelled(str(path), "byte", **given, keep=["mood"]), range(2))
    assert rows_of(batch, "input_ids") == [[*b"good"], [*b"bad one"]]
    assert batch["label"].tolist() == [1, 0] and batch["mood"] == ["happy", "sad"]
    given["fields"]["label"] = "mood"
    assert batch_of(Labelled(str(path), "byte", **given), range(2))["label"] == ["happy", "sad"]
    path.write_text("text,label\na,1.0\nb,\nc,0.5\n")
    labels = Labelled(str(path), "byte", bad_rows="skip", shuffle=False)
    assert len(labels) == 1 and [one.partition(": ")[2] for one in labels.problems()][1:] == [
        "`label` is None, and not a whole number or a name",
        "`label` is 0.5, and not a whole number or a name",
    ]
    path.write_text("review,stars,mood\ngood,1,happy\n")
    with pytest.raises(DataError, match="the row has no `label`; its keys are review, stars, mood"):
        Labelled(str(path), "byte", fields={"text": "review"})


def test_the_assistant_is_learned(chats: str) -> None:
    batch = batch_of(made(Chat(chats, "byte", shuffle=False)), range(2, 4))
    assert batch.names == ("input_ids", "labels")
    for n, ids, labels in zip((2, 3), rows_of(batch, "input_ids"), rows_of(batch, "labels"), strict=True):
        assert (
            bytes(id for id in ids if id < 256).decode() == f"user\n{'u' * n}\nassistant\n{'a' * (n + 1)}\n"
        )
        learned = [label for label in labels if label != -100]
        assert learned == [*(b"a" * (n + 1)), END]
        assert [id for id, label in zip(ids, labels, strict=True) if label != -100] == learned


def test_pairs_learn_the_answers(tmp_path: Path) -> None:
    user = {"role": "user", "content": "?"}
    good, bad = ({"role": "assistant", "content": text} for text in ("yes", "no"))
    forms = [
        {"prompt": "?", "chosen": "yes", "rejected": "no"},
        {"prompt": [user], "chosen": [good], "rejected": [bad]},
        {"chosen": [user, good], "rejected": [user, bad]},
        {"prompt": [user, bad, user], "chosen": [good], "rejected": [bad]},
        {"prompt": "?", "chosen": [user, good], "rejected": [user, bad]},
        {"prompt": "?", "chosen": [good], "rejected": [bad]},
        {"prompt": [user], "chosen": "yes", "rejected": "no"},
    ]
    batch = batch_of(made(Pairs(write(tmp_path / "pairs.jsonl", forms), "byte", shuffle=False)), range(7))
    assert len(batch.names) == 4
    for side, answer in (("chosen", b"yes"), ("rejected", b"no")):
        for ids, labels in zip(
            rows_of(batch, f"{side}_input_ids"), rows_of(batch, f"{side}_labels"), strict=True
        ):
            assert [label for label in labels if label != -100] == [*answer, END]
            assert len(ids) == len(labels)
    assert rows_of(batch, "chosen_input_ids")[0] == [*b"?yes", END]
    chosen = rows_of(batch, "chosen_input_ids")
    assert chosen[1:3] == chosen[4:6] and chosen[1] == chosen[2] == chosen[6]


def test_pairs_that_begin_with_the_call_of_a_tool(tmp_path: Path) -> None:
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "clock"}}]}
    good, bad = ({"role": "assistant", "content": text} for text in ("yes", "no"))
    row = {"prompt": "?", "chosen": [call, good], "rejected": [call, bad]}
    batch = batch_of(made(Pairs(write(tmp_path / "pairs.jsonl", [row]), "byte")), range(1))
    [labels] = rows_of(batch, "chosen_labels")
    learned = bytes(label for label in labels if 0 <= label < 256).decode()
    assert learned == '[{"function": {"name": "clock"}}]yes'


def test_kept_keys_are_columns_of_the_first_rows_type(chats: str) -> None:
    source = made(Chat(chats, "byte", shuffle=False, keep=["n", "score", "good", "name"]))
    batch = batch_of(source, range(2))
    assert batch["n"].tolist() == [0, 1] and batch["n"].dtype == torch.int64
    assert batch["score"].tolist() == [0.0, 0.5] and batch["score"].dtype == torch.float32
    assert batch["good"].tolist() == [True, False] and batch["name"] == ["row 0", "row 1"]
    empty = batch_of(source, range(3, 3))
    assert len(empty) == 0
    for name in batch.names:
        whole, none = batch[name], empty[name]
        assert type(whole) is type(none)
        if isinstance(whole, torch.Tensor):
            assert whole.dtype == none.dtype
        elif name != "name":
            assert whole.values.dtype == none.values.dtype


def test_fields_may_have_other_names(tmp_path: Path) -> None:
    path = write(tmp_path / "other.jsonl", [{"body": "ab"}])
    batch = batch_of(made(Text(path, "byte", fields={"text": "body"})), range(1))
    assert rows_of(batch, "input_ids") == [[97, 98, END]]
    with pytest.raises(DataError, match="`fields` has no `body`; this source reads text"):
        Text(path, "byte", fields={"body": "text"})


BROKEN = [
    '{"messages": [',
    json.dumps({"messages": []}),
    json.dumps({"messages": [{"role": "user", "content": "?"}]}),
]


@pytest.mark.parametrize("options", [{}, {"pack": True, "max_length": 60}, {"keep": ["n"], "workers": 1}])
def test_bad_rows_are_skipped_and_named(
    tmp_path: Path, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    lines = [json.dumps(chat(n)) for n in range(6)]
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    good.write_text("\n".join(lines))
    bad.write_text("\n".join([*lines[:2], *BROKEN, *lines[2:]]))
    expected, found = (
        made(Chat(str(path), "byte", shuffle=False, bad_rows="skip", **options)) for path in (good, bad)
    )
    assert len(found) == len(expected)
    everything = range(len(found))
    for name in ("input_ids", "labels"):
        assert rows_of(batch_of(found, everything), name) == rows_of(batch_of(expected, everything), name)
    [warning] = caplog.messages
    assert warning.startswith("3 rows of 9 cannot be used and are skipped: ")
    assert all(f"bad.jsonl:{line}: " in warning for line in (3, 4, 5))
    found.close()
    first = write(tmp_path / "first.jsonl", [{"messages": []}, chat(1)])
    assert len(made(Chat(first, "byte", bad_rows="skip", keep=["n"]))) == 1
    with pytest.raises(
        DataError, match=r"3 rows of 9 cannot be used, and `bad_rows_limit` is 2: .*bad\.jsonl:3"
    ):
        made(Chat(str(bad), "byte", bad_rows="skip", bad_rows_limit=2))


USER, ANSWER = {"role": "user", "content": "1 and 2"}, {"role": "assistant", "content": "3"}
FORMS: list[tuple[dict[str, Any], str]] = [
    ({"messages": [USER, ANSWER]}, "3"),
    (
        {
            "messages": [
                {"role": "user", "content": ["1 ", {"type": "text", "text": "and 2"}]},
                {**ANSWER, "name": None},
            ]
        },
        "3",
    ),
    ({"conversations": [{"from": "human", "value": "1 and 2"}, {"from": "gpt", "value": "3"}]}, "3"),
    ({"conversations": [USER, ANSWER], "id": "x"}, "3"),
    ({"prompt": "1 and 2", "completion": "3"}, "3"),
    ({"prompt": [USER], "completion": [ANSWER]}, "3"),
    ({"instruction": "1 and 2", "input": "", "output": "3"}, "3"),
    ({"messages": [USER, ANSWER, USER, {**ANSWER, "weight": 0}]}, "3"),
    ({"messages": [USER, {**ANSWER, "content": "4", "train": False}, USER, {**ANSWER, "weight": 1}]}, "3"),
    ({"messages": [USER, {**ANSWER, "content": "4", "loss_mask": 0}, USER, ANSWER]}, "3"),
    ({"prompt": [USER, {**ANSWER, "content": "4"}, USER], "completion": [ANSWER]}, "3"),
    (
        {
            "instruction": "Add.",
            "input": "1 and 2",
            "output": "3",
            "system": "Be short.",
            "history": [["a", "b"]],
        },
        "b3",
    ),
]
"""A row, and the text that is learned."""


@pytest.mark.parametrize(("row", "learned"), FORMS)
def test_chats_in_the_forms_that_files_have(tmp_path: Path, row: dict[str, Any], learned: str) -> None:
    batch = batch_of(made(Chat(write(tmp_path / "chats.jsonl", [row]), "byte")), range(1))
    [ids], [labels] = rows_of(batch, "input_ids"), rows_of(batch, "labels")
    assert [label for label in labels if 0 <= label < END] == [*learned.encode()]
    text = bytes(id for id in ids if id < 256).decode()
    if len(ids) == len(text) + 4 and "system" not in row:
        assert text == "user\n1 and 2\nassistant\n3\n"
    if "system" in row:
        assert text == "system\nBe short.\nuser\na\nassistant\nb\nuser\nAdd.\n\n1 and 2\nassistant\n3\n"


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (
            {"conversations": [{"from": "robot", "value": "?"}]},
            "`conversations[0]` is from 'robot'; known are human,",
        ),
        ({"messages": [USER, {**ANSWER, "weight": 0}]}, "each message to learn has a `weight` of 0"),
        ({"messages": [USER, {**ANSWER, "weight": 0.5}]}, "`messages[1].weight` is 0.5: it must be 0 or 1"),
        (
            {"messages": [{**USER, "train": True}, ANSWER]},
            "`messages[0].train` is True, but only messages of the",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "`messages[0].content` has a part of the type",
        ),
        (
            {"messages": [USER, ANSWER], "tools": "f(x)"},
            "`tools` is 'f(x)', neither a list nor the JSON text of one",
        ),
        ({"instruction": "?", "output": "!", "history": ["a"]}, "`history` is not a list of pairs"),
        ({"instruction": "?", "output": "!", "history": 1}, "`history` is not a list of pairs"),
        ({"instruction": "?", "output": ["!"]}, "`output` is ['!'], not a text"),
    ],
)
def test_a_chat_that_cannot_be_read_is_named(tmp_path: Path, row: dict[str, Any], problem: str) -> None:
    source = made(Chat(write(tmp_path / "chats.jsonl", [row]), "byte"))
    with pytest.raises(RowError, match=re.escape(f"chats.jsonl:1: {problem}")):
        source.next(range(1))


THINKING = """\
{%- for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' and not loop.last %}...{% else %}{{ m.content }}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@pytest.mark.parametrize("kind", [Chat, ChatStream])
def test_each_turn_is_learned_as_it_was_generated(tmp_path: Path, kind: Any) -> None:
    """The template drops what the assistant thought before, as those of thinking models do."""
    (tmp_path / "thinking.jinja").write_text(THINKING)
    ask, one, two = (
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "1"},
        {**ANSWER, "content": "2"},
    )
    rows = [
        {"messages": [ask, one, ask, two], "n": 7},
        {"conversations": [{"from": "human", "value": "?"}, {"from": "gpt", "value": "3"}], "n": 8},
        {"messages": [ask, {**one, "weight": 0}, ask, two], "n": 9},
    ]
    path, template = write(tmp_path / "chats.jsonl", rows), str(tmp_path / "thinking.jinja")
    source = kind(path, "byte", shuffle=False, learn="turns", chat_template=template, keep=["n"])
    batch = source.next(range(4))
    texts = [bytes(id for id in ids if id < 256).decode() for ids in rows_of(batch, "input_ids")]
    first, second = "user\n?\nassistant\n1\n", "user\n?\nassistant\n...\nuser\n?\nassistant\n2\n"
    assert texts == [first, second, first.replace("1", "3"), second]
    learned = [bytes(label for label in labels if 0 <= label < 256) for labels in rows_of(batch, "labels")]
    assert learned == [b"1\n", b"2\n", b"3\n", b"2\n"] and batch["n"].tolist() == [7, 7, 8, 9]
    last = kind(path, "byte", shuffle=False, learn="last", chat_template=template).next(range(1))
    assert [label for label in rows_of(last, "labels")[0] if 0 <= label < 256] == [*b"2\n"]
    refused = kind(path, "byte", shuffle=False, chat_template=template)
    with pytest.raises(DataError, match=r"renders message 1 differently .* write `learn: turns`"):
        refused.next(range(1))


def test_tools_as_json_text(tmp_path: Path) -> None:
    (tmp_path / "tools.jinja").write_text(TOOLS)
    call = {"function": {"name": "clock", "arguments": {"zone": "CET"}}}
    as_text = {"function": {"name": "clock", "arguments": '{"zone": "CET"}'}}
    tools = [{"name": "clock"}]
    rows = [
        {"messages": [USER, {"role": "assistant", "tool_calls": [call]}], "tools": tools},
        {"messages": [USER, {"role": "assistant", "tool_calls": [as_text]}], "tools": json.dumps(tools)},
        {"messages": [USER, {"role": "assistant", "tool_calls": json.dumps([call])}], "tools": tools},
    ]
    path = write(tmp_path / "chats.jsonl", rows)
    source = made(Chat(path, "byte", shuffle=False, chat_template=str(tmp_path / "tools.jinja")))
    first, *others = rows_of(batch_of(source, range(3)), "input_ids")
    assert others == [first, first]


TOOLS = """\
{{- tools | tojson }}
{%- for message in messages %}{% generation %}{{ message | tojson }}{% endgeneration %}{% endfor %}"""


@pytest.mark.parametrize("kind", [Chat, ChatStream])
def test_keys_that_a_table_filled_with_null_are_not_rendered(tmp_path: Path, kind: Any) -> None:
    datasets = pytest.importorskip("datasets")
    (tmp_path / "tools.jinja").write_text(TOOLS)
    given = []
    for name, arguments in (
        ("weather", {"city": "Bonn", "in": {"days": 1}}),
        ("clock", {"in": {"zone": "CET"}}),
    ):
        call = {"function": {"name": name, "arguments": arguments}}
        answer = {"role": "assistant", "tool_calls": [call]}
        tool = {"name": name, "parameters": {key: {"type": "string"} for key in arguments}}
        given.append({"messages": [{"role": "user", "content": "?"}, answer], "tools": [tool]})
    table = datasets.Dataset.from_list(given)
    table.to_parquet(tmp_path / "table.parquet")
    table.save_to_disk(str(tmp_path / "saved"))
    write(tmp_path / "lines.jsonl", given)
    lines, parquet, saved = (
        rows_of(kind(str(tmp_path / name), "byte", shuffle=False, **options).next(range(2)), "input_ids")
        for options in [{"chat_template": str(tmp_path / "tools.jinja")}]
        for name in ("lines.jsonl", "table.parquet", "saved")
    )
    assert lines == parquet == saved and b"null" not in bytes(lines[0] + lines[1])


# Positions


FORMS: list[dict[str, Any]] = [
    {},
    {"shuffle": False},
    {"max_length": 5, "over_length": "drop"},
    {"max_length": 5, "over_length": "split"},
    {"max_length": 12, "pack": True},
    {"holdout": 3},
    {"holdout": 3, "held_out": True},
]


@pytest.mark.parametrize("form", FORMS)
def test_a_sample_is_the_same_wherever_the_cuts_are(texts: str, form: dict[str, Any]) -> None:
    """Each epoch has every sample once."""
    whole = made(Text(texts, "byte", seed=5, **form))
    size = len(whole)
    total = 2 * size + 3
    expected = rows_of(batch_of(whole, range(total)), "input_ids")
    first, second = expected[:size], expected[size : 2 * size]
    assert sorted(first) == sorted(second) and (first == second) == (form.get("shuffle") is False)
    fresh = made(Text(texts, "byte", seed=5, **form))
    found: dict[int, list[int]] = {}
    for start in (9, 0, 6, 3, *range(12, total, 3)):
        samples = range(start, min(start + 3, total))
        found |= dict(zip(samples, rows_of(batch_of(fresh, samples), "input_ids"), strict=True))
    assert [found[number] for number in range(total)] == expected


# Lengths


def test_long_rows_are_cut_left_out_or_split(texts: str) -> None:
    def rows(over_length: str) -> list[list[int]]:
        source = made(Text(texts, "byte", shuffle=False, max_length=4, over_length=over_length))
        batch = batch_of(source, range(len(source)))
        assert rows_of(batch, "labels") == [[-100, *ids[1:]] for ids in rows_of(batch, "input_ids")]
        return rows_of(batch, "input_ids")

    whole = [[97 + n] * (n + 1) + [END] for n in range(10)]
    assert rows("truncate") == [row[:4] for row in whole]
    assert rows("drop") == [row for row in whole if len(row) <= 4]
    assert rows("split") == [row[start : start + 4] for row in whole for start in range(0, len(row), 4)]


def test_a_long_row_is_an_error_that_names_it(texts: str) -> None:
    source = made(Text(texts, "byte", shuffle=False, max_length=5))
    batch_of(source, range(4))
    with pytest.raises(RowError, match=r"texts\.jsonl:5: the row has 6 tokens, `max_length` is 5: write"):
        source.next(range(4, 5))


def row_with(prompt: int, answer: int) -> dict[str, Any]:
    texts = {"prompt": "p" * prompt, "chosen": "c" * answer, "rejected": "r"}
    user, assistant = (
        {"role": role, "content": role[0] * n} for role, n in (("user", prompt), ("assistant", answer))
    )
    return {**texts, "messages": [user, assistant]}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Chat, {}),
        (Chat, {"learn": "last"}),
        (Chat, {"pack": True}),
        (ChatStream, {}),
        (ChatStream, {"pack": True, "repeat": True}),
        (Pairs, {}),
        (PairsStream, {}),
    ],
)
def test_a_row_that_has_no_label_after_the_cut_is_left_out(
    tmp_path: Path, kind: Any, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "rows.jsonl", [row_with(3, 50), row_with(60, 5), row_with(40, 1)])
    source = kind(path, "byte", shuffle=False, max_length=30, over_length="truncate", **options)
    batch = source.next(range(1))
    for name in batch.names:
        if name.endswith("labels"):
            assert max(rows_of(batch, name)[0]) > -100, "the first row is cut, and learned"
    if isinstance(source, Source):
        assert len(source) == 1
        assert caplog.messages == [
            "2 rows are left out, since they have nothing to learn in their first 30 tokens, "
            f"such as {path}:2"
        ]
    elif "repeat" not in options:
        assert source.next(range(1, 2)) is None
        assert [message[:6] for message in caplog.messages] == ["1 rows", "2 rows"]
    with pytest.raises(DataError, match="no row of at most 2 tokens"):
        kind(path, "byte", max_length=2, over_length="truncate", **options).next(range(1))


# Packs


def test_packs_hold_whole_texts(texts: str) -> None:
    source = made(Text(texts, "byte", max_length=12, pack=True))
    batch = batch_of(source, range(len(source)))
    assert batch.names == ("input_ids", "labels", "position_ids", "segment_ids")
    assert len(source) == 6, "65 tokens need at least six rows of twelve"
    texts_found = []
    for row in zip(*(rows_of(batch, name) for name in batch.names), strict=True):
        for segment in range(row[3][-1] + 1):
            part = [token for token in zip(*row, strict=True) if token[3] == segment]
            ids, labels, positions, _ = map(list, zip(*part, strict=True))
            assert positions == list(range(len(ids))) and labels == [-100, *ids[1:]]
            texts_found.append(ids)
    assert sorted(texts_found) == [[97 + n] * (n + 1) + [END] for n in range(10)]


# Processes


@pytest.mark.slow
@pytest.mark.parametrize("form", [{}, {"max_length": 12, "pack": True}])
def test_worker_processes_give_the_same_samples(texts: str, form: dict[str, Any]) -> None:
    here, ahead = made(Text(texts, "byte", **form)), made(Text(texts, "byte", workers=2, **form))
    for start in (0, 4, 8, 12, 16, 3, 7, 11):  # a stride of 4, and once another start
        samples = range(start, start + 2)
        assert rows_of(batch_of(ahead, samples), "labels") == rows_of(batch_of(here, samples), "labels")
    ahead.close()


# Bad input


@pytest.mark.parametrize(
    ("kind", "row", "expected"),
    [
        (Text, {"body": "a"}, "the row has no `text`; its keys are body"),
        (Text, {"text": None}, "`text` is None, not a text"),
        (Chat, {"text": "a"}, "the row has no `messages`; its keys are text"),
        (Chat, {"messages": []}, "`messages` is not a list of messages"),
        (
            Chat,
            {"messages": [{"content": "a"}]},
            r"`messages\[0\]` is not an object with `role` and `content`",
        ),
        (Chat, {"messages": [{"role": "user"}]}, r"`messages\[0\]` has no `content`"),
        (Chat, {"messages": [{"role": "user", "content": "a"}]}, "no message has the role `assistant`"),
        (Pairs, {"prompt": "a", "chosen": "b"}, "the row has no `rejected`; its keys are prompt, chosen"),
        (Pairs, {"prompt": "a", "chosen": "b", "rejected": []}, "`rejected` is not a list of messages"),
    ],
)
def test_a_bad_row_is_named_with_its_line(
    tmp_path: Path, kind: type[Source], row: Any, expected: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n" + json.dumps(row) + "\n")
    source = made(kind(str(path), "byte"))
    with pytest.raises(RowError, match=rf"rows\.jsonl:2: {expected}"):
        source.next(range(1))


def test_a_kept_value_of_another_type_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [{"text": "a", "n": 1}, {"text": "a", "n": 1.5}, {"text": "b"}])
    source = made(Text(path, "byte", shuffle=False, keep=["n"]))
    with pytest.raises(RowError, match=r"rows\.jsonl:2: `n` is 1\.5, the first row has a value of type int"):
        source.next(range(2))
    with pytest.raises(RowError, match=r"rows\.jsonl:3: the row has no `n`; its keys are"):
        source.next(range(2, 3))


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        (Text, {"over_length": "cut"}, "`over_length: cut` is not one of error, truncate, drop, split"),
        (Chat, {"over_length": "split"}, "is not one of error, truncate, drop$"),
        (Text, {"pack": True}, "`pack` needs `max_length`"),
        (Text, {"max_length": 1}, "`max_length` is 1; it must be at least 2"),
        (Text, {"tokens": [1]}, r"`tokens` is \[1\], and not a list of texts that are not empty"),
        (Text, {"tokens": "<a>"}, "`tokens` is '<a>', and not a list of texts"),
        (Pairs, {"pack": True, "max_length": 9}, "this source does not pack its samples"),
        (Chat, {"learn": "user"}, "`learn: user` is not one of assistant, turns, last, all"),
        (Text, {"pack": True, "max_length": 9, "keep": ["n"]}, "`pack` and `keep` exclude each other"),
        (Text, {"over_length": "split", "keep": ["n"]}, "`keep` needs one sample for each row"),
        (Text, {"keep": ["nothing"]}, "the row has no `nothing`; its keys are"),
        (Text, {"held_out": True}, "`held_out` needs `holdout`"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    texts: str, kind: type[Source], options: dict[str, Any], expected: str
) -> None:
    with pytest.raises(DataError, match=expected):
        kind(texts, "byte", **options)


@pytest.mark.parametrize("kind", [Text, TextStream])
def test_a_row_with_nothing_to_learn_is_a_message_and_no_sample(tmp_path: Path, kind: Any) -> None:
    path = write(tmp_path / "rows.jsonl", [{"text": text} for text in ("", "ab", "c")])
    help = "bad_rows: skip" if kind is Text else "over_length: drop"
    with pytest.raises(RowError, match=rf"rows\.jsonl:1: the row has nothing to learn; write `.*{help}`"):
        kind(path, "byte", shuffle=False).next(range(3))
    left = kind(path, "byte", shuffle=False, max_length=9, over_length="drop")
    assert rows_of(batch_of(left, range(2)), "input_ids") == [[*b"ab", END], [*b"c", END]]
    assert [*kind(path, "byte").problems()] == [f"{path}:1: the row has nothing to learn", "", ""]
