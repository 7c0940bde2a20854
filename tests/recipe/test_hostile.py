"""Hostile recipes: bombs of includes, nesting and length, special files, and a deleted folder. Each causes
one diagnostic."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from meshctl.recipe.compose import config_store
from meshctl.recipe.compose.overrides import expand
from meshctl.recipe.load import Loaded, load
from meshctl.recipe.origins import origins

RECIPE = "groups: {a: {ranks: 1, device_type: cpu, program: recipe.yaml}}\n"
DEEP_KEY = ".".join("a" * 3000)


def loaded(folder: Path, recipe: str = RECIPE, *overrides: str, **files: str) -> Loaded:
    for name, text in {"recipe": recipe, **files}.items():
        (folder / f"{name}.yaml").write_text(text)
    return load("recipe.yaml", overrides, folder, environ={}, detect=lambda: "cpu")


def codes(one: Loaded) -> set[str]:
    return {found.code for found in one.report.diagnostics}


# Includes


def test_includes_that_double_are_counted_and_each_file_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, names = config_store.read, list[str]()

    def recording(data: bytes, name: str) -> object:
        names.append(name)
        return read(data, name)

    monkeypatch.setattr(config_store, "read", recording)
    files = {f"f{n}": f"defaults: [f{n + 1}, f{n + 1}]\nvars: {{x{n}: 1}}\n" for n in range(40)}
    one = loaded(tmp_path, f"defaults: [f0, f0]\n{RECIPE}", **files, f40="vars: {x: 1}\n")
    assert [found.message for found in one.report.errors] == [
        "the defaults lists include more than 500 files, the limit for a recipe"
    ]
    assert len(names) == len(set(names)) == 42


@pytest.mark.parametrize(
    "entries",
    ["f0, " * 510, ", ".join(f"f{n}" for n in range(510)), ", ".join(["{g: [x, y]}"] * 260)],
    ids=["one file", "many files", "options"],
)
def test_more_includes_than_a_recipe_needs_are_refused(entries: str, tmp_path: Path) -> None:
    (tmp_path / "g").mkdir()
    files = {**{f"f{n}": "vars: {x: 1}\n" for n in range(510)}, "g/x": "a: 1\n", "g/y": "a: 2\n"}
    one = loaded(tmp_path, f"defaults: [{entries}]\n{RECIPE}", **files)
    assert "MC208" in codes(one) and any("more than 500 files" in each.message for each in one.report.errors)


def test_a_chain_of_includes_has_an_end(tmp_path: Path) -> None:
    files = {f"f{n}": f"defaults: [f{n + 1}]\nvars: {{x{n}: 1}}\n" for n in range(600)}
    assert codes(loaded(tmp_path, f"defaults: [f0]\n{RECIPE}", **files, f600="a: 1\n")) & {"MC205", "MC208"}


def test_a_file_is_not_mounted_deeper_than_recipes_are(tmp_path: Path) -> None:
    files = {"f": "vars: {x: 1}\n", "g": f"# @package {DEEP_KEY}\nvars: {{x: 1}}\n"}
    for entry in (f"f@{DEEP_KEY}", "g"):
        assert "MC208" in codes(loaded(tmp_path, f"defaults: [{entry}]\n{RECIPE}", **files))


@pytest.mark.parametrize(
    "override",
    [
        *(f"+vars.x={'[' * 300}{']' * 300}", f"+vars.x={'{a:' * 300}1{'}' * 300}"),
        *(f"+vars.x={'sort(' * 300}1{')' * 300}", f"+vars.x={'[' * 20_000}", f"+vars.x={'${a:' * 300}1"),
        *(f"+{DEEP_KEY}=1", f"+vars.{DEEP_KEY}=1", f"~{DEEP_KEY}"),
    ],
    ids=["lists", "mappings", "functions", "not closed", "references", "key", "below a key", "deletion"],
)
def test_a_deep_override_is_refused_and_never_swept(override: str, tmp_path: Path) -> None:
    assert "MC206" in codes(loaded(tmp_path, RECIPE, override))
    assert [job.overrides for job in expand([override], lambda group: [])] == [(override,)]


def test_overrides_of_more_text_than_anybody_types_are_refused(tmp_path: Path) -> None:
    for overrides in ([f"+vars.x=[{'a,' * 40_000}]"], ["+vars.x=" + "a" * 1000] * 100):
        one = loaded(tmp_path, RECIPE, *overrides)
        assert "MC206" in codes(one) and "put them into a recipe" in one.report.errors[0].message


@pytest.mark.slow
@pytest.mark.parametrize(("command", "code"), [("validate", 3), ("config", 3), ("launch", 4), ("explain", 0)])
def test_a_working_directory_that_is_gone_is_an_error(command: str, code: int, tmp_path: Path) -> None:
    argument = "MC001" if command == "explain" else "recipe.yaml"
    meshctl = f"{sys.executable} -c 'from meshctl.cli.main import main; main()'"
    gone = tmp_path / "gone"
    script = f"mkdir {gone}; cd {gone}; rmdir {gone}; exec {meshctl} {command} {argument}"
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert ("the working directory has been deleted" in done.stderr) == (code != 0)


# Many secrets


def test_many_secrets_are_all_hidden(tmp_path: Path) -> None:
    """All secrets are found in one pass over each text. A pass per secret would take minutes."""
    many = ", ".join(f"token{n}: a-secret-of-mine-{n}-abc" for n in range(3000))
    one = loaded(tmp_path, f"vars: {{{many}}}\nname: a-secret-of-mine-7-abc is x\n{RECIPE}")
    shown = "\n".join([*(line for _, lines in one.report.sources for line in lines), repr(one.report)])
    shown += repr(origins(one))
    assert len(one.secrets.written) == 3000 and "of-mine" not in shown
