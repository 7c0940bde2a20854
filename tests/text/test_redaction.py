"""Redaction by keys, options and known texts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshctl.text.redaction import (
    HIDDEN,
    command_line,
    holds_literal,
    is_secret,
    is_secret_at,
    literals,
    redact,
    redact_arguments,
)

SECRET = """
    token api_key apikey password passwd passphrase secret credential credentials private_key access_key auth
    authorization hf_token HF_TOKEN authToken wandbApiKey APIKey AWS_SECRET_ACCESS_KEY client_secret db-password
    api-key api_keys secret_key bearer_token OPENAI_API_KEY api_key_openai password_2
"""
NOT_SECRET = """
    max_new_tokens tokenizer token_count pad_token_id author authority pad_token eos_token image_token tokens
    tokens_per_step author_name api_key_file password_file token_budget secretary key keys access monkey oauth2
    next_token secret_name passing
"""


def test_which_keys_are_secret() -> None:
    assert [key for key in SECRET.split() if not is_secret(key)] == []
    assert [key for key in NOT_SECRET.split() if is_secret(key)] == []


def test_names_that_users_choose_are_no_keys() -> None:
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
        (f"the key wandb_v1_{'aB3-' * 8} is wrong", "the key <redacted> is wrong"),
        ("dp 2 x tp 3 = 6, max_new_tokens=3", "dp 2 x tp 3 = 6, max_new_tokens=3"),
    ],
)
def test_a_text_without_what_is_secret(text: str, shown: str) -> None:
    assert redact(text) == shown


def test_known_texts_are_hidden_wherever_they_stand_even_cut_short() -> None:
    known = ("a-very-long-secret-that-is-cut", "abcd")
    assert (
        redact("it is `a-very-long-secret-that` and abcd, not abcdef", known)
        == f"it is `{HIDDEN}` and {HIDDEN}, not abcdef"
    )
    assert redact("ab", ("ab",)) == "ab"


def test_the_arguments_of_a_program() -> None:
    argv = ["train.py", "--token", "abc", "--api-key=a b,c}", "wandb.api_key=x"]
    argv += ["--token", "${oc.env:T}", "--auth", "--lr", "3"]
    shown = ("train.py", "--token", HIDDEN, f"--api-key={HIDDEN}", f"wandb.api_key={HIDDEN}")
    assert redact_arguments(argv) == (*shown, "--token", "${oc.env:T}", "--auth", "--lr", "3")
    assert command_line(["a b", "--token", "x"]) == "'a b' --token <redacted>"


@given(st.lists(st.text(alphabet="ab:={}[]'\"- \ttoken,#|>&*\\$", max_size=30), max_size=6))
def test_whatever_a_text_is_nothing_raises(lines: list[str]) -> None:
    redact("\n".join(lines))


def test_what_is_written_out() -> None:
    assert list(literals("a${oc.env:X}b")) == ["a", "b"]
    assert list(literals("${oc.env:X,'c d'}")) == ["c d"]
    assert not list(literals("${vars.x}"))
    for value in (
        [{"token": "abc"}],
        [["--token", "abc"]],
        {"cmd": "x --token=abc"},
        {"B": "redis://me:abc@host"},
    ):
        assert holds_literal(value)
    assert not holds_literal([{"token": "${oc.env:X}", "tokenizer": "abc"}, ["--lr", "3"], "redis://host:1"])
