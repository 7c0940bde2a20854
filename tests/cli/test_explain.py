"""`meshctl explain` prints a page, and help for a word that is not a code."""

import subprocess
import sys

import pytest

from meshctl.cli.explain import explain
from meshctl.diagnostics.codes import SUBJECTS, codes, head, page

Capture = pytest.CaptureFixture[str]


def explained(capsys: Capture, word: str = "") -> tuple[int, str, str]:
    return explain(word), *capsys.readouterr()


def test_a_page_is_printed_whole_and_fits_a_terminal(capsys: Capture) -> None:
    for code in codes():
        exit_code, output, _ = explained(capsys, code)
        lines = output.splitlines()
        assert exit_code == 0 and lines[0] == f"{head(code)[0]}[{code}]: {head(code)[1]}"
        assert not [line for line in lines if len(line) > 80] and "```" not in output, code
        shown = {line[4:] for line in lines}
        for section in (page(code).why, page(code).wrong, page(code).right):
            for block in section.blocks:
                assert not [line for line in block.lines if line and line not in shown], code
            assert all(not isinstance(text, str) or text in output for text in section.pieces), code


@pytest.mark.parametrize("word", ["mc410", "MC410", "410", "error[MC410]", "error[MC410]:", " MC410 "])
def test_a_code_may_be_pasted_as_it_is_and_what_differs_is_marked(word: str, capsys: Capture) -> None:
    output = explained(capsys, word)[1]
    assert output.startswith("error[MC410]: ")
    assert [line for line in output.splitlines() if line.startswith("  > ")] == [
        "  >     parallel: {dp_size: 2, tp_size: 3}",
        "  >     parallel: {dp_size: 4, tp_size: 2}",
    ]


def test_a_file_in_the_folder_of_the_recipe_has_its_name(capsys: Capture) -> None:
    output = explained(capsys, "MC210")[1]
    assert "    # conf/layout/fsdp.yaml\n  > " not in output  # the name is no line of the file
    assert "\n    # conf/layout/fsdp.yaml\n    fsdp_size: auto\n" in output and "# recipe.yaml" not in output


def test_without_a_word_all_codes_by_subject(capsys: Capture) -> None:
    exit_code, output, _ = explained(capsys)
    lines = output.splitlines()
    assert exit_code == 0 and max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines if line.startswith("  ")] == list(codes())
    subjects = [f"MC{one}  {SUBJECTS[one]}" for one in sorted({code[2] for code in codes()})]
    assert [line for line in lines if line.startswith("MC")] == subjects
    assert "  MC320  warning: devices are not used by any group" in lines
    first = ["MC0  the file and its YAML", "  MC001  the recipe cannot be read"]
    assert explained(capsys, "MC0")[1].splitlines()[:2] == first
    assert [line.split()[0] for line in explained(capsys, "mc41")[1].splitlines()[1:]] == [
        code for code in codes() if code.startswith("MC41")
    ]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("qqqq", "code `qqqq` does not exist; `meshctl explain` lists all codes"),
        ("\x1b[31m", "code `'\\x1b[31m'` does not exist; "),
    ],
)
def test_what_is_no_code_gets_the_nearest_and_exit_2(word: str, expected: str, capsys: Capture) -> None:
    exit_code, output, wrong = explained(capsys, word)
    assert (exit_code, output, wrong.count("\n")) == (2, "", 1) and wrong.startswith(f"error: {expected}")


def test_a_retired_code_is_explained_as_retired(capsys: Capture) -> None:
    exit_code, printed, _ = explained(capsys, "MC561")
    assert exit_code == 0 and printed.startswith("retired[MC561]: ") and "This warning is retired" in printed
    assert "wrong:" not in printed


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


@pytest.mark.parametrize("command", ["explain MC410", "schema", "completion bash", "--help"])
def test_nothing_heavy_is_loaded(command: str) -> None:
    done = subprocess.run([sys.executable, "-c", WATCH, *command.split()], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "", done.stderr
