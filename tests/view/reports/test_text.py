"""A report as text: the example in the design, and lines without control characters."""

import re

from hypothesis import given
from hypothesis import strategies as st

from meshctl.diagnostics import Diagnostic, Report, Span
from meshctl.view.reports.text import cells, text

IN_DESIGN = """\
error[MC410]: `tp_size` 3 does not fit the 8 ranks of group `train`
  --> recipe.yaml:19:16
   |
19 |       tp_size: 3
   |                ^ dp 2 x tp 3 = 6
  ::: recipe.yaml:13:12
   |
13 |     ranks: 8
   |            - `train` has 8 ranks
   |
   = help: nearest that fit: dp 4 x tp 2; dp 2 x tp 4"""
LINES = (*[""] * 12, "    ranks: 8", *[""] * 5, "      tp_size: 3")
RANKS = Span("recipe.yaml", 13, 12, 1, "`train` has 8 ranks")
FOUND = Diagnostic(
    "MC410",
    "`tp_size` 3 does not fit the 8 ranks of group `train`",
    Span("recipe.yaml", 19, 16, 1, "dp 2 x tp 3 = 6"),
    (RANKS,),
    "nearest that fit: dp 4 x tp 2; dp 2 x tp 4",
)


def drawn(line: str, column: int, width: int = 1, file: str = "f") -> list[str]:
    return text(
        Report((Diagnostic("MC101", "m", Span(file, 1, column, width)),), ((file, (line,)),))
    ).splitlines()


def test_the_picture_of_the_design_in_both_looks() -> None:
    report = Report((FOUND,), (("recipe.yaml", LINES),))
    assert text(report) == IN_DESIGN
    colored = text(report, color=True)
    assert "\x1b[31;1m^ dp 2 x tp 3 = 6\x1b[0m" in colored
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == IN_DESIGN


def test_a_diagnostic_without_a_span_or_a_file_has_only_words() -> None:
    assert text(Report((Diagnostic("MC101", "m", Span("f", 3, 4)),))) == "error[MC101]: m\n --> f:3:4"
    assert text(Report((Diagnostic("MC001", "recipe `x` does not exist", help="did you mean `y`?"),))) == (
        "error[MC001]: recipe `x` does not exist\n  = help: did you mean `y`?"
    )


def test_marks_stand_under_what_they_mark() -> None:
    assert drawn("名前:\tfsdpp", 5, 5)[-2:] == ["1 | 名前:    fsdpp", "  |          ^^^^^"]
    assert drawn("e\u0301x: 1", 3)[-1] == "  |  ^"
    assert drawn("short", 40)[-1].endswith("^")


def test_a_recipe_does_not_drive_the_terminal() -> None:
    assert drawn("a: \x1b[31mred\u202e", 1)[-2] == "1 | a: ?[31mred?"
    evil = Diagnostic("MC1", "\x1b[2J", Span("\x07", 1, 1, label="\x1b"), help="\x1b]0;x")
    assert "\x1b" not in text(Report((evil,), (("\x07", ("x",)),)))


def test_long_lines_are_cut_around_the_mark() -> None:
    line = "x" * 300 + "HERE" + "y" * 300
    shown, marks = drawn(line, 301, 4)[-2:]
    assert len(shown) < 120 and shown.startswith("1 | ...") and shown.endswith("...")
    assert shown[marks.index("^") :].startswith("HERE")


def test_a_screenful_is_enough() -> None:
    many = Report(tuple(Diagnostic("MC101", f"m{number}") for number in range(87)))
    assert text(many).endswith("error[MC101]: m49\n\nand 37 more")


@given(st.text(max_size=250), st.integers(1, 260), st.integers(1, 50))
def test_any_line_can_be_drawn(line: str, column: int, width: int) -> None:
    shown = drawn(line, column, width)
    assert all(cells(row) < 420 for row in shown)
