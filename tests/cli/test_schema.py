"""`meshctl schema` prints and writes the same text."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from meshctl.cli.app import app
from meshctl.cli.init import FILE, MODELINE, schema_text
from meshctl.recipe.fields import schema


def test_it_is_printed() -> None:
    done = CliRunner().invoke(app, ["schema"])
    assert done.exit_code == 0 and json.loads(done.stdout) == schema() and done.stdout == schema_text()


@pytest.mark.parametrize(
    ("out", "name"), [("", FILE), ("editor.json", "editor.json"), ("new/x.json", "x.json")]
)
def test_it_is_written(out: str, name: str, tmp_path: Path) -> None:
    """A folder gets its usual name; the line of a recipe names the file next to it."""
    done = CliRunner().invoke(app, ["schema", "-o", str(tmp_path / out)])
    assert (done.exit_code, done.stdout) == (0, "")
    written = tmp_path / out if out else tmp_path / name
    assert written.read_text(encoding="utf-8") == schema_text()
    assert f"# yaml-language-server: $schema={name}\n" in done.stderr
    assert f"# yaml-language-server: $schema={FILE}\n" == MODELINE and "/" not in FILE


def test_what_cannot_be_written_is_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(app, ["schema", "-o", str(tmp_path / "file" / "x.json")])
    assert done.exit_code == 2 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
