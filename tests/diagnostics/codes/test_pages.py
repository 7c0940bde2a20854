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
    *("MC211", "MC300", "MC327", "MC456", "MC504", "MC507", "MC510", "MC514", "MC515", "MC518", "MC527", "MC528"),
    *("MC542", "MC546", "MC586"),
}  # fmt: skip
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


def test_every_code_has_a_page_and_every_page_a_code() -> None:
    """A retired code is explained, and never reported."""
    retired = {code for code, read in PAGES.items() if read.is_retired}
    assert retired == {"MC104", "MC561"} and set(PAGES) - retired == yielded()
    assert all(not (PAGES[code].wrong.pieces or PAGES[code].right.pieces) for code in retired)
    files = {path.name for path in FOLDER.iterdir() if path.name != "__pycache__"}
    assert files == {"__init__.py", *(f"{code}.md" for code in PAGES)}
    assert {code[2] for code in PAGES} <= set(SUBJECTS)


def test_pages_have_one_form() -> None:
    for code, read in PAGES.items():
        text = (FOLDER / f"{code}.md").read_text(encoding="utf-8")
        severity, title = head(code)
        assert text.startswith(f"# {severity}[{code}]: {title}\n\n")
        assert severity in ("error", "warning", "note", RETIRED)
        assert title and not title.endswith(".") and len(f"{severity}[{code}]: {title}") <= LIST
        assert read.why.pieces and text.endswith("\n") and "\t" not in text
        wide = [line for line in text.splitlines() if len(line) > (LIST if line.startswith("# ") else WIDTH)]
        assert not wide
        also = f" (also {', '.join(read.wrong.also)})" if read.wrong.also else ""
        heads = re.findall("^#+ .*", re.sub("(?s)```.*?```", "", text), re.MULTILINE)[1:]
        assert heads in ([], [f"## wrong{also}", "## right"])
        has_examples = not (code.startswith(("MC7", "MC8", "MC9")) or read.is_retired)
        assert not has_examples or (read.wrong.blocks and read.right.blocks), code


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


def text_of(section: Section, file: str) -> str:
    """Returns the text of a file of a section; for `override N`, that of the override."""
    if file.startswith("override "):
        recipe = next(block for block in section.blocks if block.language == "yaml")
        return command(recipe)[int(file.split()[1])]
    return next((block.text for block in section.blocks if (block.name or "recipe.yaml") == file), "")


@pytest.mark.parametrize("code", [code for code, read in PAGES.items() if read.wrong.blocks])
def test_the_wrong_example_is_reported_where_the_right_one_differs_and_its_fixes_mend_it(
    code: str, tmp_path: Path
) -> None:
    read = PAGES[code]
    whole = report_of(read.wrong, read.why, tmp_path).diagnostics
    assert {one.code for one in whole} == {code, *read.wrong.also}, [(one.code, one.message) for one in whole]
    found = [one for one in whole if one.code == code]
    assert {one.severity for one in found} == {read.severity}
    changed = []
    for span in (span for one in found for span in (one.primary, *one.seconds) if span):
        lines, right = (text_of(section, span.file).splitlines() for section in (read.wrong, read.right))
        changed.append(not lines or lines[span.line - 1] not in right)
    assert any(changed) or not changed or code in ADDED, [(one.message, one.primary) for one in found]
    assert all(one.help or one.primary.label or one.seconds or code in PLAIN for one in found if one.primary)
    edits = [fix for one in found for fix in one.fixes if not fix.span.file.startswith("override ")]
    for file in {fix.span.file for fix in edits}:
        path = tmp_path / file
        path.write_text(apply(path.read_text(), [fix for fix in edits if fix.span.file == file]))
    recipe, *overrides = command(next(block for block in read.wrong.blocks if block.language == "yaml"))
    if edits:
        left = load(recipe, overrides, tmp_path, environ={}, detect=lambda: "cpu").report.diagnostics
        assert code not in {one.code for one in left}, [(one.code, one.message) for one in left]


@pytest.fixture(scope="module")
def beside_recipes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the modules of the recipes."""
    folder = tmp_path_factory.mktemp("recipes")
    for module in RECIPES.glob("*.py"):
        shutil.copy(module, folder)
    return folder


@pytest.mark.parametrize("code", [code for code, read in PAGES.items() if read.right.blocks])
def test_the_right_example_is_right(code: str, tmp_path: Path, beside_recipes: Path) -> None:
    """It stands as it is, with components beside the modules of the recipes."""
    read = PAGES[code]
    if any("components:" in block.text for block in read.right.blocks):
        shutil.copytree(beside_recipes, tmp_path, dirs_exist_ok=True)
    found = report_of(read.right, read.why, tmp_path).diagnostics
    assert [(one.code, one.message) for one in found if one.code != NOTED.get(code)] == []


def test_pages_are_in_the_wheel() -> None:
    """The pages are in the package's folder, which is shipped completely."""
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert "meshctl" in wheel["only-include"] and FOLDER.is_relative_to(PACKAGE)
