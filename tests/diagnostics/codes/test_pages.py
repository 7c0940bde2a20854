"""The pages of codes: each code has a page, each page has a code, and the examples are reported as stated."""

import re
import shlex
import shutil
import tomllib
from pathlib import Path

import pytest

import meshctl
from meshctl.diagnostics import Report
from meshctl.diagnostics.codes import FOLDER, RETIRED, SUBJECTS, Block, Section, codes, head, page
from meshctl.recipe.fixes import apply
from meshctl.recipe.load import load
from tests.paths import RECIPES

PACKAGE = Path(str(meshctl.__file__)).parent
PAGES = {code: page(code) for code in codes()}
ADDED = {
    "MC211",
    "MC300",
    "MC327",
    "MC456",
    "MC504",
    "MC507",
    "MC510",
    "MC514",
    "MC515",
    "MC518",
    "MC527",
    "MC528",
    "MC542",
    "MC546",
    "MC586",
}
"""Codes whose right example adds lines to the wrong one, or changes another file, or the command line."""
PLAIN = {"MC442", "MC504", "MC507", "MC514", "MC517", "MC526", "MC527", "MC539", "MC571"}
"""Codes whose message alone says what to change."""
NOTED = {"MC327": "MC329", "MC328": "MC329"}
"""Codes whose right example has a note, which is no fault of it."""
WIDTH = 78
LIST = 80


def yielded() -> set[str]:
    """Returns every code that a file of the package contains."""
    return {
        code
        for path in PACKAGE.rglob("*.py")
        for code in re.findall(r'["\'\[](MC\d{3})["\'\]]', path.read_text(encoding="utf-8"))
    }


def test_every_code_has_a_page() -> None:
    assert yielded() - set(PAGES) == set()


def test_a_retired_code_is_explained_and_never_reported() -> None:
    retired = {code for code, read in PAGES.items() if read.is_retired}
    assert retired == {"MC104", "MC561"} and not retired & yielded()
    assert all(not (PAGES[code].wrong.pieces or PAGES[code].right.pieces) for code in retired)


def test_every_page_has_a_code() -> None:
    assert {code for code, read in PAGES.items() if not read.is_retired} - yielded() == set()
    assert {path.name for path in FOLDER.iterdir() if path.name != "__pycache__"} == {
        "__init__.py",
        *(f"{code}.md" for code in PAGES),
    }


@pytest.mark.parametrize("code", PAGES)
def test_a_page_has_its_form(code: str) -> None:
    text = (FOLDER / f"{code}.md").read_text(encoding="utf-8")
    severity, title = head(code)
    assert text.startswith(f"# {severity}[{code}]: {title}\n\n")
    assert severity in ("error", "warning", "note", RETIRED)
    assert title and not title.endswith(".") and len(f"{severity}[{code}]: {title}") <= LIST
    assert PAGES[code].why.pieces and text.endswith("\n") and "\t" not in text
    assert not [line for line in text.splitlines() if len(line) > (LIST if line.startswith("# ") else WIDTH)]
    also = f" (also {', '.join(PAGES[code].wrong.also)})" if PAGES[code].wrong.also else ""
    assert re.findall("^#+ .*", re.sub("(?s)```.*?```", "", text), re.MULTILINE)[1:] in (
        [],
        [f"## wrong{also}", "## right"],
    )


@pytest.mark.parametrize(
    "code", [code for code, read in PAGES.items() if not (code.startswith(("MC7", "MC9")) or read.is_retired)]
)
def test_a_wrong_and_a_right_example(code: str) -> None:
    assert PAGES[code].wrong.blocks and PAGES[code].right.blocks


def report_of(section: Section, why: Section, folder: Path) -> Report:
    """Returns the report of a section's recipe, in a folder with the files of the page."""
    blocks = [*why.blocks, *section.blocks]
    for block in blocks:
        path = folder / (block.name or "recipe.yaml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(block.text.encode(block.encoding))
    recipe, *overrides = command(next(block for block in section.blocks if block.language == "yaml"))
    return load(recipe, overrides, folder, environ={}, detect=lambda: "cpu").report


def command(block: Block) -> list[str]:
    first = block.lines[0]
    return shlex.split(first)[3:] if first.startswith("# meshctl ") else [block.name or "recipe.yaml"]


@pytest.mark.parametrize("code", [code for code, read in PAGES.items() if read.wrong.blocks])
def test_the_wrong_example_is_reported_with_its_code(code: str, tmp_path: Path) -> None:
    read = PAGES[code]
    found = report_of(read.wrong, read.why, tmp_path).diagnostics
    assert {one.code for one in found} == {code, *read.wrong.also}, [(one.code, one.message) for one in found]
    assert {one.severity for one in found if one.code == code} == {read.severity}


def text_of(section: Section, file: str) -> str:
    """Returns the text of a file of a section; for `override N`, that of the override."""
    if file.startswith("override "):
        recipe = next(block for block in section.blocks if block.language == "yaml")
        return command(recipe)[int(file.split()[1])]
    return next((block.text for block in section.blocks if (block.name or "recipe.yaml") == file), "")


@pytest.mark.parametrize("code", [code for code, read in PAGES.items() if read.wrong.blocks])
def test_the_report_of_the_wrong_example_marks_what_the_right_one_changes(code: str, tmp_path: Path) -> None:
    read = PAGES[code]
    found = [one for one in report_of(read.wrong, read.why, tmp_path).diagnostics if one.code == code]
    spans = [span for one in found for span in (one.primary, *one.seconds) if span]
    changed = []
    for span in spans:
        lines, right = (
            text_of(read.wrong, span.file).splitlines(),
            text_of(read.right, span.file).splitlines(),
        )
        changed.append(not lines or lines[span.line - 1] not in right)
    assert any(changed) or not spans or code in ADDED, [(one.message, one.primary) for one in found]
    assert all(one.help or one.primary.label or one.seconds or code in PLAIN for one in found if one.primary)


@pytest.mark.parametrize("code", [code for code, read in PAGES.items() if read.wrong.blocks])
def test_the_fixes_of_the_wrong_example_lead_to_one_without_the_code(code: str, tmp_path: Path) -> None:
    read = PAGES[code]
    found = [one for one in report_of(read.wrong, read.why, tmp_path).diagnostics if one.code == code]
    edits = [fix for one in found for fix in one.fixes if not fix.span.file.startswith("override ")]
    for file in {fix.span.file for fix in edits}:
        path = tmp_path / file
        path.write_text(apply(path.read_text(), [fix for fix in edits if fix.span.file == file]))
    recipe, *overrides = command(next(block for block in read.wrong.blocks if block.language == "yaml"))
    if edits:
        left = load(recipe, overrides, tmp_path, environ={}, detect=lambda: "cpu").report.diagnostics
        assert code not in {one.code for one in left}, [(one.code, one.message) for one in left]


@pytest.mark.parametrize("code", [code for code, read in PAGES.items() if read.right.blocks])
def test_the_right_example_is_right(code: str, tmp_path: Path) -> None:
    """It stands as it is: in an empty folder, and beside the modules of the recipes."""
    other = tmp_path / "recipes"
    other.mkdir()
    for module in RECIPES.glob("*.py"):
        shutil.copy(module, other)
    for folder in (tmp_path, other):
        found = report_of(PAGES[code].right, PAGES[code].why, folder).diagnostics
        assert [(one.code, one.message) for one in found if one.code != NOTED.get(code)] == []


def test_every_subject_is_named() -> None:
    assert {code[2] for code in PAGES} <= set(SUBJECTS)


def test_pages_are_in_the_wheel() -> None:
    """The pages are in the package's folder, which is shipped completely."""
    wheel = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["tool"]["hatch"]["build"][
        "targets"
    ]["wheel"]
    assert "meshctl" in wheel["only-include"] and FOLDER.is_relative_to(PACKAGE)
