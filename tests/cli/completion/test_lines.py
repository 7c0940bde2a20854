"""Completion of a line: word breaks, cursors, and what completion costs and never does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshctl.cli.completion import Candidate
from meshctl.cli.completion.line import answer, complete
from tests.cli.completion.conftest import bash
from tests.examples import examples


@pytest.mark.parametrize(
    ("line", "word", "rest"),
    [
        ("m a=b", "a=b", "b"),
        ("m x y@b=c:d", "y@b=c:d", "d"),
        ("m 'a b", "a b", "a b"),
        ('m "a \\" b', 'a " b', " b"),
        ("m a\\ b", "a b", "a\\ b"),
        ("m ", "", ""),
        ("m a\\", "", None),
    ],
)
def test_a_line_of_bash(line: str, word: str, rest: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """bash replaces the text after the last word break by the rest of a candidate."""
    monkeypatch.setattr("meshctl.cli.completion.line.candidates", lambda *_: [Candidate(f"{word}/")])
    assert bash(line) == ([] if rest is None else [f"{rest}/"])


def test_other_word_breaks_and_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshctl.cli.completion.line.candidates", lambda *_: [Candidate("a=b.")])
    assert list(answer("bash", [], {"COMP_LINE": "m a=b", "COMP_WORDBREAKS": " "})) == ["a=b."]
    monkeypatch.setattr("meshctl.cli.completion.line.candidates", lambda *_: 1 / 0)
    assert complete(["fish", "x"]) == 0 and capsys.readouterr().out == ""


def test_each_shell_is_answered_in_its_terms(place: Path) -> None:
    output = "Number of steps after which the run ends. Default: it ends with the data."
    assert list(answer("zsh", ["launch", "grpo.yaml", "run.ste"], {})) == [f"run.steps=\t{output}\t0"]
    assert list(answer("fish", ["launch", "grpo.yaml", "run.ste"], {})) == [f"run.steps=\t{output}"]
    assert list(answer("fish", ["launch", "grpo"], {})) == ["grpo.yaml"]
    assert list(answer("zsh", ["launch", "grpo"], {})) == ["grpo.yaml\t\t1"]
    assert bash("meshctl val grpo.yaml", 11) == ["validate "], "the cursor may stand inside"


def test_nothing_that_is_typed_makes_it_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHCTL_DEBUG", "1")
    typed()


@settings(max_examples=examples(10, 500))
@given(st.lists(st.text(max_size=12), max_size=5), st.text(max_size=30))
def typed(words: list[str], line: str) -> None:
    assert all("\n" not in one for one in answer("fish", ["launch", "x.yaml", *words], {}))
    bash("meshctl launch x.yaml " + line, 22 + len(line))


WATCH = """
import sys
seen = []
sys.addaudithook(lambda event, given: seen.append((event, given)) if watching else None)
watching = True
from meshctl.cli.main import main
sys.argv = ["meshctl", "complete", "fish", *sys.argv[1:]]
try:
    main()
except SystemExit:
    pass
watching = False
wrote = [given for event, given in seen if event == "open" and isinstance(given[1], str) and set(given[1]) & set("wax+")]
acted = [event for event, given in seen if event.startswith(("subprocess", "socket", "os.system", "os.exec", "os.fork", "os.mkdir"))]
print("SEEN", wrote, acted, sorted({"rich", "torch", "numpy", "arithmetic"} & set(sys.modules)))
"""


def test_a_recipe_is_read_and_nothing_else_happens(place: Path) -> None:
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", WATCH, "launch", "grpo.yaml", "groups.train."]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.stdout.splitlines()[-1] == "SEEN [] [] []", done.stderr
    assert len(done.stdout.splitlines()) > 1
