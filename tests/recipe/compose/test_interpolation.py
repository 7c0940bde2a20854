"""References and environment variables have OmegaConf's meaning, with three resolvers. In `args` and `env`,
environment variables are not resolved."""

from typing import Any

import pytest
from omegaconf import OmegaConf

from meshctl.recipe.compose.interpolation import resolve
from meshctl.recipe.compose.yaml_reader import read
from meshctl.recipe.compose.yaml_scalars import scalar
from meshctl.recipe.compose.yaml_tree import plain

ENVIRON = {"HOME_DIR": "/home/x", "COUNT": "4", "KEY": "HOME_DIR"}


def resolved(text: str) -> tuple[Any, list[str]]:
    tree = read(text.encode(), "x.yaml").tree
    assert tree is not None
    result, found = resolve(tree, ENVIRON, scalar)
    return plain(result), [one.code for one in found]


SAME = """
a: {b: 3, list: [1, {c: 4}], text: "x ${a.b} y", deep: "${a.list[1].c}", dotted: "${a.list.0}"}
relative: {one: 1, two: "${.one}", three: "${..a.b}"}
whole: ${a.list}
chain: ${whole}
select: ${oc.select:a.b,7}
absent: ${oc.select:nope.x,7}
decoded: ${oc.decode:'7'}
env: ${oc.env:HOME_DIR}
default: ${oc.env:NOT_THERE,some text}
nested: ${oc.env:${name}}
name: KEY
key: ${.${pointer}}
pointer: name
escaped: \\${not}
"""


def test_the_meaning_is_omegaconfs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)
    theirs = OmegaConf.create(SAME)
    OmegaConf.resolve(theirs)
    ours, codes = resolved(SAME)
    expected = OmegaConf.to_container(theirs)
    assert not codes
    assert ours == expected


WRONG = [
    ("a: ${b}", "MC212"),
    ("a: ${}", "MC212"),
    ("a: ${.....b}", "MC212"),
    ("a: ${b", "MC212"),
    ("a: ${a}", "MC213"),
    ("a: {b: '${a}'}", "MC213"),
    ("a: ${eval:1}", "MC214"),
    ("a: ${hydra:runtime.cwd}", "MC214"),
    ("a: ${oc.env:NOT_THERE}", "MC215"),
    ("a: {b: 1}\nc: x${a}", "MC218"),
    ("a: [1]\nc: x${a}", "MC218"),
    ("a: null\nc: x${a}", "MC218"),
    ("a: ${oc.env}", "MC222"),
    ("a: ${oc.env:}", "MC222"),
    ("a: ${oc.env:A,B,C}", "MC222"),
    ("a: ${oc.select:}", "MC222"),
    ("a: ${b}\nb: ${c}\nc: ${a}\nd: x ${a}", "MC213"),
    ("a: ${nope}\nb: ${a}\nc: x${b}", "MC212"),
    ("a: {b: '${nope}'}\nc: ${a}", "MC212"),
    ("vars: {a: '${oc.env:NOT_THERE}'}\nrun: {steps: '${vars.a}'}", "MC215"),
    ("a: ???\nb: ${a}\nc: x${b}", ""),  # a missing value is reported where it is missing only
]


@pytest.mark.parametrize(("text", "code"), WRONG)
def test_what_is_wrong_is_reported(text: str, code: str) -> None:
    assert resolved(text)[1] == [code] * bool(code)


def test_a_circle_is_one_mistake_with_a_span_for_each_of_its_values() -> None:
    tree = read(b"x: ${a}\na: ${b}\nb: ${a}", "x.yaml").tree
    assert tree is not None
    (found,) = resolve(tree, {}, scalar)[1]
    assert found.message == "circular reference: a -> b -> a"
    assert [(span.line, span.label) for span in (found.primary, *found.seconds) if span] == [
        (2, ""),
        (3, "which refers to `a`"),
    ]


def test_the_environment_of_vars_is_left_to_the_values_that_use_it() -> None:
    value, codes = resolved("""
vars: {token: "${oc.env:NOT_THERE}", unused: "${oc.env:NOT_THERE}"}
components: {a: {args: {token: "${vars.token}"}}}
""")
    assert not codes
    assert value["components"]["a"]["args"]["token"] == "${oc.env:NOT_THERE}"


def test_the_environment_is_left_to_the_worker() -> None:
    text = """
vars: {dir: /data, who: HOME_DIR}
components:
  a:
    args: {token: "${oc.env:TOKEN}", path: "${vars.dir}/${oc.env:${vars.who},x}", plain: "${vars.dir}", quoted: "${oc.env:A, 'b, c'}"}
groups: {g: {env: {A: "${oc.env:B}"}, args: ["${oc.env:C}"], ranks: "${oc.env:COUNT}"}}
"""
    value, codes = resolved(text)
    assert not codes
    assert value["components"]["a"]["args"] == {
        "token": "${oc.env:TOKEN}",
        "path": "/data/${oc.env:HOME_DIR,x}",
        "plain": "/data",
        "quoted": "${oc.env:A,b, c}",
    }
    assert value["groups"]["g"] == {"env": {"A": "${oc.env:B}"}, "args": ["${oc.env:C}"], "ranks": "4"}


def test_what_unfolds_or_is_nested_without_end_is_one_error() -> None:
    doubled = ["v0: x"] + [f"v{n}: '${{v{n - 1}}}${{v{n - 1}}}'" for n in range(1, 40)]
    assert "MC218" in resolved("\n".join(doubled))[1]
    chain = "\n".join(["v0: x", *(f"v{n}: '${{v{n - 1}}}'" for n in range(1, 1500))])
    selected = "a: '" + "${oc.select:x," * 300 + "1" + "}" * 300 + "'"
    for text in (
        "a: " + "${" * 2000 + "}" * 2000,
        "a: '" + "${" * 500 + "'",
        "a: '" + "${b}" * 1001 + "'",
        selected,
        chain,
    ):
        assert resolved(text)[1] == ["MC218"]
