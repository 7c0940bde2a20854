"""What is hidden and what is not: by keys, options and known texts; in lines of files, every character keeps
its column."""

from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from meshctl.text.redaction import (
    HIDDEN,
    arguments,
    command_line,
    hidden,
    holds_literal,
    is_secret,
    is_secret_at,
    literals,
    secrets_in,
    starred,
)

MARK = "S3cr3t-Mark"

SECRET = [
    *(
        "token",
        "api_key",
        "apikey",
        "password",
        "passwd",
        "passphrase",
        "secret",
        "credential",
        "credentials",
        "private_key",
    ),
    *("access_key", "auth", "authorization", "hf_token", "HF_TOKEN", "authToken", "wandbApiKey", "APIKey"),
    *(
        "AWS_SECRET_ACCESS_KEY",
        "client_secret",
        "db-password",
        "api-key",
        "api_keys",
        "secret_key",
        "bearer_token",
    ),
    *("OPENAI_API_KEY", "api_key_openai", "password_2"),
]
NOT_SECRET = [
    *(
        "max_new_tokens",
        "tokenizer",
        "token_count",
        "pad_token_id",
        "author",
        "authority",
        "pad_token",
        "eos_token",
    ),
    *(
        "image_token",
        "tokens",
        "tokens_per_step",
        "author_name",
        "api_key_file",
        "password_file",
        "token_budget",
        "secretary",
    ),
    *("key", "keys", "access", "monkey", "oauth2", "next_token", "secret_name", "passing"),
]


@pytest.mark.parametrize("key", SECRET)
def test_these_keys_are_secret(key: str) -> None:
    assert is_secret(key)


@pytest.mark.parametrize("key", NOT_SECRET)
def test_these_keys_are_not(key: str) -> None:
    assert not is_secret(key)


def test_names_that_users_give_are_no_keys() -> None:
    assert not is_secret_at(("components", "secret", "args", "size"))
    assert not is_secret_at(("pipeline", "x", "in", "token"))
    assert is_secret_at(("components", "a", "args", "auth", "user"))
    assert is_secret_at(("vars", "secret", "size"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("--token abc --lr 3", "--token <redacted> --lr 3"),
        ("x: {token: abc, y: 3}", "x: {token: <redacted>, y: 3}"),
        ('{"api_key": "abc", "b": 2}', '{"api_key": <redacted>, "b": 2}'),
        ("Authorization: Bearer abc", "Authorization: <redacted>"),
        ("get https://me:abc@host/x", "get https://me:<redacted>@host/x"),
        ("redis://me:p@ss@host, mail a@b", "redis://me:<redacted>@host, mail a@b"),
        ('{"u": "redis://me:abc@host","mail":"a@b"}', '{"u": "redis://me:<redacted>@host","mail":"a@b"}'),
        ("`vars.token=abc` replaces it", "`vars.token=<redacted>` replaces it"),
        ("token=${oc.env:X} and token: null", "token=${oc.env:X} and token: null"),
        ("token=${oc.env:X,abc}", "token=<redacted>"),
        ("dp 2 x tp 3 = 6, max_new_tokens=3", "dp 2 x tp 3 = 6, max_new_tokens=3"),
    ],
)
def test_a_text_without_what_is_secret(text: str, shown: str) -> None:
    assert hidden(text) == shown


def test_known_texts_are_hidden_wherever_they_stand_even_cut_short() -> None:
    known = ("a-very-long-secret-that-is-cut", "abcd")
    assert (
        hidden("it is `a-very-long-secret-that` and abcd, not abcdef", known)
        == f"it is `{HIDDEN}` and {HIDDEN}, not abcdef"
    )
    assert hidden("ab", ("ab",)) == "ab"


def test_the_arguments_of_a_program() -> None:
    argv = [
        "train.py",
        "--token",
        "abc",
        "--api-key=a b,c}",
        "wandb.api_key=x",
        "--token",
        "${oc.env:T}",
        "--auth",
        "--lr",
        "3",
    ]
    shown = ("train.py", "--token", HIDDEN, f"--api-key={HIDDEN}", f"wandb.api_key={HIDDEN}")
    assert arguments(argv) == (*shown, "--token", "${oc.env:T}", "--auth", "--lr", "3")
    assert command_line(["a b", "--token", "x"]) == "'a b' --token <redacted>"


FILE = """
components:
  secret: {group: x}
  b:
    args: {token: abc, x: 3, y: [--api-key, abc, --lr, 2]}
    "token": abc  # it was abc
    credentials:
      user: abc
      list:
      - abc
    password: |
      abc
        abc

    c: 3
    args:
    - --token
    - abc
    - --token=abc
    auth:
    - abc
    d: {token:
      abc}
    f: ${oc.env:TOKEN}
    token: ${oc.env:TOKEN}
    secret: "abc
       abc"
    g: 'token: abc'
    api_key: [abc
      , abc]
    h: 4
"""
STARRED = """
components:
  secret: {group: x}
  b:
    args: {token: ***, x: 3, y: [--api-key, ***, --lr, 2]}
    "token": *****************
    credentials:
      user: ***
      list:
      - ***
    password: *
      ***
        ***

    c: 3
    args:
    - --token
    - ***
    - --token=***
    auth:
    - ***
    d: {token:
      ***}
    f: ${oc.env:TOKEN}
    token: ${oc.env:TOKEN}
    secret: ****
       ****
    g: 'token: ***'
    api_key: ****
      ******
    h: 4
"""


def test_the_lines_of_a_file_keep_their_columns() -> None:
    assert starred(FILE.splitlines()) == tuple(STARRED.splitlines())


@pytest.mark.parametrize(
    ("override", "shown"),
    [
        ("vars.token=abc", "vars.token=***"),
        ("+components.a.args.token='a b'", "+components.a.args.token=*****"),
        ("components.a.args={token: abc, b: 2}", "components.a.args={token: ***, b: 2}"),
        ("groups.x.args=[--token,abc,--x,3]", "groups.x.args=[--token,***,--x,3]"),
        ("++components.secret.args.x=3", "++components.secret.args.x=3"),
        ("vars.auth.user=abc", "vars.auth.user=***"),
        ("vars.token=${vars.x}", "vars.token=${vars.x}"),
    ],
)
def test_an_override_keeps_its_columns(override: str, shown: str) -> None:
    assert starred([override]) == (shown,)


def test_a_long_line_takes_no_time() -> None:
    many = 200_000
    for line in (
        "token: {" * many,
        "a-" * many + "token",
        "token" + " " * many,
        "://::" * many + "@token",
        "'" * many + "token",
    ):
        (shown,) = starred([line])
        assert len(shown) == len(line)


# Whatever YAML it is written in

SECRET_KEYS = st.sampled_from(["token", "hf_token", "API_KEY", "auth", "password"])
PLAIN_KEYS = st.sampled_from(["a", "tokenizer", "max_new_tokens", "b c", "x-y", "1"])
MARKS = st.sampled_from(
    [
        MARK,
        f"{MARK} two",
        f"{MARK}: colon",
        f"'{MARK}'",
        f'"{MARK}" #',
        f"{MARK}\n{MARK}",
        f"- {MARK}",
        f"{MARK}, {MARK}}}",
    ]
)
TEXTS = st.sampled_from(["x", "it's", "{", "a: b", "[", "#", "", "two\nlines", "--lr"])
PLAIN = st.one_of(st.integers(-5, 99), st.booleans(), st.none(), TEXTS)
LISTS, ITEMS = {"min_size": 1, "max_size": 2}, st.lists(PLAIN, max_size=2)
UNDER = st.recursive(
    MARKS, lambda inner: st.one_of(st.lists(inner, **LISTS), st.dictionaries(PLAIN_KEYS, inner, **LISTS))
)
OPTIONS = st.builds(lambda before, mark, after: [*before, "--token", mark, *after], ITEMS, MARKS, ITEMS)
TREES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(PLAIN, st.dictionaries(SECRET_KEYS, UNDER, min_size=1, max_size=2), OPTIONS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(PLAIN_KEYS, inner, max_size=3)),
    max_leaves=8,
)


@settings(max_examples=300)
@given(
    st.dictionaries(PLAIN_KEYS, TREES, **LISTS), st.sampled_from([True, False, None]), st.sampled_from([2, 4])
)
@example({"a": [{"token": [MARK]}]}, False, 2)
def test_no_way_to_write_a_secret_shows_it(tree: Any, flow: bool | None, indent: int) -> None:
    lines = yaml.dump(
        tree, default_flow_style=flow, indent=indent, width=10_000, sort_keys=False
    ).splitlines()
    shown = starred(lines)
    assert MARK not in "\n".join(shown)
    assert [len(line) for line in shown] == [len(line) for line in lines]


@given(st.lists(st.text(alphabet="ab:={}[]'\"- \ttoken,#|>&*\\$", max_size=30), max_size=6))
def test_whatever_stands_in_a_file_nothing_raises(lines: list[str]) -> None:
    lines = [line.replace("\n", "") for line in lines]
    assert [len(line) for line in starred(lines)] == [len(line) for line in lines]
    for line in lines:
        hidden(line)


def test_what_is_written_out() -> None:
    assert list(literals("a${oc.env:X}b")) == ["a", "b"]
    assert list(literals("${oc.env:X,'c d'}")) == ["c d"]
    assert not list(literals("${vars.x}"))
    assert (
        holds_literal([{"token": "abc"}])
        and holds_literal([["--token", "abc"]])
        and holds_literal({"cmd": "x --token=abc"})
    )
    assert holds_literal({"env": {"BROKER": "redis://me:abc@host"}}) and not holds_literal(
        {"env": {"BROKER": "redis://host:1"}}
    )
    assert not holds_literal([{"token": "${oc.env:X}", "tokenizer": "abc"}, ["--lr", "3"]])
    assert set(secrets_in(FILE.splitlines())) >= {"abc"}
