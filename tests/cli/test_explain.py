"""`meshctl explain` prints a page, and help for a word that is not a code."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from meshctl.cli.app import app
from meshctl.diagnostics.codes import SUBJECTS, codes, head, page


def explained(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["explain", *words])
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.parametrize("code", codes())
def test_a_page_is_printed_whole_and_fits_a_terminal(code: str) -> None:
    exit_code, output, _ = explained(code)
    lines = output.splitlines()
    assert exit_code == 0 and lines[0] == f"{head(code)[0]}[{code}]: {head(code)[1]}"
    assert not [line for line in lines if len(line) > 80] and "```" not in output
    for section in (page(code).why, page(code).wrong, page(code).right):
        for block in section.blocks:
            assert [line for line in block.lines if line and line not in [shown[4:] for shown in lines]] == []
        for text in section.pieces:
            assert not isinstance(text, str) or text in output


@pytest.mark.parametrize("word", ["mc410", "MC410", "410", "error[MC410]", "error[MC410]:", " MC410 "])
def test_a_code_may_be_pasted_as_it_is(word: str) -> None:
    assert explained(word)[1].startswith("error[MC410]: ")


def test_what_differs_is_marked() -> None:
    marked = [line for line in explained("MC410")[1].splitlines() if line.startswith("  > ")]
    assert marked == [
        "  >     parallel: {dp_size: 2, tp_size: 3}",
        "  >     parallel: {dp_size: 4, tp_size: 2}",
    ]


def test_a_file_in_the_folder_of_the_recipe_has_its_name() -> None:
    output = explained("MC210")[1]
    assert "    # conf/layout/fsdp.yaml\n  > " not in output  # the name is no line of the file
    assert "\n    # conf/layout/fsdp.yaml\n    fsdp_size: auto\n" in output and "# recipe.yaml" not in output


def test_without_a_word_all_codes_by_subject() -> None:
    exit_code, output, _ = explained()
    lines = output.splitlines()
    assert exit_code == 0 and max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines if line.startswith("  ")] == list(codes())
    subjects = sorted({code[2] for code in codes()})
    assert [line for line in lines if line.startswith("MC")] == [
        f"MC{one}  {SUBJECTS[one]}" for one in subjects
    ]
    assert "  MC320  warning: devices are not used by any group" in lines


def test_the_codes_of_a_subject() -> None:
    assert explained("MC0")[1].splitlines()[:2] == [
        "MC0  the file and its YAML",
        "  MC001  the recipe cannot be read",
    ]
    assert [line.split()[0] for line in explained("mc41")[1].splitlines()[1:]] == [
        code for code in codes() if code.startswith("MC41")
    ]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("MC423", "code `MC423` does not exist; did you mean `MC"),
        ("M410", "code `M410` does not exist; did you mean `MC410`?"),
        ("ulysses", "code `ulysses` does not exist; `MC410`, `MC411`"),
        ("qqqq", "code `qqqq` does not exist; `meshctl explain` lists all codes"),
        ("\x1b[31m", "code `'\\x1b[31m'` does not exist; "),
    ],
)
def test_what_is_no_code_gets_the_nearest_and_exit_2(word: str, expected: str) -> None:
    exit_code, output, wrong = explained(word)
    assert (
        (exit_code, output) == (2, "") and wrong.startswith(f"error: {expected}") and wrong.count("\n") == 1
    )


WATCH = """
import sys
from meshctl.cli.app import main
sys.argv = ["meshctl", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print(*sorted({"hydra", "omegaconf", "rich", "torch", "numpy", "yaml", "meshctl.recipe.load"} & set(sys.modules)))
"""


@pytest.mark.parametrize("command", ["explain MC410", "explain", "schema", "completion bash", "--help"])
def test_nothing_heavy_is_loaded(command: str) -> None:
    done = subprocess.run([sys.executable, "-c", WATCH, *command.split()], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "", done.stderr


def test_a_retired_code_is_explained_as_retired() -> None:
    exit_code, printed, _ = explained("MC561")
    assert exit_code == 0 and printed.startswith("retired[MC561]: ") and "This warning is retired" in printed
    assert "wrong:" not in printed
