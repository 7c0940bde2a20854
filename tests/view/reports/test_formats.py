"""The pinned report of one recipe with several mistakes in every format, and properties of all formats for
any recipe.

python tests/view/reports/test_formats.py      writes `golden/mistakes.*` anew; read the difference
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshctl.diagnostics import Diagnostic, Report, Span
from meshctl.recipe.load import load
from meshctl.view.reports import FORMATS, STDIN, Checked, Findings
from tests.examples import examples

GOLDEN = Path(__file__).parent / "golden"
RECIPE = GOLDEN / "mistakes.yaml"
OVERRIDES = RECIPE.read_text(encoding="utf-8").splitlines()[0].removeprefix("# overrides: ").split()


def explained(code: str) -> str:
    return f"the title of {code}\n\nand why" if code == "MC410" else ""


def mistakes() -> Findings:
    """The reports of the recipe, of a correct recipe and of a missing file."""
    report = load(RECIPE.name, OVERRIDES, GOLDEN, environ={}, detect=lambda: "cpu").report
    absent = Report((Diagnostic("MC001", "recipe `absent.yaml` does not exist"),))
    checked = (
        Checked("mistakes.yaml", 1, report, "mistakes.yaml: some errors"),
        Checked(
            "right.yaml", 0, Report(), "right.yaml: ok", {"name": "right", "digest": "0" * 8, "groups": 1}
        ),
        Checked("absent.yaml", 3, absent, "absent.yaml: cannot be read"),
    )
    return Findings(checked, "0.0.0", explained=explained)


def drawn(format: str, findings: Findings) -> str:
    text: str = import_module(f"meshctl.view.reports.{format}").draw(findings)
    return text


def pinned(format: str) -> str:
    return drawn(format, mistakes()).replace(str(GOLDEN), "GOLDEN")


def golden(format: str) -> Path:
    return GOLDEN / f"mistakes.{format}.txt"


@pytest.mark.parametrize("format", FORMATS)
def test_each_format_is_as_pinned(format: str) -> None:
    assert pinned(format) == golden(format).read_text(encoding="utf-8")


# What holds for every format


def one(found: Diagnostic, *lines: str, recipe: str = "r.yaml", **given: Any) -> Findings:
    file = found.primary.file if found.primary else recipe
    return Findings((Checked(recipe, 1, Report((found,), ((file, lines),)), f"{recipe}: 1 error"),), **given)


def codes(format: str, text: str) -> list[str]:
    if format == "json":
        return [found["code"] for recipe in json.loads(text)["recipes"] for found in recipe["diagnostics"]]
    if format == "sarif":
        return [found["ruleId"] for run in json.loads(text)["runs"] for found in run["results"]]
    if format == "github":
        return [
            match[1]
            for line in text.splitlines()
            if (match := re.match(r"::(?:error|warning|notice) [^:]*title=(MC\d+)::", line))
        ]
    return [re.search(r": (MC\d+) ", line)[1] for line in text.split("\n")[:-1]]  # type: ignore[index]


def read(data: bytes, *overrides: str) -> Report:
    held = {str(GOLDEN / STDIN): data}
    return load(STDIN, overrides, GOLDEN, environ={}, detect=lambda: "cpu", held=held).report


PIECES = [
    "groups:", "components:", "pipeline:", "run:", "vars:", "defaults:", "name:", "train:", "ranks:", "rank:", "device: cpu", "a:",
    "{", "}", "[", "]", ",", ": ", "- ", "? ", "\n", "\n  ", "\n    ", "\n\t", "\r\n", "\x85", "\u2028", "&a ", "*a", "<<: *a",
    "'", '"', "#", " # 字", "${", "${a}", "${oc.env:A}", "???", "~", "no", "010", "1e3", "7", "1:30", ".inf", "null", "-", "on:",
    "api_key: abcdefgh", "\x1b[31m", "e\u0301", "---\n", "...", "x" * 200, "\ufeff", "\0", "%", "::", "!!int ", "|", ">",
]  # fmt: skip
TEXTS = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=30).map("".join),
    st.text(max_size=60),
    st.lists(st.sampled_from(PIECES), max_size=12).map("\n".join),
)
WRONG = ["seed=x", "run.stps=1", "~a", "+a=1", "a[0]=1", "--a=1", "groups.a.ranks=2"]
COMMANDS = st.lists(st.one_of(st.sampled_from(WRONG), st.text(max_size=9)), max_size=2)


@settings(max_examples=examples(40, 150))
@given(TEXTS.map(lambda text: text.encode("utf-8", "surrogatepass")) | st.binary(max_size=40), COMMANDS)
def test_all_formats_agree_on_any_text(data: bytes, overrides: list[str]) -> None:
    report = read(data, *overrides)
    findings = Findings(
        (Checked(STDIN, 1, report, "said"), Checked("other\n.yaml", 1, report, "::said")), explained=explained
    )
    expected = [found.code for found in report.diagnostics] * 2
    for format in FORMATS:
        text = drawn(format, findings)
        text.encode()
        assert not set(text) & set("\x1b\r\x85\u2028")
        assert format == "text" or codes(format, text) == expected
    assert drawn("github", findings).count("\n") == len(expected) + 2


# Concise, GitHub


@pytest.mark.parametrize(
    ("format", "found", "given", "line"),
    [
        (
            "concise",
            Diagnostic("MC101", "bad\nnews", Span("a b.yaml", 3, 7)),
            {},
            "a b.yaml:3:7: MC101 bad?news",
        ),
        (
            "concise",
            Diagnostic("MC105", "m", Span("f", 3, 7), severity="warning"),
            {},
            "f:3:7: MC105 warning: m",
        ),
        ("concise", Diagnostic("MC001", "m"), {}, "r.yaml:1:1: MC001 m"),
        (  # a recipe cannot inject a command of GitHub
            "github",
            Diagnostic(
                "MC101",
                "50%\n::set-env::",
                Span("a,b:c%.yaml", 1, 2),
                (Span("x", 1, 1, 1, "::here"),),
                "::stop-commands::",
            ),
            {"recipe": "::x"},
            "::error file=a%2Cb%3Ac%25.yaml,line=1,col=2,endColumn=3,title=MC101::50%25?::set-env::%0Ax:1:1: ::here%0Ahelp: ::stop-commands::",
        ),
        # annotations are seen from the checkout
        (
            "github",
            Diagnostic("MC101", "m", Span("../r.yaml", 1, 1)),
            {"folder": "sub/dir"},
            "::error file=sub/r.yaml,line=1,col=1,endColumn=2,title=MC101::m",
        ),
        (
            "github",
            Diagnostic("MC101", "m", Span("override 2", 1, 4)),
            {"folder": "sub"},
            "::error title=MC101::m%0Aat override 2:1:4",
        ),
    ],
)
def test_a_finding_in_one_line(format: str, found: Diagnostic, given: dict[str, str], line: str) -> None:
    lines = drawn(format, one(found, **given)).splitlines()
    assert lines[0] == line
    assert lines[1:] == ([": :x: 1 error"] if given.get("recipe") else lines[1:2])


# SARIF


def sarif_of(findings: Findings) -> dict[str, Any]:
    log: dict[str, Any] = json.loads(drawn("sarif", findings))
    return log


def inner(data: Any) -> Iterator[dict[str, Any]]:
    """Yields every object of a document."""
    for item in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        yield from inner(item)
    if isinstance(data, dict):
        yield data


def check_sarif(log: dict[str, Any]) -> None:
    """Checks rules of SARIF 2.1.0 that its schema cannot express, and those of code scanning."""
    assert log["version"] == "2.1.0" and len(log["runs"]) == 1
    (run,) = log["runs"]
    rules, artifacts = run["tool"]["driver"]["rules"], run["artifacts"]
    assert run["columnKind"] == "unicodeCodePoints" and len({rule["id"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["shortDescription"]["text"] and rule["fullDescription"]["text"] and rule["help"]["text"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"] and result["message"]["text"]
        assert result["level"] in ("error", "warning", "note") and len(result["locations"]) == 1
        assert "artifactLocation" in result["locations"][0]["physicalLocation"]
        ids = [related["id"] for related in result.get("relatedLocations", [])]
        assert ids == list(range(1, len(ids) + 1))
    for object in inner(run):
        if "startLine" in object:
            assert object["startLine"] >= 1 and 1 <= object["startColumn"] <= object["endColumn"]
        if "index" in object:
            assert artifacts[object["index"]]["location"]["uri"] == object["uri"]
        if "uri" in object:
            assert re.fullmatch(r"[A-Za-z0-9%._~/:-]+", object["uri"]) and ":" not in object[
                "uri"
            ].removeprefix("file:///")


def test_sarif_keeps_its_rules() -> None:
    log = sarif_of(mistakes())
    check_sarif(log)
    (rule,) = [rule for rule in log["runs"][0]["tool"]["driver"]["rules"] if rule["id"] == "MC410"]
    assert rule["shortDescription"]["text"] == "the title of MC410" and rule["help"]["text"].endswith(
        "and why"
    )


def test_a_file_is_a_uri() -> None:
    for name in ("a b#?.yaml", "字.yaml", "c:d.yaml", "/abs/é.yaml", "\udcff.yaml", "conf/x%20y.yaml"):
        log = sarif_of(one(Diagnostic("MC101", "m", Span(name, 1, 1)), "x", folder="sub"))
        check_sarif(log)
        (artifact,) = log["runs"][0]["artifacts"]
        path = urlsplit(artifact["location"]["uri"]).path
        assert unquote(path, errors="surrogateescape") == (name if name.startswith("/") else f"sub/{name}")


if __name__ == "__main__":
    for format in FORMATS:
        golden(format).write_text(pinned(format), encoding="utf-8")
