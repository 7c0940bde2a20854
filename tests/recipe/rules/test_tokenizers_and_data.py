"""The rules about tokenizers, data and extras: what `validate` reads of them without executing anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshctl.data.checks import SUFFIXES
from meshctl.data.rows import READERS
from meshctl.diagnostics import Diagnostic
from meshctl.package import install_command
from meshctl.recipe.load import load
from meshctl.recipe.rules import components

CODES = {f"MC{number}" for number in range(442, 450)}
CHAT = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}


def reported(
    folder: Path, args: str, kind: str = "Chat", environ: dict[str, str] | None = None
) -> list[Diagnostic]:
    """Returns the diagnostics about two sources with the same arguments."""
    (folder / "recipe.yaml").write_text(
        "groups: {train: {ranks: 2, device_type: cpu}}\n"
        "components:\n"
        f"  one: {{_target_: meshctl.data.{kind}, group: train, args: {{{args}}}}}\n"
        f"  other: {{_target_: meshctl.data.{kind}, group: train, args: {{{args}}}}}\n"
        "pipeline:\n"
        "  first: {call: one.next, samples: 64}\n"
        "  second: {call: other.next, samples: 64}\n"
    )
    found = load("recipe.yaml", [], folder, environ=environ or {}).report.diagnostics
    return [one for one in found if one.code in CODES]


def tokenizer(folder: Path, **config: object) -> None:
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def rows(folder: Path, *given: object, name: str = "rows.jsonl") -> None:
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in given))


# Tokenizers


def test_a_tokenizer_without_a_template_is_an_error_of_chats_only(tmp_path: Path) -> None:
    rows(tmp_path, {**CHAT, "text": "a"})
    tokenizer(tmp_path / "base", eos_token="</s>")
    (one,) = reported(tmp_path, "path: rows.jsonl, tokenizer: base")
    assert (one.code, one.severity, one.message) == (
        "MC443",
        "error",
        "tokenizer `base` has no chat template",
    )
    assert one.primary and one.primary.line == 3
    assert [one.code for one in reported(tmp_path, "path: rows.jsonl, tokenizer: base", "ChatStream")] == [
        "MC443"
    ]
    assert reported(tmp_path, "path: rows.jsonl, tokenizer: base", "Text") == []


@pytest.mark.parametrize("form", ["config", "jinja", "argument", "environment"])
def test_a_template_may_be_in_several_places(tmp_path: Path, form: str) -> None:
    rows(tmp_path, CHAT)
    tokenizer(tmp_path / "base", **({"chat_template": "{{ messages }}"} if form == "config" else {}))
    more = ""
    if form == "jinja":
        (tmp_path / "base" / "chat_template.jinja").write_text("{{ messages }}")
    elif form == "argument":
        (tmp_path / "mine.jinja").write_text("{{ messages }}")
        more = ", chat_template: mine.jinja"
    elif form == "environment":
        more = ', chat_template: "${oc.env:TEMPLATE}"'
    args = f"path: rows.jsonl, tokenizer: base{more}"
    assert reported(tmp_path, args, environ={"TEMPLATE": "none.jinja"}) == []


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


def test_a_tokenizer_in_the_cache_of_the_hub_is_read(tmp_path: Path) -> None:
    rows(tmp_path, CHAT)
    folder = tmp_path / "home" / "hub" / "models--some--name"
    tokenizer(folder / "snapshots" / "abc")
    environ = {"HF_HOME": str(tmp_path / "home")}
    (one,) = reported(tmp_path, "path: rows.jsonl, tokenizer: some/name", environ=environ)
    assert one.code == "MC443"


# Data


@pytest.mark.parametrize(
    ("path", "code", "message"),
    [
        ("absent.jsonl", "MC446", "file `absent.jsonl` does not exist"),
        ("no/such/file", "MC446", "file `no/such/file` does not exist"),
        ("rows.csv", "MC446", "`rows.csv` is not one of .jsonl, .json, .ndjson, .parquet"),
        ("folder", "MC446", "the folder `folder` has no .jsonl"),
        ("none/*.jsonl", "MC446", "file `none/*.jsonl` does not exist"),
        ("empty.jsonl", "MC447", "`empty.jsonl` has no rows"),
        ("blank.jsonl", "MC447", "`blank.jsonl` has no rows"),
        ("broken.jsonl", "MC447", "broken.jsonl:2: Expecting value at column 14"),
        ("list.jsonl", "MC447", "list.jsonl:1: a row is an object, not list"),
        ("latin.jsonl", "MC447", "latin.jsonl:1: byte 8 is not UTF-8"),
        ("text.parquet", "MC447", "`text.parquet` is not a parquet file"),
        ("other.jsonl", "MC448", "the first row of `other.jsonl` has no `messages`"),
        ("broken.jsonl, split: test", "MC446", "`split: test` selects no file of `broken.jsonl`: no name of"),
        ("splits, split: dev", "MC446", "`split: dev` selects no file of `splits`: the names of its files"),
        ("some/chats", "MC449", "`some/chats` is not on this machine, so its columns are not checked"),
    ],
)
def test_data_that_cannot_be_used(tmp_path: Path, path: str, code: str, message: str) -> None:
    for name, text in (("rows.csv", b"a,b"), ("empty.jsonl", b""), ("blank.jsonl", b"\n \n")):
        (tmp_path / name).write_bytes(text)
    (tmp_path / "folder").mkdir()
    (tmp_path / "splits").mkdir()
    for split in ("train", "test"):
        (tmp_path / "splits" / f"{split}.jsonl").touch()
    (tmp_path / "broken.jsonl").write_bytes(b'\n{"messages": \n')
    (tmp_path / "list.jsonl").write_bytes(b"[1]\n")
    (tmp_path / "latin.jsonl").write_bytes(b'{"a": "\xe9"}\n')
    (tmp_path / "text.parquet").write_bytes(b"messages\n")
    (tmp_path / "other.jsonl").write_bytes(b'{"chat": []}\n')
    (one,) = reported(tmp_path, f"path: {path}, tokenizer: byte")
    assert (one.code, one.message[: len(message)]) == (code, message)
    assert one.severity == ("note" if code == "MC449" else "error")
    assert one.primary and one.primary.line == 3


@pytest.mark.parametrize(
    ("kind", "row", "more", "missing"),
    [
        ("Chat", {"chat": [], "weight": 1}, "fields: {messages: chat}", ""),
        ("Chat", {"chat": []}, "fields: {messages: talk}", "`talk`"),
        ("Chat", CHAT, "keep: [weight, score]", "`weight` or `score`"),
        ("Chat", {**CHAT, "weight": 1}, "keep: [weight]", ""),
        ("ChatStream", {"text": "a"}, "", "`messages`"),
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
    assert [one.message for one in found] == (
        [f"the first row of `rows.jsonl` has no {missing}"] if missing else []
    )


def test_patterns_and_folders_are_read_until_the_first_row(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    rows(tmp_path / "data", name="a.jsonl")
    rows(tmp_path / "data", {"text": "a"}, name="b.jsonl")
    for path in ("data", "data/*.jsonl"):
        (one,) = reported(tmp_path, f"path: '{path}', tokenizer: byte")
        assert one.message == f"the first row of `{path}` has no `messages`"


def test_a_saved_dataset_and_an_unknown_path_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "state.json").write_text("{}")
    assert reported(tmp_path, "path: saved, tokenizer: byte") == []
    environ = {"DATA": "absent.jsonl"}
    assert reported(tmp_path, 'path: "${oc.env:DATA}", tokenizer: byte', environ=environ) == []


def test_the_sources_declare_the_suffixes_that_they_read() -> None:
    assert tuple(READERS) == SUFFIXES


# Extras


def test_missing_libraries_are_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows(tmp_path, CHAT)
    monkeypatch.setattr(components, "missing_libraries", lambda extra, path: ("transformers",))
    (one,) = reported(tmp_path, "path: rows.jsonl, tokenizer: byte")
    assert (one.code, one.severity, one.help) == ("MC442", "note", install_command("hf"))
    assert one.message == "`one` and `other` need `transformers`, not installed here"
