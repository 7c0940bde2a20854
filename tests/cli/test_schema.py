"""`meshctl schema` prints and writes the same text."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from meshctl.cli.app import app
from meshctl.cli.schema import FILE, MODELINE, text
from meshctl.recipe.fields import schema


def test_it_is_printed() -> None:
    done = CliRunner().invoke(app, ["schema"])
    assert done.exit_code == 0 and json.loads(done.stdout) == schema()
    assert done.stdout == text()


@pytest.mark.parametrize("out", ["editor.json", "new/folder/editor.json"])
def test_it_is_written(out: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["schema", "--out", str(tmp_path / out)])
    assert (done.exit_code, done.stdout) == (0, "")
    assert (tmp_path / out).read_text(encoding="utf-8") == text()
    assert "# yaml-language-server: $schema=editor.json\n" in done.stderr


def test_a_folder_gets_its_usual_name(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["schema", "-o", str(tmp_path)]).exit_code == 0
    assert (tmp_path / FILE).read_text(encoding="utf-8") == text()


def test_what_cannot_be_written_is_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(app, ["schema", "-o", str(tmp_path / "file" / "x.json")])
    assert done.exit_code == 2 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


def test_the_line_of_a_recipe_names_the_file_next_to_it() -> None:
    """The path is relative to the recipe's folder."""
    found = re.fullmatch(r"# yaml-language-server: \$schema=(\S+)\n", MODELINE)
    assert found and found[1] == FILE and "/" not in FILE
