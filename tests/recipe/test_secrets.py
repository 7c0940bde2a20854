"""Recipes with secrets in unusual places: which values are secret, and that no report and no composed recipe
contains one."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from meshctl.cli.config import in_columns
from meshctl.recipe.compose.yaml_tree import plain
from meshctl.recipe.load import Loaded, load
from meshctl.recipe.origins import origins
from meshctl.recipe.secrets import mask_lines, shown
from meshctl.text.redaction import HIDDEN, redact
from meshctl.view.reports.text import text
from tests.examples import examples

MARK = "xS3cr3tMarkx"


def loaded(folder: Path, recipe: str, *overrides: str, **environ: str) -> Loaded:
    (folder / "recipe.yaml").write_text(recipe, encoding="utf-8")
    return load("recipe.yaml", overrides, folder, environ=environ, detect=lambda: "cpu")


def output(one: Loaded, folder: Path) -> str:
    """Returns everything that can be printed about a recipe."""
    assert one.tree is not None
    tree, found = shown(one.tree, one.secrets), origins(one)
    return "\n".join(
        [text(one.report), repr(one.report), yaml.safe_dump(plain(tree)), in_columns(found), repr(found)]
    )


def paths(one: Loaded) -> set[str]:
    return {".".join(path) for path in one.secrets.paths}


def test_which_values_are_secret(tmp_path: Path) -> None:
    recipe = "vars: {a: '${vars.b}', b: abcdefgh, c: {d: 1, e: ijklmnop}, f: x}\nrun: {dir: runs}\n"
    one = loaded(tmp_path, recipe, "+vars.token='${vars.a}'", "+vars.auth=${vars.c}")
    assert paths(one) == {"vars.token", "vars.a", "vars.b", "vars.auth", "vars.c.d", "vars.c.e"}
    assert set(one.secrets.written) == {"abcdefgh", "ijklmnop"}
    # A value of a key such as `run.dir` does not become secret when a secret refers to it.
    one = loaded(tmp_path, "run: {dir: runs}\nvars: {token: '${run.dir}/x'}\n")
    assert paths(one) == {"vars.token"} and "runs" not in one.secrets.written
    one = loaded(tmp_path, "vars: {max_new_tokens: 3, tokenizer: x, author: y}\n")
    assert one.secrets.written == () and not one.secrets.paths


def test_the_environment_is_shown_to_nobody_except_words_that_everybody_knows(tmp_path: Path) -> None:
    recipe = "groups: {train: {ranks: '${oc.env:COUNT}', device_type: '${oc.env:KIND}', colocate: '${oc.env:OTHER}'}}\n"
    one = loaded(tmp_path, recipe, KIND=MARK, COUNT=f"x.{MARK}.y", OTHER="")
    assert MARK not in output(one, tmp_path) and f"`{HIDDEN}` is not a device type" in text(one.report)
    report = text(loaded(tmp_path, recipe, KIND="cuda", COUNT="4", OTHER="train").report)
    assert "`train`" in report and HIDDEN not in report


def warned(one: Loaded) -> list[tuple[str, str]]:
    return [(found.message, found.help) for found in one.report.diagnostics if found.code == "MC219"]


def test_a_secret_that_is_written_out_is_a_warning(tmp_path: Path) -> None:
    env = "{API_KEY: abc, TOKEN: '${oc.env:T}'}"
    recipe = f"groups: {{a: {{ranks: 1, program: recipe.yaml, args: [--hub-token, abc], env: {env}}}}}\n"
    assert warned(loaded(tmp_path, recipe)) == [
        (f"`{key}` is a secret in plain text", "read it from the environment: ${oc.env:NAME}")
        for key in ("args.1", "API_KEY")
    ]


@pytest.mark.parametrize(
    "value", ["EMPTY", "none", "null", "true", "''", "dummy", "'${oc.env:X}'", "'${oc.env:X,null}'", "'???'"]
)
def test_nobody_is_warned_of_what_is_none(tmp_path: Path, value: str) -> None:
    assert not warned(loaded(tmp_path, f"vars: {{token: {value}}}\n"))


# Wherever it stands, and whatever else is wrong

SECRETS: st.SearchStrategy[Any] = st.sampled_from(
    [
        {"token": MARK},
        {"auth": {"user": MARK, "list": [MARK, {"x": MARK}]}},
        {"hf_token": f"a {MARK} b"},
        {"args": ["--token", MARK, f"--api-key={MARK}"]},
        {"x": f"--password {MARK}"},
        {"url": f"https://me:{MARK}@host"},
        {"api_key": "${vars.mine}", "y": "<${vars.mine}>"},
        {"token": f"${{oc.env:NOT_SET,{MARK}}}"},
        {"z": "${oc.env:FROM_HERE}", "token": 3},
        {"token": f"{MARK}\nsecond {MARK}"},
    ]
)
PLACES = st.sampled_from(
    [
        *(
            "vars.a",
            "groups.g.env",
            "groups.g",
            "components.c.args",
            "components.c.args.deep",
            "components.c",
        ),
        *("run", "pipeline.p", ""),
    ]
)
WRONG = st.sampled_from(
    [
        *("", "run: {steps: x}", "groups: {h: {ranks: 0, token: 1}}", "a: *nothing", "b: {", "c: 'open"),
        *("vars: {x: 1}", "\td: 1", "- e", "${", "name: ${oc.env:FROM_HERE}"),
    ]
)
OVERRIDES = st.sampled_from(
    [
        *(f"+vars.token={MARK}", f"vars.a.token={MARK}", f"components.c.args={{secret: {MARK}, n: 1}}"),
        *(f"+components.c.args.password='{MARK} x'", f"groups.g.args=[--token,{MARK}]"),
        *(f"vars.a.auth.user.{MARK[:2]}={MARK}", f"run.api_key.x=={MARK}", f"~vars.a.token={MARK}"),
        *(
            f"+vars.token=[{MARK}",
            "groups.g.ranks=${oc.env:FROM_HERE}",
            "pipeline.p.call=${oc.env:FROM_HERE}",
        ),
        *("components.c._target_=${oc.env:FROM_HERE}.X", "+nope@vars.x=${oc.env:FROM_HERE}"),
    ]
)


def nested(path: str, value: Any) -> Any:
    for key in reversed(path.split(".") if path else []):
        value = {key: value}
    return value


def merged(one: Any, other: Any) -> Any:
    if not isinstance(one, dict) or not isinstance(other, dict):
        return other
    return {**one, **{key: merged(one[key], item) if key in one else item for key, item in other.items()}}


BASE = {
    "vars": {"mine": f"mine-{MARK}"},
    "groups": {"g": {"ranks": 2, "device_type": "cpu"}},
    "components": {"c": {"_target_": "m.C", "group": "g"}},
    "pipeline": {"p": {"call": "c.m"}},
}


@settings(
    max_examples=examples(25, 150),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    places=st.lists(st.tuples(PLACES, SECRETS), max_size=3),
    wrong=WRONG,
    overrides=st.lists(OVERRIDES, max_size=3),
    flow=st.sampled_from([True, False, None]),
)
def test_no_secret_is_ever_shown(
    places: list[tuple[str, Any]], wrong: str, overrides: list[str], flow: bool | None, tmp_path: Path
) -> None:
    data: Any = BASE
    for place, value in places:
        data = merged(data, nested(place, value))
    if "${vars.mine}" not in str(data):  # then it is no secret
        data = merged(data, {"vars": {"mine": "x"}})
    recipe = yaml.safe_dump(data, sort_keys=False, default_flow_style=flow, width=10_000)
    one = loaded(tmp_path, f"{recipe}{wrong}\n", *overrides, FROM_HERE=f"env{MARK}")
    assert MARK not in output(one, tmp_path), recipe


# Lines of files: every character keeps its column

WORD = "S3cr3t-Mark"
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
    more:
    - --token
    - abc
    - --token=abc
    auth:
    - abc
    d: {token:
      abc}
    f: ${oc.env:TOKEN}
    secret: "abc
       abc"
    g: 'token: abc'
    api_key: [abc
      , abc]
    h: 4
"""
HIDDEN_PARTS = {'"abc': "****", 'abc"': "****", "abc  # it was abc": "*" * 17, "abc": "***", "|": "*"}


def starred() -> tuple[str, ...]:
    """Returns the lines of the file with stars in place of each secret, and of its quotes and its comment."""
    shown = FILE
    for part, stars in HIDDEN_PARTS.items():
        shown = shown.replace(part, stars)
    return tuple(shown.splitlines())


@pytest.mark.parametrize(
    "text", ["token: [abc", "? [x]\n: 1\ntoken: abc", "password: !tag abc", "auth: a\nauth: b"]
)
def test_a_file_that_cannot_be_read_completely_shows_no_secret(text: str) -> None:
    shown = mask_lines("recipe.yaml", text.splitlines())
    assert {*"".join(shown)} == {"*"} and [len(line) for line in shown] == [
        len(one) for one in text.splitlines()
    ]


def test_the_lines_of_a_file_keep_their_columns() -> None:
    assert mask_lines("recipe.yaml", FILE.splitlines()) == starred()


@pytest.mark.parametrize(
    ("override", "shown"),
    [
        ("vars.token=abc", "vars.token=***"),
        ("+components.a.args.token='a b'", "+components.a.args.token=*****"),
        ("components.a.args={token: abc, b: 2}", "components.a.args=******************"),
        ("groups.x.args=[--token,abc,--x,3]", "groups.x.args=*******************"),
        ("++components.secret.args.x=3", "++components.secret.args.x=3"),
        ("vars.auth.user=abc", "vars.auth.user=***"),
        ("vars.token=${vars.x}", "vars.token=${vars.x}"),
    ],
)
def test_an_override_keeps_its_columns(override: str, shown: str) -> None:
    assert mask_lines("override 1", [override]) == (shown,)


def test_a_long_line_is_handled_in_no_time() -> None:
    many = 50_000
    beginnings = ("token: {" * many, "a-" * many + "token", "token" + " " * many, "://::" * many + "@token")
    for line in (*beginnings, "'" * many + "token"):
        mask_lines("recipe.yaml", [line])
        assert len(redact(line)) <= len(line) + len(HIDDEN)


# Whatever YAML it is written in

SECRET_KEYS = st.sampled_from(["token", "hf_token", "API_KEY", "auth", "password"])
HARMLESS_KEYS = st.sampled_from(["a", "tokenizer", "max_new_tokens", "b c", "x-y", "1"])
WORDS = st.sampled_from(
    [
        *(WORD, f"{WORD} two", f"{WORD}: colon", f"'{WORD}'", f'"{WORD}" #', f"{WORD}\n{WORD}", f"- {WORD}"),
        f"{WORD}, {WORD}}}",
    ]
)
TEXTS = st.sampled_from(["x", "it's", "{", "a: b", "[", "#", "", "two\nlines", "--lr"])
HARMLESS = st.one_of(st.integers(-5, 99), st.booleans(), st.none(), TEXTS)
LISTS, ITEMS = {"min_size": 1, "max_size": 2}, st.lists(HARMLESS, max_size=2)
UNDER = st.recursive(
    WORDS, lambda inner: st.one_of(st.lists(inner, **LISTS), st.dictionaries(HARMLESS_KEYS, inner, **LISTS))
)
OPTIONS = st.builds(lambda before, mark, after: [*before, "--token", mark, *after], ITEMS, WORDS, ITEMS)
TREES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(HARMLESS, st.dictionaries(SECRET_KEYS, UNDER, min_size=1, max_size=2), OPTIONS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(HARMLESS_KEYS, inner, max_size=3)),
    max_leaves=8,
)


@settings(max_examples=examples(50, 300))
@given(
    st.dictionaries(HARMLESS_KEYS, TREES, **LISTS),
    st.sampled_from([True, False, None]),
    st.sampled_from([2, 4]),
)
@example({"a": [{"token": [WORD]}]}, False, 2)
def test_no_way_to_write_a_secret_shows_it(tree: Any, flow: bool | None, indent: int) -> None:
    lines = yaml.dump(
        tree, default_flow_style=flow, indent=indent, width=10_000, sort_keys=False
    ).splitlines()
    shown = mask_lines("recipe.yaml", lines)
    assert WORD not in "\n".join(shown)
    assert [len(line) for line in shown] == [len(line) for line in lines]


@given(st.lists(st.text(alphabet="ab:={}[]'\"- \ttoken,#|>&*\\$", max_size=30), max_size=6))
def test_whatever_stands_in_a_file_nothing_raises(lines: list[str]) -> None:
    shown = mask_lines("recipe.yaml", [line.replace("\n", "") for line in lines])
    assert [len(line) for line in shown] == [len(line) for line in lines]
