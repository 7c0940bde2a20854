"""The table of `doctor`: it has the content of the JSON, fits its width, and has no colors by default."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from meshctl.diagnostics import STATES, Check, as_data
from meshctl.view.reports.health import table
from tests.examples import examples

WORDS = st.lists(st.text("abcdefgh.,:`/=", min_size=1, max_size=12), min_size=1, max_size=30).map(" ".join)
NAMES = st.sampled_from(["torch", "run directory", "/dev/shm", "OMP_NUM_THREADS"])


@st.composite
def checks(draw: st.DrawFn) -> list[Check]:
    subjects = draw(st.lists(st.sampled_from(["versions", "network", "disk"]), unique=True))
    return [
        Check(subject, name, draw(st.sampled_from(STATES)), draw(WORDS), draw(st.just("") | WORDS))
        for subject in subjects
        for name in draw(st.lists(NAMES, unique=True, min_size=1))
    ]


@settings(max_examples=examples(30, 300))
@given(checks(), st.sampled_from([40, 80, 120]))
def test_the_table_fits_and_has_every_check(given: list[Check], width: int) -> None:
    text = table(given, width=width)
    words = " ".join(text.replace("-> ", "").split())
    for check in given:
        assert f"{check.state} {check.name} {' '.join(f'{check.found} {check.remedy}'.split())}" in words
    assert max(map(len, text.splitlines())) <= max(width, 80)
    last, counts = text.splitlines()[-1], as_data(given)["counts"]
    assert last.startswith(f"{len(given)} check") and f"{counts['ok']} ok" in last
    assert re.sub(r"\x1b\[[0-9;]*m", "", table(given, width=width, color=True)) == text and "\x1b" not in text


def test_what_it_looks_like() -> None:
    found = [
        Check("network", "loopback", "ok", "127.0.0.1 answers"),
        Check("network", "host name", "warning", "`box` is not found", "add `127.0.1.1 box` to /etc/hosts"),
        Check("disk", "run directory", "failure", "/data\x1b[31m is read only", "write elsewhere"),
    ]
    assert table(found).splitlines() == [
        "network",
        "  ok       loopback       127.0.0.1 answers",
        "  warning  host name      `box` is not found",
        "                          -> add `127.0.1.1 box` to /etc/hosts",
        "",
        "disk",
        "  failure  run directory  /data?[31m is read only",
        "                          -> write elsewhere",
        "",
        "3 checks: 1 ok, 1 warning, 1 failure",
    ]
