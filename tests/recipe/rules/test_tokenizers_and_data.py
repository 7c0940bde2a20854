"""The rules about tokenizers, data and extras: what `validate` reads of them without executing anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshctl.data.checks import SUFFIXES
from meshctl.data.rows import READERS
from meshctl.diagnostics import Diagnostic
from tests.recipe.rules import facts

CODES = {f"MC{number}" for number in range(442, 450)}
CHAT = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}


def reported(
    folder: Path, args: str, kind: str = "Chat", environ: dict[str, str] | None = None
) -> list[Diagnostic]:
    """Returns the diagnostics about two sources with the same arguments."""
    recipe = (
        "groups: {train: {ranks: 2, device_type: cpu}}\n"
        "components:\n"
        f"  one: {{_target_: meshctl.data.{kind}, group: train, args: {{{args}}}}}\n"
        f"  other: {{_target_: meshctl.data.{kind}, group: train, args: {{{args}}}}}\n"
        "pipeline:\n"
        "  first: {call: one.next, samples: 64}\n"
        "  second: {call: other.next, samples: 64}\n"
    )
    return facts.reported(folder, recipe, CODES, environ=environ or {})


def tokenizer(folder: Path, **config: object) -> None:
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def rows(folder: Path, *given: object, name: str = "rows.jsonl") -> None:
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in given))


@pytest.mark.parametrize(
    ("args", "kind", "is_wrong"),
    [
        ("tokenizer: bare", "Chat", True),
        ("tokenizer: bare", "ChatStream", True),
        ("tokenizer: some/name", "Chat", True),  # in the cache of the hub
        ("tokenizer: bare", "Text", False),
        ("tokenizer: whole", "Chat", False),
        ("tokenizer: beside", "Chat", False),
        ("tokenizer: bare, chat_template: mine.jinja", "Chat", False),
        ('tokenizer: bare, chat_template: "${oc.env:TEMPLATE}"', "Chat", False),
    ],
)
def test_chats_need_a_template(tmp_path: Path, args: str, kind: str, is_wrong: bool) -> None:
    rows(tmp_path, {**CHAT, "text": "a"})
    tokenizer(tmp_path / "bare", eos_token="</s>")
    tokenizer(tmp_path / "whole", chat_template="{{ messages }}")
    tokenizer(tmp_path / "beside")
    tokenizer(tmp_path / "home" / "hub" / "models--some--name" / "snapshots" / "abc")
    for file in (tmp_path / "beside" / "chat_template.jinja", tmp_path / "mine.jinja"):
        file.write_text("{{ messages }}")
    environ = {"HF_HOME": str(tmp_path / "home"), "TEMPLATE": "none.jinja"}
    found = reported(tmp_path, f"path: rows.jsonl, {args}", kind, environ)
    assert [(one.code, one.severity) for one in found] == [("MC443", "error")] * is_wrong
    assert all(one.message.endswith("` has no chat template") and facts.lines(one)[0] == 3 for one in found)


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        ("tokenizer: ./absent", "MC444", "tokenizer `./absent` does not exist on this machine"),
        ("tokenizer: empty", "MC444", "the folder `empty` has no tokenizer: none of tokenizer.json"),
        ("tokenizer: broken", "MC444", "`broken/tokenizer_config.json` is not JSON: "),
        ("tokenizer: listed", "MC444", "`listed/tokenizer_config.json` is not a mapping"),
        ("tokenizer: byte, chat_template: no.jinja", "MC444", "chat template `no.jinja` does not exist"),
        ("tokenizer: some/name", "MC445", "tokenizer `some/name` is neither a local folder nor in the cache"),
    ],
)
def test_a_tokenizer_that_cannot_be_read(tmp_path: Path, args: str, code: str, message: str) -> None:
    rows(tmp_path, CHAT)
    (tmp_path / "empty").mkdir()
    for name, text in (("broken", "{"), ("listed", "[]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer_config.json").write_text(text)
    (one,) = reported(tmp_path, f"path: rows.jsonl, {args}")
    assert (one.code, one.message[: len(message)]) == (code, message)
    assert one.severity == ("note" if code == "MC445" else "error")


FILES = {
    **{
        "rows.xlsx": b"a,b",
        "empty.jsonl": b"",
        "blank.jsonl": b"\n \n",
        "broken.jsonl": b'\n{"messages": \n',
    },
    **{"list.jsonl": b"[1]\n", "latin.jsonl": b'{"a": "\xe9"}\n', "text.parquet": b"messages\n"},
    **{
        "other.jsonl": b'{"chat": []}\n',
        "splits/train.jsonl": b"",
        "splits/test.jsonl": b"",
        "folder/x": b"",
    },
    **{"saved/state.json": b"{}", "data/a.jsonl": b"", "data/b.jsonl": b'{"text": "a"}\n'},
}
FIRST = "the first row of `{}` has no `messages`"


@pytest.mark.parametrize(
    ("path", "code", "message"),
    [
        ("absent.jsonl", "MC446", "file `absent.jsonl` does not exist"),
        ("no/such/file", "MC446", "file `no/such/file` does not exist"),
        ("rows.xlsx", "MC446", "`rows.xlsx` is not one of .jsonl, .json, .ndjson, .parquet"),
        ("folder", "MC446", "the folder `folder` has no .jsonl"),
        ("none/*.jsonl", "MC446", "file `none/*.jsonl` does not exist"),
        ("empty.jsonl", "MC447", "`empty.jsonl` has no rows"),
        ("blank.jsonl", "MC447", "`blank.jsonl` has no rows"),
        ("broken.jsonl", "MC447", "broken.jsonl:2: Expecting value at column 14"),
        ("list.jsonl", "MC447", "list.jsonl:1: a row is an object, not list"),
        ("latin.jsonl", "MC447", "latin.jsonl:1: byte 8 is not UTF-8"),
        ("text.parquet", "MC447", "`text.parquet` is not a parquet file"),
        ("other.jsonl", "MC448", FIRST.format("other.jsonl")),
        ("data", "MC448", FIRST.format("data")),  # whose first file has no rows
        ("'data/*.jsonl'", "MC448", FIRST.format("data/*.jsonl")),
        ("broken.jsonl, split: test", "MC446", "`split: test` selects no file of `broken.jsonl`: no name of"),
        ("splits, split: dev", "MC446", "`split: dev` selects no file of `splits`: the names of its files"),
        ("some/chats", "MC449", "`some/chats` is not on this machine, so its columns are not checked"),
        ("saved", "", ""),
        ("[saved, other.jsonl]", "MC448", FIRST.format("other.jsonl")),
        ("{saved: 0.5, other.jsonl: 0.5}", "MC448", FIRST.format("other.jsonl")),
        ("{saved: 0.5, none.jsonl: 0.5}", "MC446", "file `none.jsonl` does not exist"),
        ('"${oc.env:DATA}"', "", ""),
    ],
)
def test_data(tmp_path: Path, path: str, code: str, message: str) -> None:
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    found = reported(tmp_path, f"path: {path}, tokenizer: byte", environ={"DATA": "absent.jsonl"})
    assert [(one.code, one.message[: len(message)]) for one in found] == [(code, message)] * bool(code)
    for one in found:
        assert one.severity == ("note" if code == "MC449" else "error") and facts.lines(one)[0] == 3


@pytest.mark.parametrize(
    ("kind", "row", "more", "missing"),
    [
        ("Chat", {"chat": [], "weight": 1}, "fields: {messages: chat}", ""),
        ("Chat", {"chat": []}, "fields: {messages: talk}", "`talk`"),
        ("Chat", CHAT, "keep: [weight, score]", "`weight` or `score`"),
        ("Chat", {**CHAT, "weight": 1}, "keep: [weight]", ""),
        ("ChatStream", {"text": "a"}, "", "`messages`"),
        ("Chat", {"conversations": []}, "", ""),
        ("Chat", {"prompt": "a", "completion": "b"}, "", ""),
        ("Chat", {"instruction": "a", "input": "b", "output": "c"}, "", ""),
        ("Chat", {"question": "a", "answer": "b"}, "fields: {prompt: question, completion: answer}", ""),
        ("Text", {"text": "a"}, "", ""),
        ("TextStream", {"body": "a"}, "", "`text`"),
        ("Pairs", {"prompt": "a", "chosen": "b"}, "", "`rejected`"),
        ("PairsStream", {"chosen": [], "rejected": []}, "", ""),
    ],
)
def test_the_columns_of_the_first_row(
    tmp_path: Path, kind: str, row: dict[str, object], more: str, missing: str
) -> None:
    rows(tmp_path, row)
    found = reported(tmp_path, f"path: rows.jsonl, tokenizer: byte, {more}".rstrip(", "), kind)
    expected = [f"the first row of `rows.jsonl` has no {missing}"] * bool(missing)
    assert [one.message for one in found] == expected


def test_the_sources_declare_the_suffixes_that_they_read() -> None:
    assert tuple(READERS) == SUFFIXES
